"""``celery`` commands that are forked from a process that has imported Celery: see ``fork_server.py``."""

from __future__ import annotations

import atexit
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from tools.harness import fork_server

_ROOT = Path(__file__).parents[2]

_lock = threading.Lock()
_servers: dict[tuple[int, str], socket.socket] = {}


class ForkedProcess:
    """Has of `subprocess.Popen` what a child process of ours needs.

    Arguments:
        arguments: of ``celery``, which may use any pool but eventlet's.
        log: what it prints, and its errors if there are no *errors*.
        given: its standard input, which may be a terminal; nothing by default.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        log: IO[bytes] | int,
        environment: Mapping[str, str],
        folder: Path,
        *,
        errors: IO[bytes] | None = None,
        given: int | None = None,
    ) -> None:
        self.returncode: int | None = None
        request = {"arguments": arguments, "environment": dict(environment), "folder": str(folder)}
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        printed = log if isinstance(log, int) else log.fileno()
        with theirs, open(os.devnull) as nothing, _lock:
            standard = [
                nothing.fileno() if given is None else given,
                printed,
                printed if errors is None else errors.fileno(),
            ]
            asked = _server("gevent" if "gevent" in arguments else "")
            socket.send_fds(asked, [json.dumps(request).encode()], [*standard, theirs.fileno()])
        self.pid = self._told()

    def poll(self) -> int | None:
        if self.returncode is None and select.select([self._channel], [], [], 0)[0]:
            self.wait()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            if not select.select([self._channel], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(f"celery, PID {self.pid}", timeout or 0)
            self.returncode = self._told()
            self._channel.close()
        return self.returncode

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def _told(self) -> int:
        told = self._channel.recv(32)
        if not told:
            raise RuntimeError("the fork server has ended")
        return int(told)


def _server(pool: str) -> socket.socket:
    """Where the fork server of this process for *pool* is asked. It is started when it is first needed."""
    owner = os.getpid()
    asked = _servers.get((owner, pool))
    if asked is None:
        asked, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [sys.executable, "-m", fork_server.__name__, *([pool] if pool else [])]
        with theirs:
            # It ends when the last copy of our end is closed, as when this process dies.
            process = subprocess.Popen(command, stdin=theirs.fileno(), cwd=_ROOT)
        _servers[owner, pool] = asked
        atexit.register(_end, owner, asked, process)
    return asked


def _end(owner: int, asked: socket.socket, process: subprocess.Popen[bytes]) -> None:
    if os.getpid() == owner:
        asked.close()
        process.wait()
