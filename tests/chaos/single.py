"""One server, and a proxy in front of it."""

from __future__ import annotations

from typing import ClassVar

from redis import Redis

from tests.chaos.schedule import OF_CONNECTIONS, Harm
from tests.chaos.site import Course, Site
from tools.harness.proxy import HOST, Proxy
from tools.harness.redis_server import RedisServer


class Single(Site):
    """It loses nothing when it is killed."""

    others: ClassVar = (Harm.TERMINATE, Harm.STOP, Harm.CLIENT_KILL, Harm.RESTART, *OF_CONNECTIONS)
    shared: ClassVar = ()
    all_proxied: ClassVar = False
    _proxy: Proxy
    _server: RedisServer

    @property
    def servers(self) -> list[RedisServer]:
        return [self._server]

    @property
    def proxies(self) -> list[Proxy]:
        return [self._proxy]

    def url(self, scheme: str, *, proxied: bool = False) -> str:
        port = self._proxy.port if proxied else self._server.port
        return f"{scheme}://{HOST}:{port}/0"

    def client(self) -> Redis:
        return self._server.client()

    def befall(self, harm: Harm, pick: float) -> Course:
        if harm is not Harm.RESTART:
            raise ValueError(harm)
        self._server.kill()
        self._server.start()
        self._server.wait_ready()
        return Course(forgetful_until=0)

    def _start(self) -> None:
        server = RedisServer(appendonly=True, args=("--appendfsync", "always"))
        self._server = self._exit.enter_context(server)
        self._proxy = self._exit.enter_context(Proxy(self._server.port))
