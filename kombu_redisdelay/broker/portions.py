"""What one script may have at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")

#: So that a script never keeps Redis from its other clients for long.
MESSAGES_PER_CALL = 200

#: For the same reason. A message may be larger, and then has a script to itself.
BYTES_PER_CALL = 256 * 1024


def portions(items: Iterable[T], size: Callable[[T], int], count: int, total: int) -> Iterator[list[T]]:
    """*items* in portions of at most *count*, each of which ends with the item that fills it up to *total*
    bytes or more."""
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
