"""Work in portions: how much one script may do, what takes several round trips, and the chores of a consumer,
which it does again and again beside its messages."""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING, NamedTuple, TypeVar

if TYPE_CHECKING:
    from kombu_redisdelay.broker.options import Options
    from kombu_redisdelay.broker.recovery import Recoverer
    from kombu_redisdelay.broker.store import Store

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


class Turn(NamedTuple):
    """What is done at one time.

    Attributes:
        queues: a portion of the queues of the consumer.
        noted: those of them that are noted in Redis, for operations on all queues.
        all_queues: all of its queues.
        are_new: whether nothing was done for this portion before.
    """

    queues: Sequence[str]
    noted: Sequence[str]
    all_queues: Sequence[str]
    are_new: bool


@dataclass
class Upkeep:
    """What the chores of one consumer work with, and tell each other.

    Attributes:
        clock: seconds of a clock that cannot be set.
        lost: queues that have lost something that only a search of the database finds.
        searched: those for which such a search has ended.
        limited: queues of which the consumer knows that they, or their keys, have a limited concurrency.
        within: in how many seconds the next turn should be, if that is soon.
    """

    store: Store
    recoverer: Recoverer
    options: Options
    clock: Callable[[], float]
    lost: set[str] = field(default_factory=set)
    searched: set[str] = field(default_factory=set)
    limited: Collection[str] = ()
    within: float = inf

    def hurry(self, within: float) -> None:
        """Have the next turn *within* some seconds."""
        self.within = min(self.within, within)


#: Does something, in one round trip or in several.
Doing = Callable[[Turn], "RoundTrips[object] | None"]


@dataclass(frozen=True, slots=True)
class Chore:
    """Something that each consumer does for its queues again and again.

    Attributes:
        name: what is done.
        begin: makes the function that does it for one consumer.
        rounds: it is done each so many rounds, and for new queues at once.
        is_for_all: whether it is done once a round, and not for each portion of the queues.
        seconds: if above 0, it is done each so many seconds, if there is anything to do, and not in rounds.
    """

    name: str
    begin: Callable[[Upkeep], Doing]
    rounds: int = 1
    is_for_all: bool = False
    seconds: float = 0.0
