"""Processes and their threads: names of consumers, whether their processes have ended, what a forked process
does first, and threads that run while greenlets cannot.

A consumer's name is ``<boot id>:<PID namespace>:<PID>:<start time>:<random>``, and ``/`` and the name of the
Celery worker, if it is one. If boot id and namespace are our own, the kernel can tell whether that very
process still exists. If it does not, its messages cannot be acked any more, and there is no need to wait for
its lease. In any doubt, only the lease counts.

A :class:`Thread` is one of the operating system, also where gevent or eventlet have replaced threads by
greenlets. It does what must go on while a task occupies the one thread that all greenlets share.
"""

from __future__ import annotations

import _thread
import os
import re
import sys
import time
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from socket import gethostname
from typing import Any
from uuid import uuid4

_UNKNOWN = "-"

#: What a name of a worker may have. It becomes a part of names of keys.
_UNUSUAL = re.compile(r"[^\w.@+-]", re.ASCII)

#: The longest name of a worker, in characters.
_LONGEST_WORKER = 100


def new_consumer(worker: str = "") -> str:
    """A name for a new consumer in this process.

    Arguments:
        worker: the name of the Celery worker; empty if it is none.
    """
    pid = os.getpid()
    start_time = _start_time(pid)
    its_worker = f"/{_UNUSUAL.sub('_', worker)[:_LONGEST_WORKER]}" if worker else ""
    return ":".join((_host(), str(pid), start_time or _UNKNOWN, uuid4().hex + its_worker))


def worker_of(consumer: str) -> str | None:
    """The name of the Celery worker that a consumer belongs to; ``None`` if its name does not tell."""
    return consumer.rpartition(":")[2].partition("/")[2] or None


def process_of(consumer: str) -> str:
    """The part of the name that all consumers of one process share."""
    return consumer.rpartition(":")[0]


def host_and_pid(consumer: str) -> tuple[str | None, int | None]:
    """Where a consumer is, for people: the name of this host if it runs here, else the boot id of its host;
    and its PID there. ``None`` for what its name does not tell."""
    try:
        host, pid_text, _ = process_of(consumer).rsplit(":", 2)
        pid = int(pid_text)
    except ValueError:
        return None, None
    if host == _UNKNOWN:
        return None, pid
    return gethostname() if host == _host() else host.partition(":")[0], pid


def has_ended(process: str) -> bool:
    """Whether this process provably has ended.

    Arguments:
        process: as :func:`process_of` returns it.
    """
    try:
        host, pid_text, start_time = process.rsplit(":", 2)
        pid = int(pid_text)
    except ValueError:
        return False
    if host != _host() or _UNKNOWN in (host, start_time):
        return False
    try:
        # The kernel answers this even where /proc hides the processes of other users.
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except OverflowError:
        return False
    except PermissionError:
        pass
    found = _start_time(pid)
    return found is not None and found != start_time


def in_each_child(run: Callable[[], object]) -> None:
    """Have *run* called in each process that is forked from this one. On Windows, there are none."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=run)


def Lock() -> Any:
    """As ``threading.Lock``. Waiting for it blocks all greenlets of the thread."""
    return _original("allocate_lock")()


class NativeEvent:
    """As ``threading.NativeEvent``, for one thread that sets it and one that waits."""

    def __init__(self) -> None:
        self._is_set = False
        self._until_set = Lock()
        self._until_set.acquire()

    def set(self) -> None:
        if not self._is_set:
            self._is_set = True
            self._until_set.release()

    def is_set(self) -> bool:
        return self._is_set

    def clear(self) -> None:
        """The waiting thread calls this before it looks at what has changed: a later change sets the event
        again."""
        if self._is_set:
            self._until_set.acquire()
            self._is_set = False

    def wait(self, timeout: float) -> None:
        if self._until_set.acquire(timeout=timeout):
            self._until_set.release()


class Thread:
    """As a daemon ``threading.Thread``, but it starts when it is made. It may use sockets, but no locks of
    other modules: those of eventlet do not work across threads."""

    def __init__(self, run: Callable[[], object]) -> None:
        self.run = run
        self.ended = NativeEvent()
        try:
            worker = _idle.pop()
        except IndexError:
            worker = _Worker()
        worker.begin(self)

    def join(self, timeout: float) -> None:
        self.ended.wait(timeout)


class _Worker:
    """Runs a :class:`Thread`. Where there are greenlets, it runs many, one after the other.

    With greenlets, sockets give each worker an event loop. gevent leaves something of it behind in memory
    when a thread of the operating system ends.
    """

    def __init__(self) -> None:
        self._thread: Thread | None = None
        self._has_begun = Lock()
        self._has_begun.acquire()
        _original("start_new_thread")(self._work, ())

    def begin(self, thread: Thread) -> None:
        self._thread = thread
        self._has_begun.release()

    def _work(self) -> None:
        while self._run():
            pass

    def _run(self) -> bool:
        """Returns whether there will be more to run."""
        self._has_begun.acquire()
        thread, self._thread = self._thread, None
        assert thread is not None
        try:
            thread.run()
            if not _patched():
                return False
            # Let the event loop close what it was told to close.
            time.sleep(0)
            _idle.append(self)
            return True
        finally:
            thread.ended.set()


#: Workers that have nothing to run.
_idle: list[_Worker] = []
in_each_child(_idle.clear)


def _host() -> str:
    return _host_of(os.getpid())


@lru_cache(maxsize=1)
def _host_of(this_pid: int) -> str:
    """Boot id and PID namespace of this process, or "-" where they cannot be told for sure."""
    try:
        # In a PID namespace that kept its parent's /proc, that /proc is about other processes.
        if os.readlink("/proc/self") != str(this_pid):
            return _UNKNOWN
        boot_id = Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
        return f"{boot_id}:{os.stat('/proc/self/ns/pid').st_ino}"
    except OSError:
        return _UNKNOWN


def _start_time(pid: int) -> str | None:
    """When *pid* started, in clock ticks since boot; "exited" for a zombie; ``None`` if it is unknown."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace")
    except OSError:
        return None
    # proc(5): the second field, the command in brackets, may contain anything. The rest follows the last ")".
    fields = stat[stat.rindex(")") + 2 :].split()
    state, threads, start_time = fields[0], int(fields[17]), fields[19]
    if state in "ZX" and threads <= 1:
        return "exited"
    return start_time


def _original(name: str) -> Any:
    """The original *name* of the module ``_thread``, without the patches of gevent or eventlet."""
    if _patched() == "gevent":
        return sys.modules["gevent.monkey"].get_original("_thread", name)
    if _patched() == "eventlet":
        return getattr(sys.modules["eventlet.patcher"].original("_thread"), name)
    return getattr(_thread, name)


def _patched() -> str:
    """Which library has replaced threads by greenlets: "gevent", "eventlet", or "" for none."""
    monkey, patcher = sys.modules.get("gevent.monkey"), sys.modules.get("eventlet.patcher")
    if monkey is not None and monkey.is_module_patched("threading"):
        return "gevent"
    if patcher is not None and patcher.is_monkey_patched("thread"):
        return "eventlet"
    return ""
