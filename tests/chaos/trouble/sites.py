"""The servers of a run, which get into trouble and are not replaced meanwhile."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

from redis import Redis
from redis.cluster import RedisCluster

from tests.chaos.single import OneServer
from tests.chaos.site import Servers
from tools.harness.cluster import Cluster
from tools.harness.cluster_node import Node
from tools.harness.proxy import HOST, Proxy
from tools.harness.redis_server import RedisServer
from tools.harness.sentinel import MASTER, SentinelSite
from tools.harness.trouble import SLOW_TO_LOAD

#: Each worker has a user of its own, so that one of them may be refused.
USERS = ("of-worker-0", "of-worker-1", "of-worker-2")
SECRET = "of-workers"

_OF_USERS = [word for user in USERS for word in ("--user", user, "on", f">{SECRET}", "~*", "&*", "+@all")]
_ARGUMENTS = (*SLOW_TO_LOAD, *_OF_USERS)

#: Milliseconds for which a server is not replaced, though it does not answer.
_LONG_MS = 60_000


class TroubledSite(Servers):
    """The servers of a run, which have the queues. Its proxies are for the workers.

    Attributes:
        name: of the topology.
        queues: as many as are needed for each server to have some.
    """

    name: ClassVar[str]
    queues: ClassVar[tuple[str, ...]] = ("trouble-0", "trouble-1")

    @abstractmethod
    def url_of(self, user: str) -> str:
        """The broker URL of a worker."""

    @abstractmethod
    def producing(self) -> str:
        """The broker URL of the producer."""


class One(TroubledSite, OneServer):
    """One server."""

    name = "single"

    def url_of(self, user: str) -> str:
        return f"redisdelay://{user}:{SECRET}@{HOST}:{self._proxy.port}/0"

    def producing(self) -> str:
        return self._server.url()

    def _start(self) -> None:
        self._start_it(RedisServer(args=_ARGUMENTS))


class Watched(TroubledSite):
    """A primary, its replica, and sentinels that are patient."""

    name = "sentinel"

    @property
    def options(self) -> Mapping[str, Any]:
        return {"master_name": MASTER}

    @property
    def servers(self) -> list[RedisServer]:
        return self._site.servers[:1]

    @property
    def proxies(self) -> list[Proxy]:
        return [self._site.proxies[server] for server in self.servers]

    def url_of(self, user: str) -> str:
        addresses = [f"{HOST}:{sentinel.port}" for sentinel in self._site.sentinels]
        scheme = "redisdelay-sentinel"
        return f"{scheme}://{user}:{SECRET}@" + f";{scheme}://".join(addresses) + "/0"

    def producing(self) -> str:
        return self._site.url()

    def client(self) -> Redis:
        return self._site.client()

    def _start(self) -> None:
        site = SentinelSite(replicas=1, sentinels=2, proxied=True, args=_ARGUMENTS)
        self._site = self._exit.enter_context(site)
        for sentinel in site.sentinels:
            with sentinel.client() as client:
                client.execute_command("SENTINEL", "SET", MASTER, "down-after-milliseconds", _LONG_MS)


class Sharded(TroubledSite):
    """A cluster of three primaries."""

    name = "cluster"
    queues = tuple(f"trouble-{number}" for number in range(6))

    @property
    def nodes(self) -> list[Node]:
        return self._cluster.nodes

    @property
    def servers(self) -> list[RedisServer]:
        return [*self._cluster.nodes]

    @property
    def proxies(self) -> list[Proxy]:
        return [self._cluster.gates[node].clients for node in self._cluster.nodes]

    def url_of(self, user: str) -> str:
        return self._cluster.url(username=user, password=SECRET)

    def producing(self) -> str:
        return self._cluster.url()

    def client(self) -> RedisCluster:
        return self._cluster.client()

    def _start(self) -> None:
        self._cluster = self._exit.enter_context(
            Cluster(3, node_timeout=_LONG_MS, proxied=True, args=_ARGUMENTS)
        )


SITES: Mapping[str, type[TroubledSite]] = {each.name: each for each in (One, Watched, Sharded)}
