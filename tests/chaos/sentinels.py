"""A primary, two replicas, and the sentinels that watch them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from redis import Redis

from harness.process import wait_until
from harness.redis_server import RedisServer
from harness.sentinel import MASTER, PATIENCE, SentinelSite, cut_off, follows, go_on, pause, reconnect
from tests.chaos.schedule import Harm
from tests.chaos.site import Course, Site

#: What the docs recommend.
ARGUMENTS = ("--min-replicas-to-write", "1", "--min-replicas-max-lag", "10")

#: What is done to a primary, and how it is ended.
_HARMS: dict[Harm, tuple[Callable[[RedisServer], None], Callable[[RedisServer], None]]] = {
    Harm.PRIMARY_KILL: (RedisServer.kill, RedisServer.restart),
    Harm.PRIMARY_STOP: (pause, go_on),
    Harm.PRIMARY_CUT: (cut_off, reconnect),
}


class Sentinels(Site):
    """A replica has what a producer was told to be published."""

    failovers: ClassVar = tuple(_HARMS)
    _site: SentinelSite

    @property
    def options(self) -> Mapping[str, Any]:
        return {"master_name": MASTER}

    @property
    def publishing(self) -> Mapping[str, Any]:
        return {"confirm_replicas": 1}

    @property
    def servers(self) -> list[RedisServer]:
        return [self._site.primary()]

    def url(self, scheme: str, *, proxied: bool = False) -> str:
        return self._site.url(f"{scheme}-sentinel")

    def client(self) -> Redis:
        return self._site.client()

    def befall(self, harm: Harm, pick: float) -> Course:
        do, end = _HARMS[harm]
        primary = self._site.primary()
        do(primary)
        done = time.time()
        self._site.wait_failover(primary)
        served = time.time()
        end(primary)
        wait_until(lambda: follows(primary), PATIENCE, "it does not become a replica")
        demoted = time.time()
        self._site.wait_whole()
        # One that was killed says nothing any more. The others do until they are replicas.
        return Course(done if harm is Harm.PRIMARY_KILL else demoted, served)

    def _start(self) -> None:
        self._site = self._exit.enter_context(SentinelSite(args=ARGUMENTS))
