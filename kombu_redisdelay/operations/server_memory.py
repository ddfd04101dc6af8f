"""How full a server is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from redis.exceptions import RedisError

from kombu_redisdelay.broker.server.server import OneServer
from kombu_redisdelay.broker.store import Store
from kombu_redisdelay.operations.cgroup import memory_limit

MAXMEMORY = "maxmemory"
CONTAINER = "the limit of its container or unit, maxmemory is not set"
MACHINE = "the machine's memory, maxmemory is not set"
#: Only the container itself knows its limit.
UNKNOWN = "it runs in a container, whose limit cannot be seen from here, and maxmemory is not set"


@dataclass(frozen=True, slots=True)
class ServerMemory:
    """The memory of one server.

    Attributes:
        used: bytes that it uses.
        limit: bytes that it may use; 0 if that is unknown.
        of_what: what *limit* is, :data:`MAXMEMORY`, :data:`CONTAINER`, :data:`MACHINE` or :data:`UNKNOWN`.
        container: the limit of its container or unit in bytes, 0 if there is none or it cannot be seen.
        policy: its ``maxmemory-policy``.
    """

    used: int
    limit: int
    of_what: str
    container: int
    policy: str

    @property
    def share(self) -> float:
        """Which part of the limit it uses; 0 if the limit is unknown."""
        return self.used / self.limit if self.limit else 0.0

    @property
    def is_full(self) -> bool:
        """Whether it refuses what is published."""
        return self.of_what == MAXMEMORY and self.used > self.limit

    def __str__(self) -> str:
        if not self.limit:
            return f"{mebibytes(self.used)} used ({self.of_what})"
        return f"{mebibytes(self.used)} used of {mebibytes(self.limit)} ({self.of_what})"


def memory_in(info: Mapping[str, Any]) -> ServerMemory:
    """What ``INFO`` says, its sections ``server`` and ``memory``."""
    pid = int(info.get("process_id", 0))
    executable = PurePath(str(info.get("executable", ""))).name
    container = memory_limit(pid, executable, float(info.get("uptime_in_seconds", 0))) or 0
    policy = str(info.get("maxmemory_policy", "noeviction"))
    used, maxmemory = int(info["used_memory"]), int(info.get("maxmemory", 0))
    if maxmemory:
        # The server does not count the buffers of replicas and of the append-only file either.
        used -= int(info.get("mem_not_counted_for_evict", 0))
        return ServerMemory(used, maxmemory, MAXMEMORY, container, policy)
    if container:
        # The kernel counts what the allocator holds.
        return ServerMemory(int(info.get("used_memory_rss", used)), container, CONTAINER, container, policy)
    if pid == 1:
        return ServerMemory(used, 0, UNKNOWN, 0, policy)
    return ServerMemory(used, int(info.get("total_system_memory", 0)), MACHINE, 0, policy)


def memories(store: Store) -> Iterator[tuple[OneServer, ServerMemory]]:
    """The memory of each server that can be asked."""
    for server in store.server.servers():
        with suppress(RedisError, OSError):
            yield server, memory_in({**server.info("server"), **server.info("memory")})


def mebibytes(count: int) -> str:
    return f"{count / 2**20:,.0f} MiB"
