"""The servers of a run: what they are, how to reach them, and what can be done to them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

from redis import Redis
from redis.cluster import RedisCluster

from tests.chaos.schedule import OF_CONNECTIONS, Harm
from tools.harness.assembly import Assembly
from tools.harness.proxy import Proxy
from tools.harness.redis_server import RedisServer

#: Seconds to wait for a proxy that somebody else uses.
PATIENCE = 30.0


@dataclass(frozen=True)
class Course:
    """When what, in seconds since the epoch.

    Attributes:
        forgetful_until: until then, the servers may have forgotten what they had replied to.
        served: when all queues were served again; ``None`` if they were all the time.
    """

    forgetful_until: float
    served: float | None = None


class Servers(Assembly):
    """Servers, and the proxies in front of them, from the ``with`` block's beginning to its end."""

    @property
    def options(self) -> Mapping[str, Any]:
        """The transport options that workers and producers need here."""
        return {}

    @property
    @abstractmethod
    def servers(self) -> list[RedisServer]:
        """Those that clients may be connected to, and that can answer."""

    @property
    @abstractmethod
    def proxies(self) -> list[Proxy]:
        """Those in front of servers that serve clients just now."""

    @abstractmethod
    def client(self) -> Redis | RedisCluster:
        """A client that sees all keys."""


class Site(Servers):
    """The servers of a run, and what befalls them.

    Attributes:
        others: the kinds of harm that come beside the kills of workers, whatever happens to the servers.
        shared: those that all workers feel, less often.
        failovers: those that have another server become the primary.
        changes: others that happen to the servers, less often.
        count: how many queues there are, unless somebody says it.
        all_proxied: whether all clients come through the proxies, or only the workers that are told to.

    Arguments:
        queues: the names of the queues.
    """

    others: ClassVar[tuple[Harm, ...]] = (Harm.TERMINATE, Harm.STOP, Harm.CLIENT_KILL)
    shared: ClassVar[tuple[Harm, ...]] = OF_CONNECTIONS
    failovers: ClassVar[tuple[Harm, ...]] = ()
    changes: ClassVar[tuple[Harm, ...]] = ()
    count: ClassVar[int] = 1
    all_proxied: ClassVar[bool] = True

    def __init__(self, queues: Sequence[str]) -> None:
        super().__init__()
        self.queues = queues

    @property
    def publishing(self) -> Mapping[str, Any]:
        """The transport options that producers have beside these."""
        return {}

    @abstractmethod
    def url(self, scheme: str, *, proxied: bool = False) -> str:
        """The URL for a transport. *proxied* is heard unless all are."""

    def surprises(self) -> int:
        """How many failovers there were, so far, that nobody planned."""
        return 0

    @abstractmethod
    def befall(self, harm: Harm, pick: float) -> Course:
        """Do to the servers what is in `failovers` and `changes`, and return when they are whole again.

        Arguments:
            pick: from 0 to 1, which one of those that it can be done to.
        """


@contextmanager
def in_use(proxy: Proxy) -> Iterator[None]:
    """Have nobody else do harm with a proxy in the block: the server behind it is being failed over."""
    if not proxy.use.acquire(timeout=PATIENCE):
        raise TimeoutError("somebody else does harm with the proxy")
    try:
        yield
    finally:
        proxy.use.release()
