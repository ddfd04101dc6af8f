"""Keeps a value that costs many commands, so that one reading serves several viewers."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import dataclass
from datetime import datetime, timezone
from threading import Lock
from time import monotonic
from typing import Generic, TypeVar

from kombu_redisdelay.operations.deadline import at_most

T = TypeVar("T")


@dataclass(frozen=True)
class Read(Generic[T]):
    """What was read, and when."""

    value: T
    moment: datetime


class Kept(Generic[T]):
    """A value that is kept for a while. Any number of threads may use it: one reads, and the others wait. If
    reading fails, it fails for all that wait. Otherwise each of them would wait for a server that does not
    answer.

    Arguments:
        read: reads it.
        keep_for: for how many seconds it is kept, by the value and the seconds that it took to read it.
    """

    def __init__(self, read: Callable[[], T], keep_for: Callable[[T, float], float]) -> None:
        self._read = read
        self._keep_for = keep_for
        self._lock = Lock()
        self._until = 0.0
        self._failed: tuple[float, Exception] | None = None
        #: What was read last; ``None`` if nothing was.
        self.last: Read[T] | None = None

    def get(self) -> Read[T]:
        """What is kept. If that is too old, it is read again."""
        asked = monotonic()
        with self._lock:
            began = monotonic()
            if self.last is not None and began < self._until:
                return self.last
            if self._failed is not None and self._failed[0] > asked:
                # Each thread gets a copy: raising an exception changes it.
                raise copy(self._failed[1])
            moment = datetime.now(timezone.utc)
            try:
                # Without the time limit of this thread: it is read for others, too.
                with at_most(None):
                    self.last = Read(self._read(), moment)
            except Exception as exc:
                self._failed = monotonic(), exc
                raise
            ended = monotonic()
            self._until = ended + self._keep_for(self.last.value, ended - began)
            return self.last

    def forget(self) -> None:
        """Read it again when it is needed next."""
        self._until = 0.0
