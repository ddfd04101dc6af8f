"""A primary, two replicas, and the sentinels that watch them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from redis import Redis

from tests.chaos.schedule import Harm
from tests.chaos.site import Course, Site, in_use
from tools.harness.process import wait_until
from tools.harness.proxy import Proxy
from tools.harness.redis_server import RedisServer
from tools.harness.sentinel import MASTER, PATIENCE, SentinelSite, cut_off, follows, go_on, pause, reconnect

#: What the docs recommend.
ARGUMENTS = ("--min-replicas-to-write", "1", "--min-replicas-max-lag", "10")

#: What is done to a primary itself, and how it is ended.
_HARMS: dict[Harm, tuple[Callable[[RedisServer], None], Callable[[RedisServer], None]]] = {
    Harm.PRIMARY_KILL: (RedisServer.kill, RedisServer.restart),
    Harm.PRIMARY_STOP: (pause, go_on),
    Harm.PRIMARY_CUT: (cut_off, reconnect),
}
#: Clients have nothing from the primary any more when these are done.
_SILENT = (Harm.PRIMARY_KILL, Harm.PRIMARY_PARTITION)


class Sentinels(Site):
    """A replica has what a producer was told to be published."""

    failovers: ClassVar = (*_HARMS, Harm.PRIMARY_PARTITION)
    _site: SentinelSite
    #: That of the last failover, as far as one is known.
    _epoch: int
    _surprises = 0

    @property
    def options(self) -> Mapping[str, Any]:
        return {"master_name": MASTER}

    @property
    def publishing(self) -> Mapping[str, Any]:
        return {"confirm_replicas": 1}

    @property
    def servers(self) -> list[RedisServer]:
        return [self._site.primary()]

    @property
    def proxies(self) -> list[Proxy]:
        return [self._site.proxies[self._site.primary()]]

    def url(self, scheme: str, *, proxied: bool = False) -> str:
        return self._site.url(f"{scheme}-sentinel")

    def client(self) -> Redis:
        return self._site.client()

    def befall(self, harm: Harm, pick: float) -> Course:
        do, end = {**_HARMS, Harm.PRIMARY_PARTITION: (self._site.partition, self._site.reunite)}[harm]
        self._note_failovers()
        primary = self._site.primary()
        with in_use(self._site.proxies[primary]):
            do(primary)
            done = time.time()
            self._site.wait_failover(primary)
            served = time.time()
            end(primary)
            wait_until(lambda: follows(primary), PATIENCE, "it does not become a replica")
            demoted = time.time()
            self._site.wait_whole()
        self._epoch = self._site.epoch()
        # What was silent gets no more clients when it can be reached again. The others go on until they are
        # replicas.
        return Course(done if harm in _SILENT else demoted, served)

    def surprises(self) -> int:
        """They are told, for a replica that confirms a message need not be the one that is promoted while the
        primary works: docs/sentinel.rst. So such a run may lose messages by no fault of ours."""
        self._note_failovers()
        return self._surprises

    def _note_failovers(self) -> None:
        epoch = self._site.epoch()
        self._surprises += epoch != self._epoch
        self._epoch = epoch

    def _start(self) -> None:
        self._site = self._exit.enter_context(SentinelSite(proxied=True, args=ARGUMENTS))
        self._epoch = self._site.epoch()
