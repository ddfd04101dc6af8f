"""What costs many commands, and is shown to several viewers before it is read again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timezone
from threading import Lock
from time import monotonic
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Read(Generic[T]):
    """What was read, and when."""

    value: T
    moment: datetime


class Kept(Generic[T]):
    """Any number of threads may use it. One reads, and the others wait for that.

    Arguments:
        read: reads it.
        keep_for: for how many seconds it is kept, by the value and the seconds that it took to read it.
    """

    def __init__(self, read: Callable[[], T], keep_for: Callable[[T, float], float]) -> None:
        self._read = read
        self._keep_for = keep_for
        self._lock = Lock()
        self._until = 0.0
        #: What was read last; ``None`` if nothing was.
        self.last: Read[T] | None = None

    def get(self) -> Read[T]:
        """What is kept. If that is too old, it is read again."""
        with self._lock:
            began = monotonic()
            if self.last is None or began >= self._until:
                moment = datetime.now(timezone.utc)
                self.last = Read(self._read(), moment)
                ended = monotonic()
                self._until = ended + self._keep_for(self.last.value, ended - began)
            return self.last

    def forget(self) -> None:
        """Read it again when it is needed next."""
        self._until = 0.0
