"""One server, and a proxy in front of it."""

from __future__ import annotations

from typing import ClassVar

from redis import Redis

from tests.chaos.schedule import OF_CONNECTIONS, Harm
from tests.chaos.site import Course, Servers, Site
from tools.harness.proxy import HOST, Proxy
from tools.harness.redis_server import RedisServer


class OneServer(Servers):
    """A server, and a proxy in front of it."""

    _proxy: Proxy
    _server: RedisServer

    @property
    def servers(self) -> list[RedisServer]:
        return [self._server]

    @property
    def proxies(self) -> list[Proxy]:
        return [self._proxy]

    def client(self) -> Redis:
        return self._server.client()

    def _start_it(self, server: RedisServer) -> None:
        self._server = self._exit.enter_context(server)
        self._proxy = self._exit.enter_context(Proxy(server.port))


class Single(Site, OneServer):
    """It loses nothing when it is killed."""

    others: ClassVar = (Harm.TERMINATE, Harm.STOP, Harm.CLIENT_KILL, Harm.RESTART, *OF_CONNECTIONS)
    shared: ClassVar = ()
    all_proxied: ClassVar = False

    def url(self, scheme: str, *, proxied: bool = False) -> str:
        port = self._proxy.port if proxied else self._server.port
        return f"{scheme}://{HOST}:{port}/0"

    def befall(self, harm: Harm, pick: float) -> Course:
        if harm is not Harm.RESTART:
            raise ValueError(harm)
        self._server.kill()
        self._server.start()
        self._server.wait_ready()
        return Course(forgetful_until=0)

    def _start(self) -> None:
        self._start_it(RedisServer(appendonly=True, args=("--appendfsync", "always")))
