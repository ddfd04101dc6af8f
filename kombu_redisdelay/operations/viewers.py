"""What many viewers need: a time limit for each, one reading for all of them, and errors in words."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from copy import copy
from dataclasses import dataclass
from datetime import datetime, timezone
from threading import Lock
from time import monotonic
from typing import Generic, TypeVar

from kombu.exceptions import OperationalError
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError

from kombu_redisdelay.refusals import refusal_of
from kombu_redisdelay.words import printable


class TookTooLongError(Exception):
    """An operation was not done in time."""


_ends: ContextVar[float | None] = ContextVar("redisdelay_ends", default=None)


@contextmanager
def at_most(seconds: float | None) -> Iterator[None]:
    """Limit the time of what this thread does in the block. It ends between two steps, each of which is
    bounded.

    Arguments:
        seconds: ``None`` for any time, also within another one.

    Raises:
        TookTooLongError: from the next step after that time, in the block.
    """
    before = _ends.get()
    ends = None if seconds is None else monotonic() + seconds
    token = _ends.set(ends if before is None or ends is None else min(before, ends))
    try:
        yield
    finally:
        _ends.reset(token)


def check_deadline() -> None:
    """Raise :class:`TookTooLongError` if the time is over."""
    ends = _ends.get()
    if ends is not None and monotonic() > ends:
        raise TookTooLongError


T = TypeVar("T")


@dataclass(frozen=True)
class Read(Generic[T]):
    """What was read, and when."""

    value: T
    moment: datetime


class Cached(Generic[T]):
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


#: The broker cannot be reached, or does not answer.
UNREACHABLE = (RedisConnectionError, RedisTimeoutError, OperationalError, ConnectionError, TimeoutError)

#: The broker cannot be reached, refuses the login, or refuses a command.
BROKER_ERRORS = (RedisError, OperationalError, ConnectionError, TimeoutError)


def may_pass(error: BaseException) -> bool:
    """Whether *error*, of a broker, may be over a little later: it is away, or refuses for a while."""
    refusal = refusal_of(error)
    return isinstance(error, UNREACHABLE) if refusal is None else refusal.is_for_a_while


def why(error: BaseException) -> str:
    """What *error* says, in a line that is safe to print. If a server has refused, what is wrong and what to
    do comes first."""
    said = " ".join(str(error).split()) or type(error).__name__
    refusal = refusal_of(error)
    if refusal is not None and refusal.hint not in said:
        said = f"{refusal.hint} ({said.rstrip('.')})"
    return printable(said)
