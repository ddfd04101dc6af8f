"""A time limit for an operation that a person waits for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from time import monotonic


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
