"""The servers of a row, one arrangement for each topology, and what can happen to them."""

from __future__ import annotations

import os
import signal
import time
from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

from redis import Redis
from redis.cluster import RedisCluster

from tests.chaos.sentinels import ARGUMENTS
from tests.chaos.site import Course
from tests.combinations.by_hand import Address
from tools.harness import trouble
from tools.harness.assembly import Assembly
from tools.harness.cluster import Cluster
from tools.harness.process import wait_until
from tools.harness.redis_server import RedisServer
from tools.harness.sentinel import MASTER, PASSWORD, PATIENCE, SentinelSite, follows

#: For how long a server refuses, seconds.
REFUSES_FOR = 2.0
#: What it answers then.
TROUBLES: Mapping[str, trouble.Trouble] = {
    "MISCONF": trouble.misconf,
    "BUSY": trouble.busy,
    "OOM": trouble.full,
    "NOREPLICAS": trouble.too_few_replicas,
    "max clients": trouble.too_many_clients,
}
#: For how long a server is silent, seconds, and how long the others wait before they take it for dead.
SILENCE = 2.0
_LONGER_MS = 10_000


class Servers(Assembly):
    """From the beginning of a ``with`` block to its end.

    Arguments:
        failing: whether a primary will fail, and be replaced. Otherwise a server that is silent is not.
        troubled: whether a server will refuse for a while.
    """

    #: For Celery's own result backends, if they must not use these servers: they lose a task whose result a
    #: server refuses. Ours waits.
    _of_results: RedisServer | None = None

    def __init__(self, *, failing: bool, troubled: bool = False) -> None:
        super().__init__()
        self._failing = failing
        self._troubled = troubled

    @property
    def options(self) -> Mapping[str, Any]:
        """Transport options that everybody needs here."""
        return {}

    @property
    @abstractmethod
    def address(self) -> Address:
        """For who pushes by hand."""

    @property
    @abstractmethod
    def live(self) -> list[RedisServer]:
        """The servers that clients are connected to."""

    @abstractmethod
    def ours(self) -> str:
        """The broker URL of our transport."""

    @abstractmethod
    def stock(self) -> str:
        """The broker URL of kombu's transport."""

    @abstractmethod
    def client(self) -> Redis | RedisCluster:
        """A client that sees all keys."""

    @abstractmethod
    def fail_over(self) -> Course:
        """Kill a primary, have another server take its place, and bring it back."""

    def results(self) -> str:
        """The URL of Celery's own result backend."""
        return self.stock() if self._of_results is None else self._of_results.url("redis")

    @property
    def harmed(self) -> RedisServer:
        """The server that is harmed, if only one is."""
        return self.live[0]

    def refuse(self, what: str) -> None:
        """Have a server refuse for a while. Returns when that is over.

        Arguments:
            what: one of ``TROUBLES``.
        """
        with TROUBLES[what](self.harmed):
            time.sleep(REFUSES_FOR)

    def be_silent(self) -> None:
        """Have a server answer nobody for a while."""
        server = self.harmed
        os.kill(server.pid, signal.SIGSTOP)
        time.sleep(SILENCE)
        os.kill(server.pid, signal.SIGCONT)

    def kill_clients(self) -> None:
        """Close all connections of clients."""
        for server in self.live:
            with server.client() as client:
                for kind in ("normal", "pubsub"):
                    client.execute_command("CLIENT", "KILL", "TYPE", kind, "SKIPME", "yes")


class Single(Servers):
    """One server."""

    @property
    def address(self) -> Address:
        return Address("single", [self._server.port])

    @property
    def live(self) -> list[RedisServer]:
        return [self._server]

    def ours(self) -> str:
        return self._server.url()

    def stock(self) -> str:
        return self._server.url("redis")

    def client(self) -> Redis:
        return self._server.client()

    def fail_over(self) -> Course:
        raise NotImplementedError

    def _start(self) -> None:
        self._server = self._exit.enter_context(RedisServer())
        if self._troubled:
            self._of_results = self._exit.enter_context(RedisServer())


class Watched(Servers):
    """A primary with replicas and sentinels."""

    @property
    def options(self) -> Mapping[str, Any]:
        return {"master_name": MASTER}

    @property
    def address(self) -> Address:
        return Address("sentinel", [each.port for each in self._site.sentinels], PASSWORD, MASTER)

    @property
    def live(self) -> list[RedisServer]:
        return [self._site.primary()]

    def ours(self) -> str:
        return self._site.url()

    def stock(self) -> str:
        return self._site.url("sentinel")

    def client(self) -> Redis:
        return self._site.client()

    def fail_over(self) -> Course:
        primary = self._site.primary()
        primary.kill()
        killed = time.time()
        self._site.wait_failover(primary)
        served = time.time()
        primary.restart()
        wait_until(lambda: follows(primary), PATIENCE, "it does not become a replica")
        self._site.wait_whole()
        return Course(killed, served)

    def _start(self) -> None:
        # What the docs recommend: a primary that comes back takes nothing that it would have to forget.
        site = SentinelSite(replicas=2, args=ARGUMENTS) if self._failing else SentinelSite(replicas=1)
        self._site = self._exit.enter_context(site)
        if self._failing or self._troubled:
            self._of_results = self._exit.enter_context(RedisServer())
        if not self._failing:
            for sentinel in self._site.sentinels:
                with sentinel.client() as client:
                    client.execute_command("SENTINEL", "SET", MASTER, "down-after-milliseconds", _LONGER_MS)


class Sharded(Servers):
    """A cluster of three primaries."""

    @property
    def address(self) -> Address:
        return Address("cluster", [node.port for node in self._cluster.nodes])

    @property
    def live(self) -> list[RedisServer]:
        return [*self._cluster.primaries]

    def ours(self) -> str:
        return self._cluster.url()

    def stock(self) -> str:
        raise NotImplementedError

    def client(self) -> RedisCluster:
        return self._cluster.client()

    def fail_over(self) -> Course:
        primary = self._cluster.node_of("{q0}")
        self._cluster.kill(primary)
        killed = time.time()
        self._cluster.wait_for_failover(primary)
        served = time.time()
        self._cluster.start(primary)
        self._cluster.wait_until_ok()
        return Course(killed, served)

    @property
    def harmed(self) -> RedisServer:
        return self._cluster.node_of("{q0}")

    def _start(self) -> None:
        timeout, replicas = (2000, 1) if self._failing else (_LONGER_MS, 0)
        self._cluster = self._exit.enter_context(Cluster(3, replicas, node_timeout=timeout))
        # Celery's backends know no cluster.
        self._of_results = self._exit.enter_context(RedisServer())


TOPOLOGIES: dict[str, type[Servers]] = {"single": Single, "sentinel": Watched, "cluster": Sharded}
