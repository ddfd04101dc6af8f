"""Looks after the queues of a consumer, a few at a time, so that the consumer stays ready for messages."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Container, Sequence
from time import monotonic

from kombu_redisdelay.broker.janitor import QUEUES_PER_ROUND, Janitor
from kombu_redisdelay.broker.recorder import record
from kombu_redisdelay.broker.recoverer import Recoverer
from kombu_redisdelay.broker.steps import Steps
from kombu_redisdelay.broker.store import Store

#: Queues that are looked after together, in one round trip: some milliseconds of the server's time.
QUEUES_PER_STEP = 50

#: A damaged schedule is a rare accident.
ROUNDS_PER_SWEEP = 6

#: Seconds that a round takes at most while there are leases that should have been renewed.
WATCHING_INTERVAL = 2.0


class Rounds:
    """Goes round the queues of a consumer.

    Arguments:
        interval: seconds that one round takes. The first round is made at once.
        unnoted: queues that are not noted in Redis for operations on all queues.
    """

    def __init__(
        self,
        store: Store,
        recoverer: Recoverer,
        interval: float,
        unnoted: Container[str] = (),
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._store = store
        self._recoverer = recoverer
        self._janitor = Janitor(store)
        self._interval = interval
        self._unnoted = unnoted
        self._clock = clock
        #: Queues that are left to do in this round, in parts.
        self._left: deque[Sequence[str]] = deque()
        #: Queues that were not looked at yet.
        self._new: list[str] = []
        self._known: set[str] = set()
        self._have_changed = True
        self._next_at = float("-inf")
        self._steps: Steps[None] | None = None
        #: How many rounds were made.
        self._round = 0

    def queues_have_changed(self) -> None:
        """Look after new queues soon. The others are not looked at more often for it."""
        self._have_changed = True

    def step(self, queues: Sequence[str]) -> bool:
        """Make the next round trip, if it is time for one. Returns whether it is time for another.

        Raises:
            RedisError: as redis-py does. The next step looks at other queues.
        """
        if self._steps is None:
            if self._have_changed:
                self._have_changed = False
                self._new += [queue for queue in queues if queue not in self._known]
                self._known = set(queues)
            if not self._is_time:
                return False
            self._steps = self._look_after(queues)
        try:
            next(self._steps)
        except StopIteration:
            self._steps = None
        except BaseException:
            self._steps = None
            raise
        return self._steps is not None or self._is_time

    @property
    def _is_time(self) -> bool:
        return bool(self._new) or self._clock() >= self._next_at

    def _look_after(self, queues: Sequence[str]) -> Steps[None]:
        are_new = bool(self._new)
        if are_new:
            some, self._new = self._new[:QUEUES_PER_STEP], self._new[QUEUES_PER_STEP:]
        else:
            if not self._left:
                starts = range(0, len(queues), QUEUES_PER_STEP)
                self._left.extend(queues[start : start + QUEUES_PER_STEP] for start in starts)
            some = list(self._left.popleft())
            self._wait(len(queues))
        # Others were cancelled meanwhile.
        some = [queue for queue in some if queue in queues]
        yield from self._recoverer.recover(some, is_first=are_new)
        yield
        if are_new or self._round % ROUNDS_PER_SWEEP == 0:
            yield from self._recoverer.sweep(some)
            yield
        noted = [queue for queue in some if queue not in self._unnoted]
        self._store.remember(*noted)
        yield
        record(self._store, noted)
        if self._new or self._left:
            return
        yield
        self._recoverer.keep_only(queues)
        looked_at = yield from self._janitor.tidy()
        if not are_new:
            self._round += 1
        if looked_at >= QUEUES_PER_ROUND:
            self._next_at = self._clock()
        elif not are_new or self._next_at == float("-inf"):
            self._wait(len(queues))

    def _wait(self, queues: int) -> None:
        """Spread the steps over the interval."""
        interval = min(self._interval, WATCHING_INTERVAL) if self._recoverer.is_watching else self._interval
        self._next_at = self._clock() + interval / max(1, -(-queues // QUEUES_PER_STEP))
