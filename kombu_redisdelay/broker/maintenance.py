"""Maintenance of the queues of a consumer, a few at a time, so that the consumer stays ready for messages.

A round does every chore for every queue. Which chores there are, the rooms of their features say.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Container, Sequence
from time import monotonic

from kombu_redisdelay.broker import fair_counts, keeping, known_queues, recovery, schedule, unique, unlisted
from kombu_redisdelay.broker.options import Options
from kombu_redisdelay.broker.portions import Chore, RoundTrips, Turn, Upkeep
from kombu_redisdelay.broker.recovery import Recoverer
from kombu_redisdelay.broker.store import Store

#: Queues that are maintained together, in one round trip: some milliseconds of the server's time.
QUEUES_AT_ONCE = 50

#: All chores, in the order in which they are done.
CHORES: tuple[Chore, ...] = tuple(
    chore
    for room in (recovery, schedule, keeping, unique, unlisted, fair_counts, known_queues)
    for chore in room.CHORES
)


class Maintenance:
    """Maintains the queues of a consumer, round after round.

    Arguments:
        interval: seconds that one round takes. The first round is made at once.
        unnoted: queues, without the numbers of partitions, that are not noted in Redis for operations on all
            queues.
        limited: queues of which the consumer knows that their concurrency is limited. The caller changes it.
    """

    def __init__(
        self,
        store: Store,
        recoverer: Recoverer,
        options: Options,
        interval: float,
        unnoted: Container[str] = (),
        clock: Callable[[], float] = monotonic,
        limited: Collection[str] = (),
    ) -> None:
        self._store = store
        self._interval = interval
        self._unnoted = unnoted
        self._clock = clock
        self._upkeep = Upkeep(store, recoverer, options, clock, limited=limited)
        # What is done once a round comes last.
        self._chores = [
            (chore, chore.begin(self._upkeep)) for chore in sorted(CHORES, key=lambda each: each.is_for_all)
        ]
        #: Those that have a time of their own -> when that is.
        self._timed = {chore: float("-inf") for chore in CHORES if chore.seconds}
        self._timed_at = float("-inf")
        #: Queues that are left to do in this round, in portions.
        self._left: deque[Sequence[str]] = deque()
        #: Queues that had no maintenance yet.
        self._new: list[str] = []
        self._known: set[str] = set()
        self._have_changed = True
        self._next_at = float("-inf")
        self._round_trips: RoundTrips[object] | None = None
        #: How many rounds were made.
        self._round = 0
        #: How many times some queues were looked after, without an error.
        self.done = 0

    def queues_have_changed(self) -> None:
        """Maintain new queues soon. The others do not come more often for it."""
        self._have_changed = True

    def round_trip(self, queues: Sequence[str]) -> bool:
        """Make the next round trip, if it is time for one. Returns whether it is time for another.

        Raises:
            RedisError: as redis-py does. The next round trip is for other queues.
        """
        if self._round_trips is None:
            if self._have_changed:
                self._have_changed = False
                self._new += [queue for queue in queues if queue not in self._known]
                self._known = set(queues)
            if not self._is_time:
                return False
            self._round_trips = self._maintain(queues) if self._is_round else self._begin_timed(queues)
            if self._round_trips is None:
                return False
        try:
            next(self._round_trips)
        except StopIteration:
            self._round_trips = None
            self.done += 1
        except BaseException:
            self._round_trips = None
            raise
        return self._round_trips is not None or self._is_time

    @property
    def _is_time(self) -> bool:
        now = self._clock()
        return bool(self._new) or now >= self._next_at or now >= self._timed_at

    @property
    def _is_round(self) -> bool:
        return bool(self._new) or self._clock() >= self._next_at

    def _maintain(self, queues: Sequence[str]) -> RoundTrips[None]:
        are_new = bool(self._new)
        if are_new:
            some, self._new = self._new[:QUEUES_AT_ONCE], self._new[QUEUES_AT_ONCE:]
        else:
            if not self._left:
                starts = range(0, len(queues), QUEUES_AT_ONCE)
                self._left.extend(queues[start : start + QUEUES_AT_ONCE] for start in starts)
            some = list(self._left.popleft())
            self._wait(len(queues))
        # Others were cancelled meanwhile.
        some = [queue for queue in some if queue in queues]
        # Now: one that is cancelled later is not in use any more, and may not be among the unnoted then.
        noted = [queue for queue in some if self._store.partitions.queue_of(queue) not in self._unnoted]
        turn, is_last = Turn(some, noted, queues, are_new), not self._new and not self._left
        for chore, do in self._chores:
            is_now = are_new or self._round % chore.rounds == 0
            if is_now and (is_last or not chore.is_for_all) and not chore.seconds:
                yield from do(turn) or ()
                yield
        if is_last and not are_new:
            self._round += 1
        if is_last:
            had_others = are_new and self._next_at > float("-inf")
            self._wait(len(queues), at_the_latest=self._next_at if had_others else float("inf"))

    def _begin_timed(self, queues: Sequence[str]) -> RoundTrips[object] | None:
        """Begin with a chore whose time has come, and that has anything to do."""
        turn = Turn(queues, (), queues, are_new=False)
        for chore, do in self._chores:
            if chore.seconds and self._clock() >= self._timed[chore]:
                self._timed[chore] = self._clock() + chore.seconds
                if (round_trips := do(turn)) is not None:
                    return round_trips
        self._timed_at = min(self._timed.values(), default=float("inf"))
        return None

    def _wait(self, queues: int, at_the_latest: float = float("inf")) -> None:
        """Spread the round trips over the interval."""
        within, self._upkeep.within = min(self._interval, self._upkeep.within), float("inf")
        next_at = self._clock() + within / max(1, -(-queues // QUEUES_AT_ONCE))
        self._next_at = min(next_at, at_the_latest)
