"""Work in portions: how much one script may do, and what takes several round trips."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")
Result = TypeVar("Result")

#: Work that takes several round trips: it yields between two of them, so that a consumer does other things
#: meanwhile, and returns the result.
RoundTrips = Generator[None, None, Result]

#: Messages for one script at most, so that it never keeps Redis from its other clients for long.
MESSAGES_PER_CALL = 200

#: Bytes for one script, for the same reason. A message that is larger has a script to itself.
BYTES_PER_CALL = 256 * 1024

#: Bytes of names that one script notes.
NAME_BYTES_PER_CALL = 64 * 1024


def next_page(size: int, filled: int) -> int:
    """How many messages to read next, where a page of *size* had *filled* bytes."""
    return max(1, min(2 * size, MESSAGES_PER_CALL, size * BYTES_PER_CALL // max(1, filled)))


def portions(items: Iterable[T], size: Callable[[T], int], count: int, total: int) -> Iterator[list[T]]:
    """Split *items* into portions of at most *count* items. A portion also ends with the item that brings it
    to *total* bytes or more."""
    portion: list[T] = []
    filled = 0
    for item in items:
        portion.append(item)
        filled += size(item)
        if len(portion) >= count or filled >= total:
            yield portion
            portion, filled = [], 0
    if portion:
        yield portion


def finish(round_trips: RoundTrips[Result]) -> Result:
    """Make all *round_trips*, one after the other. Returns the result."""
    while True:
        try:
            next(round_trips)
        except StopIteration as stop:
            result: Result = stop.value
            return result
