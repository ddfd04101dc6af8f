"""A process that has imported Celery, and forks the ``celery`` commands that it is asked for.

A worker takes a second of CPU to import what each worker needs; a fork of this process has it. What it
forks runs ``python -m celery`` from there on: with an environment, a folder, a session and a log of its own,
and it ends as any interpreter does. Only what an import reads of its surroundings would be that of this
process. So it imports no application.

It is a program: ``forked_process.py`` starts it, with a Unix socket as its standard input, and with
``gevent`` as its argument if that has to patch what is imported. A request is one JSON object with four
files: the three standard ones, and a socket of its own, over which the PID and at last the status are told.
"""

from __future__ import annotations

import fcntl
import gc
import json
import os
import runpy
import selectors
import signal
import socket
import sys
import termios
import time
from contextlib import suppress
from importlib import import_module
from typing import Any

from tools.harness.leash import die_with

#: What each Celery worker imports, whatever its broker and its pool are, and what ``celery delayed`` does.
MODULES = (
    "celery.apps.worker",
    "celery.bin.celery",
    "celery.events.state",
    "celery.fixups.django",
    "celery.loaders.app",
    "celery.worker.autoscale",
    "celery.worker.components",
    "celery.worker.consumer",
    "celery.worker.strategy",
    "kombu.transport.redis",
    "kombu_redisdelay.cli",
    "kombu_redisdelay.transport.cluster",
    "kombu_redisdelay.transport.sentinel",
    "kombu_redisdelay.transport.transports",
)

POOLS = ("prefork", "solo", "thread")

REQUEST_BYTES = 1 << 20


class ForkServer:
    """To be made before anything is patched: it keeps the functions and sockets of the standard library.

    What is patched needs a hub of gevent, and a hub that is made before the fork would be one of all workers.
    So it is with eventlet, which makes one when it patches; therefore its workers are not forked from here.
    """

    def __init__(self, requests: int) -> None:
        self._requests = socket.socket(fileno=requests)
        self._channels: dict[int, socket.socket] = {}
        self._selector = selectors.DefaultSelector()
        self._wake, self._waker = socket.socketpair()
        for each in (self._wake, self._waker):
            each.setblocking(False)
        self._socket, self._fork, self._waitpid = socket.socket, os.fork, os.waitpid
        self._signal = signal.signal
        self._signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._waker.fileno())

    def serve(self) -> dict[str, Any] | None:
        """Fork for each request, until nobody can ask any more.

        Returns:
            In the forked process, the request; else ``None``.
        """
        self._selector.register(self._requests, selectors.EVENT_READ)
        self._selector.register(self._wake, selectors.EVENT_READ)
        while True:
            for key, _ in self._selector.select():
                if key.fileobj is self._wake:
                    self._wake.recv(REQUEST_BYTES)
                    self._tell_who_has_ended()
                    continue
                data, files, _, _ = socket.recv_fds(self._requests, REQUEST_BYTES, 4)
                if not data:
                    return None
                *standard, channel = files
                if self._is_forked(standard, self._socket(fileno=channel)):
                    return dict(json.loads(data))

    def _is_forked(self, standard: list[int], channel: socket.socket) -> bool:
        """Fork. Returns whether this is the forked process."""
        server = os.getpid()
        pid = self._fork()
        if pid:
            for file in standard:
                os.close(file)
            self._channels[pid] = channel
            return False
        signal.set_wakeup_fd(-1)
        self._signal(signal.SIGCHLD, signal.SIG_DFL)
        self._selector.close()
        os.setsid()
        die_with(server)
        # Not before it leads a group: who knows the PID may kill the group.
        channel.send(b"%d\n" % os.getpid())
        for each in (self._requests, self._wake, self._waker, channel, *self._channels.values()):
            each.close()
        for number, file in enumerate(standard):
            os.dup2(file, number)
            os.close(file)
        if os.isatty(0):
            # So Ctrl-C reaches it, and ends it, also if this runs in the background of a shell.
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)
            self._signal(signal.SIGINT, signal.default_int_handler)
        return True

    def _tell_who_has_ended(self) -> None:
        while self._channels:
            pid, status = self._waitpid(-1, os.WNOHANG)
            if not pid:
                return
            with self._channels.pop(pid) as channel, suppress(OSError):
                # Somebody may wait for it no more.
                channel.send(b"%d\n" % os.waitstatus_to_exitcode(status))


def load(pool: str = "") -> None:
    """Import what the workers need, after *pool* has patched it if it does so."""
    # The folder in which this was started. Each request names its own.
    del sys.path[0]
    if pool:
        import_module("celery").maybe_patch_concurrency(["-P", pool])
    for module in (*MODULES, *(f"celery.concurrency.{each}" for each in POOLS if not pool)):
        import_module(module)


if __name__ == "__main__":
    # A duplicate: the standard input of the workers is another one.
    server = ForkServer(os.dup(0))
    load(*sys.argv[1:])
    # What a collection looks at is copied for each worker: half of the CPU that it takes to start and stop.
    gc.collect()
    gc.freeze()
    request = server.serve()
    if request is not None:
        os.environ.clear()
        os.environ.update(request["environment"])
        time.tzset()
        os.chdir(request["folder"])
        sys.path.insert(0, request["folder"])
        sys.argv = ["celery", *request["arguments"]]
        runpy.run_module("celery", run_name="__main__", alter_sys=True)
