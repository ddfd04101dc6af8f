"""Private Redis and Valkey servers. A server that already runs on this machine is never touched."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from tools.harness.ports import OF_SERVERS, own
from tools.harness.process import ChildProcess
from tools.harness.server_binary import ServerBinary, servers
from tools.harness.tls import Tls

HOST = "127.0.0.1"


class RedisServer(ChildProcess):
    """A server with a port, a Unix socket and a directory of its own, kept over restarts.

    Attributes:
        tls_port: where it speaks TLS, if it has a certificate: other servers and the URLs use this port then.
            The port without TLS is there all the same, for `client`.

    Arguments:
        announced: the port at which other servers and their clients look for it, if it is that of a proxy.
            *args* must have the server tell it.
    """

    def __init__(
        self,
        binary: ServerBinary | None = None,
        *,
        appendonly: bool = False,
        requirepass: str | None = None,
        port: int | None = None,
        announced: int | None = None,
        args: Sequence[str] = (),
        tls: Tls | None = None,
    ) -> None:
        binary = binary or servers()[0]
        super().__init__()
        self.binary = binary
        self.port = port or free_port()
        self._announced = announced
        self.socket = self.directory / "socket"
        self.password = requirepass
        self._appendonly = appendonly
        self._args = args
        self._tls = tls
        self.tls_port = free_port()

    @property
    def announced_port(self) -> int:
        """The port at which others find it."""
        return self._announced or (self.port if self._tls is None else self.tls_port)

    def command(self) -> Sequence[str]:
        options = {
            "bind": HOST,
            "port": str(self.port),
            "unixsocket": str(self.socket),
            "dir": str(self.directory),
            "save": "",
            "appendonly": "yes" if self._appendonly else "no",
        }
        if self.password is not None:
            options["requirepass"] = self.password
        if self._tls is not None:
            options |= self._tls.settings(self.tls_port)
        flags = [word for name, value in options.items() for word in (f"--{name}", value)]
        return [self.binary.path, *flags, *self._args]

    def is_ready(self) -> bool:
        try:
            with self.client(retry=Retry(NoBackoff(), 0)) as client:
                return bool(client.ping())
        except redis.ConnectionError:
            return False

    def restart(self) -> None:
        """Stop the server if it is running, and start it with the same port and data."""
        if self.running:
            self.stop()
        self.start()
        self.wait_ready()

    def url(self, scheme: str = "redisdelay", db: int = 0) -> str:
        login = "" if self.password is None else f":{quote(self.password, safe='')}@"
        return f"{scheme}://{login}{HOST}:{self.announced_port}/{db}"

    def client(self, **options: Any) -> redis.Redis:
        return redis.Redis(host=HOST, port=self.port, password=self.password, **options)


_ports = own(OF_SERVERS)


def free_port() -> int:
    return next(filter(is_free, _ports))


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True
