"""Threads of the operating system, also where gevent or eventlet have replaced threads by greenlets.

They do what must go on while a task occupies the one thread that all greenlets share.
"""

from __future__ import annotations

import _thread
import sys
import time
from collections.abc import Callable
from typing import Any

from kombu_redisdelay.broker.processes import in_each_child


def Lock() -> Any:
    """As ``threading.Lock``. Waiting for it blocks all greenlets of the thread."""
    return _original("allocate_lock")()


class Event:
    """As ``threading.Event``, for one thread that sets it and one that waits."""

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
        self.ended = Event()
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
