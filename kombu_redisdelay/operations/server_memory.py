"""How full a server is, to what the system limits it, and when it will be full."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import reduce
from operator import add, itemgetter
from pathlib import Path, PurePath, PurePosixPath
from typing import Any

from redis.exceptions import RedisError

from kombu_redisdelay.broker.message import to_ms
from kombu_redisdelay.broker.server.server import OneServer
from kombu_redisdelay.broker.store import Store
from kombu_redisdelay.operations.history import Counts, QueueHistory, queue_history
from kombu_redisdelay.operations.stats import read_some
from kombu_redisdelay.public import public

#: Where version 2 of control groups has its limits, and where version 1 has them.
_V2, _V1 = ("sys/fs/cgroup", "memory.max"), ("sys/fs/cgroup/memory", "memory.limit_in_bytes")

#: Version 1 says a number that is larger if there is no limit.
_NO_LIMIT = 2**60

#: Linux cuts off the name of a program.
_LONGEST_NAME = 15

#: Seconds by which two ways to tell the age of a process may differ.
_TOLERANCE = 3.0


def memory_limit(pid: int, executable: str, age: float, root: Path = Path("/")) -> int | None:
    """The limit of process *pid*, in bytes. ``None`` if it has none, or if it may be a process of another
    machine.

    Arguments:
        executable: the name of its program.
        age: for how many seconds it has been running.
    """
    try:
        if not _is_it(root / "proc", pid, executable, age):
            return None
        lines = (root / f"proc/{pid}/cgroup").read_text("utf-8").splitlines()
    except (OSError, ValueError):
        return None
    limits = []
    for line in lines:
        number, controllers, path = line.split(":", 2)
        if number == "0":
            limits += _limits(root, *_V2, path)
        elif "memory" in controllers.split(","):
            limits += _limits(root, *_V1, path)
    return min(limits, default=None)


def _is_it(proc: Path, pid: int, executable: str, age: float) -> bool:
    stat = (proc / f"{pid}/stat").read_text("utf-8", "replace")
    # proc(5): the name of the program, cut off, in brackets; the 22nd field is when it started.
    name, fields = stat[stat.index("(") + 1 : stat.rindex(")")], stat[stat.rindex(")") + 2 :].split()
    up = float((proc / "uptime").read_text("ascii").split()[0])
    its_age = up - int(fields[19]) / os.sysconf("SC_CLK_TCK")
    return name == executable[:_LONGEST_NAME] and abs(its_age - age) < _TOLERANCE


def _limits(root: Path, mount: str, name: str, path: str) -> list[int]:
    """Those of a group and of the groups around it. In a container, only the outermost may be seen."""
    found = []
    group = PurePosixPath(path.lstrip("/"))
    for each in (group, *group.parents):
        with suppress(OSError, ValueError):
            found.append(int((root / mount / each / name).read_text("ascii")))
    return [limit for limit in found if limit < _NO_LIMIT]


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


#: A rate is taken over at least so many seconds, and over so many at most.
LEAST_SECONDS, MOST_SECONDS = 15 * 60.0, 3600.0

#: From this part of the bytes of a server's queues on, it counts that nobody knows how fast some grow.
UNKNOWN_SHARE = 0.1


@public
@dataclass(frozen=True, slots=True)
class ServerFill:
    """How full a server is, and when it is full.

    Attributes:
        server: its address.
        used, limit: bytes that it uses, and may use; *limit* is 0 if it is unknown.
        is_limited: whether the limit is ``maxmemory``.
        of_what: what the limit is, in words.
        policy: its ``maxmemory-policy``.
        bytes_per_hour: by how much the queues have grown in the last hour, in bytes. Negative if they have
            become smaller. ``None`` if that is unknown.
        measured: over how many seconds that was measured: those of the queue with the shortest history;
            ``None`` if it was not.
        full_in: in how many seconds it is full at that rate; ``None`` if it will not be, or that is unknown.
        unknown: queues or partitions with a large part of the bytes that have no history of 15 minutes, the
            largest first. *bytes_per_hour* is without them.
    """

    server: str
    used: int
    limit: int
    is_limited: bool
    of_what: str
    policy: str
    bytes_per_hour: float | None = None
    measured: float | None = None
    full_in: float | None = None
    unknown: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Growth:
    """By how many messages a second a queue grows, and over how many seconds that was measured."""

    rate: float
    seconds: float


def server_fills(store: Store, by_queue: Mapping[str, tuple[float, int]] | None) -> list[ServerFill]:
    """How full the servers are that can be asked.

    Arguments:
        by_queue: queue or partition -> the bytes that its messages take, and how many there are. Others do
            not grow. ``None``: nothing is foretold.
    """
    if by_queue is None:
        return [_fill(server.address, memory) for server, memory in memories(store)]
    histories = read_some(queue_history, store, list(by_queue))
    now_s = store.now_ms() / 1000
    found = {history.queue: growth(history, now_s) for history in histories}
    by_server: dict[str, list[str]] = {}
    for name in by_queue:
        address = store.server.server_of(store.keys(name).schedule).address
        by_server.setdefault(address, []).append(name)
    fills = []
    for server, memory in memories(store):
        sizes = {name: by_queue[name] for name in by_server.get(server.address, ())}
        fills.append(_foretold(server.address, memory, sizes, found))
    return fills


def _fill(address: str, memory: ServerMemory) -> ServerFill:
    is_limited = memory.of_what == MAXMEMORY
    return ServerFill(address, memory.used, memory.limit, is_limited, memory.of_what, memory.policy)


def _foretold(
    address: str,
    memory: ServerMemory,
    sizes: Mapping[str, tuple[float, int]],
    found: Mapping[str, Growth | None],
) -> ServerFill:
    known: list[tuple[float, float]] = []
    unknown: list[tuple[str, float]] = []
    for name, (size, messages) in sizes.items():
        its = found.get(name)
        if its is None:
            unknown.append((name, size))
        else:
            known.append((its.rate * size / messages, its.seconds))
    unknown.sort(key=itemgetter(1), reverse=True)
    if sum(size for _, size in unknown) < UNKNOWN_SHARE * sum(size for size, _ in sizes.values()):
        unknown = []
    rate = sum(rate for rate, _ in known)
    if not known or (unknown and rate <= 0):
        # It may be filling up by the others.
        return replace(_fill(address, memory), unknown=[name for name, _ in unknown])
    full_in = max(0.0, (memory.limit - memory.used) / rate) if memory.limit and rate > 0 else None
    return replace(
        _fill(address, memory),
        bytes_per_hour=rate * 3600,
        measured=min(seconds for _, seconds in known),
        full_in=full_in,
        unknown=[name for name, _ in unknown],
    )


def growth(history: QueueHistory, now_s: float) -> Growth | None:
    """How fast a queue grows. What is acked leaves it, but for failed tasks that are kept. ``None`` if its
    history is too short."""
    if not history.minutes:
        return None
    counts = reduce(add, (period.counts for period in history.minutes), Counts())
    began_ms = min(to_ms(period.start) for period in (*history.minutes[:1], *history.hours[:1]))
    seconds = min(MOST_SECONDS, now_s - began_ms / 1000)
    if seconds < LEAST_SECONDS:
        return None
    more = counts.published - counts.delivered + counts.failures + counts.failed
    return Growth(more / seconds, seconds)
