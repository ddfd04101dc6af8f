"""Threads of the operating system, also where gevent or eventlet have put greenlets in their place: for what
must go on while a task keeps the one thread that all greenlets share."""

from __future__ import annotations

import _thread
import sys
from collections.abc import Callable
from typing import Any


def Lock() -> Any:
    """As ``threading.Lock``. Who waits for it keeps all greenlets of the thread waiting."""
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

    def wait(self, timeout: float) -> None:
        if self._until_set.acquire(timeout=timeout):
            self._until_set.release()


class Thread:
    """As a daemon ``threading.Thread``, which starts when it is made. It is to use sockets, and no locks of
    others: those of eventlet do not work across threads."""

    def __init__(self, run: Callable[[], object]) -> None:
        self._run = run
        self._ended = Event()
        _original("start_new_thread")(self._run_and_clean_up, ())

    def join(self, timeout: float) -> None:
        self._ended.wait(timeout)

    def _run_and_clean_up(self) -> None:
        try:
            self._run()
        finally:
            _close_event_loop()
            self._ended.set()


def _close_event_loop() -> None:
    """Close the one that sockets gave this thread, which would be left open."""
    if _patched_by_gevent():
        sys.modules["gevent"].get_hub().destroy()
    elif _patched_by_eventlet():
        sys.modules["eventlet.hubs"].get_hub().abort(wait=True)


def _original(name: str) -> Any:
    """What *name* was in the module ``_thread``."""
    if _patched_by_gevent():
        return sys.modules["gevent.monkey"].get_original("_thread", name)
    if _patched_by_eventlet():
        return getattr(sys.modules["eventlet.patcher"].original("_thread"), name)
    return getattr(_thread, name)


def _patched_by_gevent() -> bool:
    monkey = sys.modules.get("gevent.monkey")
    return monkey is not None and monkey.is_module_patched("socket")


def _patched_by_eventlet() -> bool:
    patcher = sys.modules.get("eventlet.patcher")
    return patcher is not None and patcher.is_monkey_patched("socket")
