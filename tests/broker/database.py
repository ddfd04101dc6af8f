"""Redis databases whose clock the tests move."""

from __future__ import annotations

import re
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any
from unittest import mock

import fakeredis
from redis import ConnectionPool

from kombu_redisdelay.broker.server.cluster import ClusterServer
from kombu_redisdelay.broker.server.nodes import Address, Nodes
from kombu_redisdelay.broker.server.server import Server
from kombu_redisdelay.broker.server.single import Pool, SingleServer
from tests.environments import CLUSTER
from tests.permissions import allow, documented_rules
from tools.harness.cluster import Cluster
from tools.harness.full import BALLAST, fill
from tools.harness.redis_server import HOST, RedisServer
from tools.harness.server_binary import ServerBinary, servers

FAKE = "fakeredis"
REAL_SERVERS: dict[str, ServerBinary] = {binary.name: binary for binary in servers()}


class Database(ABC):
    """A database on some server.

    Attributes:
        name: of the server.
        client: typed as Any because redis-py's types say that each command may return an awaitable.
        pool: the connections of the broker, which may do what is documented.
        prefix: the ``global_keyprefix`` of queues that a consumer takes from together.
    """

    name: str
    client: Any
    pool: Any
    prefix = ""

    def new_server(self) -> Server:
        """A way to the server for the broker, over connections of its own."""
        return SingleServer(Pool.like(self.pool, max_connections=10))

    def reset(self) -> None:
        self.client.flushall()

    def all_keys(self, pattern: str) -> list[bytes]:
        return list(self.client.keys(pattern))

    def fill(self, room: int = -BALLAST // 4) -> None:
        """Have the server refuse what could need memory, until :meth:`relieve`.

        Arguments:
            room: bytes that it still has for others. Whatever is taken out makes no difference, because
                a ballast dominates its memory.
        """
        fill(self.client, room)

    def relieve(self) -> None:
        self.client.config_set("maxmemory", 0)

    def now_us(self) -> int:
        seconds, microseconds = self.client.time()
        return int(seconds) * 1_000_000 + int(microseconds)

    def now_ms(self) -> int:
        return self.now_us() // 1000

    @abstractmethod
    def advance(self, ms: int) -> None:
        """Let *ms* of the server's time pass at once."""

    @abstractmethod
    def tick(self) -> None:
        """Let a few microseconds of the server's time pass, which change nothing else."""

    def end_millisecond(self) -> None:
        """Wait until the clock shows another one, unless it stands still."""
        before = self.now_ms()
        while self.now_ms() == before:
            pass


class FakeDatabase(Database):
    """fakeredis, on a clock that stands still."""

    name = FAKE

    def __init__(self) -> None:
        self.client = fakeredis.FakeRedis()
        self.pool = self.client.connection_pool
        self._now = time.time()

    def advance(self, ms: int) -> None:
        self._now += ms / 1000

    def tick(self) -> None:
        self._now += 37e-6

    def end_millisecond(self) -> None:
        pass

    @contextmanager
    def clock(self) -> Iterator[None]:
        frozen = SimpleNamespace(time=lambda: self._now)
        with mock.patch("fakeredis.commands_mixins.server_mixin.time", frozen):
            yield


class RealDatabase(Database):
    """A real server. Its clock cannot be moved, but everything it is compared with can."""

    def __init__(self, server: RedisServer, name: str = "") -> None:
        self.name = name
        self.client = server.client()
        url = allow(server, *documented_rules("*")).replace("redisdelay://", "redis://")
        self.pool = ConnectionPool.from_url(url)

    def advance(self, ms: int) -> None:
        _move_times(self.client, ms)

    def tick(self) -> None:
        """The clock does it."""


class ClusterDatabase(Database):
    """A cluster of real servers. All keys are in one slot, because most tests take from several queues. Tests
    of the transport have queues in many slots."""

    name = CLUSTER
    prefix = "{one-slot}"

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.client = cluster.client()
        addresses = [Address(HOST, node.port) for node in cluster.primaries]
        self.pool = ConnectionPool(host=HOST, port=addresses[0].port)
        self._nodes = Nodes(addresses, self.pool)

    def new_server(self) -> Server:
        return ClusterServer(self._nodes, self.pool, max_connections=10)

    def reset(self) -> None:
        self._cluster.flush()

    def all_keys(self, pattern: str) -> list[bytes]:
        return [key for node in self._cluster.primaries for key in node.call("KEYS", pattern)]

    def fill(self, room: int = -BALLAST // 4) -> None:
        """Only the node that has the queues."""
        with self._cluster.node_of(f"{self.prefix}x").client() as client:
            fill(client, room, ballast=f"{self.prefix}ballast")

    def relieve(self) -> None:
        self._cluster.everywhere("CONFIG", "SET", "maxmemory", 0)

    def advance(self, ms: int) -> None:
        for node in self._cluster.primaries:
            with node.client() as client:
                _move_times(client, ms)

    def tick(self) -> None:
        """The clocks do it."""


def _move_times(client: Any, ms: int) -> None:
    """Make everything that the clock of a server is compared with *ms* earlier."""
    for key in client.scan_iter(_type="zset"):
        if not key.endswith((b":unknown", b":duplicates")) and b"}:turns:" not in key:
            by = ms * 1000 if key.endswith((b":tats", b":alarms", b":earlier")) else ms
            for member in client.zrange(key, 0, -1):
                client.zincrby(key, -by, member)
    _move_waiting(client, ms)
    _move_holders(client, ms)
    for key in client.scan_iter("*:control"):
        if client.hexists(key, "full_at_us"):
            client.hincrby(key, "full_at_us", -ms * 1000)


def _move_waiting(client: Any, ms: int) -> None:
    """The same for what waits for a worker that knows its task: the message says since when, and the list."""

    def earlier(text: bytes, pattern: bytes, digits: int) -> bytes:
        return re.sub(pattern, lambda match: match[1] + b"%0*d" % (digits, int(match[2]) - ms), text, count=1)

    for key in client.scan_iter("*:unknown"):
        for entry in client.zrange(key, 0, -1):
            client.zrem(key, entry)
            client.zadd(key, {earlier(entry, rb"^([^\x1f]*\x1f\d+\x1f)(\d+)", 15): 0})
    member = rb'("redisdelay-unknown": )(\d+)'
    for key in client.scan_iter(_type="hash"):
        for field, value in client.hgetall(key).items():
            if b'"redisdelay-unknown"' in value:
                client.hset(key, field, earlier(value, member, 1))
    for key in client.scan_iter(_type="list"):
        for index, value in enumerate(client.lrange(key, 0, -1)):
            if b'"redisdelay-unknown"' in value:
                client.lset(key, index, earlier(value, member, 1))


def _move_holders(client: Any, ms: int) -> None:
    """The same for messages that hold a unique key: since when, and when they expire."""

    def earlier(match: re.Match[bytes]) -> bytes:
        # 0 is never.
        since, expires = int(match[2]) - ms, int(match[3]) and max(1, int(match[3]) - ms)
        return b"%b %d %d " % (match[1], since, expires)

    for key in client.scan_iter("*:unique", _type="hash"):
        for field, value in client.hgetall(key).items():
            client.hset(key, field, re.sub(rb"(?<![^\x1e])([rsa]\d+) (\d+) (\d+) ", earlier, value))


@contextmanager
def database(name: str) -> Iterator[Database]:
    """A database on the server called *name*, which is one of `REAL_SERVERS`, or `FAKE`."""
    if name == FAKE:
        fake = FakeDatabase()
        with fake.clock():
            yield fake
    else:
        with RedisServer(REAL_SERVERS[name]) as server:
            real = RealDatabase(server, name)
            with real.client:
                yield real
