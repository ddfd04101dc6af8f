"""Recognises messages that are read twice, because they move meanwhile."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

MessageT = TypeVar("MessageT")


# slots do not go together with Generic and Python 3.10.
@dataclass(frozen=True)
class Found(Generic[MessageT]):
    """A message, and what tells it from others.

    Attributes:
        identity: no other message has it, if *is_unique*.
        is_unique: whether it was published with a delivery tag.
        is_sure: whether this very entry was certainly not read before.
    """

    message: MessageT
    identity: object
    is_unique: bool
    is_sure: bool = True


def without_repetitions(found: Iterable[Found[MessageT]]) -> Iterator[MessageT]:
    """The messages, each once. One without a delivery tag may look like another one. It is left out only if
    it may have been read before."""
    known: set[int] = set()
    for each in found:
        key = hash(each.identity)
        if key in known and (each.is_unique or not each.is_sure):
            continue
        known.add(key)
        yield each.message
