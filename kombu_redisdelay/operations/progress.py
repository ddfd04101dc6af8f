"""Tells how far an operation on many messages is."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")

#: Progress is told each time that this number of messages was looked at.
_EVERY = 100

#: The argument *progress* of an operation: called with the number of messages that it was done to so far.
Tell = Callable[[int], object]


class Progress:
    """Counts what is done, and tells it.

    Arguments:
        tell: called with the count so far, between two round trips; ``None`` for none. It may raise an
            exception to end the operation there.

    Attributes:
        count: how many messages it was done to so far.
    """

    def __init__(self, tell: Tell | None) -> None:
        self.count = 0
        self._tell = tell
        self._looked_at = 0

    def look(self) -> None:
        """A message is looked at, and everything that was begun before is done."""
        self._looked_at += 1
        if self._looked_at % _EVERY == 0:
            self.tell()

    def watching(self, messages: Iterable[T]) -> Iterator[T]:
        """*messages*, of which each is looked at."""
        for each in messages:
            self.look()
            yield each

    def add_portion(self, count: int) -> None:
        """It was done to *count* messages in one round trip."""
        self.count += count
        self.tell()

    def tell(self) -> None:
        if self._tell is not None:
            self._tell(self.count)
