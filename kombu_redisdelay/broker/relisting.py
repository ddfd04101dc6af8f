"""When the queues of a consumer are searched for what no key lists any more (:mod:`.unlisted`)."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable
from random import uniform

from kombu_redisdelay.broker.portions import RoundTrips
from kombu_redisdelay.broker.server.scripts import CLAIM, run_each
from kombu_redisdelay.broker.store import Store
from kombu_redisdelay.broker.unlisted import Found, Unlisted, search

logger = logging.getLogger(__name__)

#: Seconds from one search for a queue to the next, by whichever consumer.
INTERVAL = 3600.0

#: Of a database with more keys, the interval is as many times longer.
KEYS_PER_INTERVAL = 1_000_000

#: Seconds in which the consumers of a fleet that begin at the same time ask for the first one.
SPREAD = 60.0

#: Seconds for which one consumer searches for a queue that has lost something.
AT_ONCE = 60.0

#: Round trips that are made together. Then it is the turn of other chores.
ROUND_TRIPS = 100

#: Queues that are claimed together.
QUEUES_AT_ONCE = 50


class Relisting:
    """Searches for the queues of a consumer: each hour, if no other consumer does, and at once for a fair
    queue of which something was lost.

    Arguments:
        who: name of the consumer.
        now: seconds of a clock that cannot be set.
    """

    def __init__(self, store: Store, who: str, now: float) -> None:
        self._store = store
        self._who = who
        self._next_at = now + uniform(0, SPREAD)
        #: Those that have lost something.
        self._urgent: set[str] = set()
        self._search: RoundTrips[None] | None = None
        self._found = Found()
        #: Those that are searched for now, and whether that is urgent.
        self._queues: frozenset[str] = frozenset()
        self._is_urgent = False

    def search_at_once(self, queues: Iterable[str]) -> None:
        """Search for these *queues* before all others."""
        self._urgent.update(queues)

    def go_on(self, queues: Collection[str], now: float) -> RoundTrips[Collection[str]]:
        """Make the next round trips of a search for *queues*, if it is time for one.

        Returns:
            The queues of :meth:`search_at_once` for which a search has just ended.
        """
        if self._search is None:
            yield from self._begin(queues, now)
        if self._search is None:
            return ()
        try:
            for _ in range(ROUND_TRIPS):
                next(self._search)
                yield
        except StopIteration:
            self._search = None
            yield from self._end(now)
            return self._queues if self._is_urgent else ()
        except BaseException:
            self._search = None
            raise
        return ()

    def _begin(self, queues: Collection[str], now: float) -> RoundTrips[None]:
        claimed: set[str] = set()
        self._is_urgent = bool(self._urgent)
        if self._is_urgent:
            wanted, self._urgent = self._urgent & set(queues), set()
            claimed = yield from self._claim(wanted, "unlisted-now", AT_ONCE)
        elif now >= self._next_at:
            self._next_at = now + INTERVAL
            claimed = yield from self._claim(queues, "unlisted", INTERVAL)
        if claimed:
            self._queues, self._found = frozenset(claimed), Found()
            self._search = search(self._store, self._found, self._queues)

    def _end(self, now: float) -> RoundTrips[None]:
        for queue, some in self._found.queues.items():
            report(queue, some)
        if self._found.is_refused:
            # doctor says so.
            self._next_at = float("inf")
        elif not self._is_urgent and self._found.keys > KEYS_PER_INTERVAL:
            interval = INTERVAL * self._found.keys / KEYS_PER_INTERVAL
            self._next_at = now + interval
            yield from self._claim(self._queues, "unlisted", interval)

    def _claim(self, queues: Iterable[str], what: str, seconds: float) -> RoundTrips[set[str]]:
        """Those of *queues* that no other consumer has claimed for this."""
        left, claimed = list(queues), set()
        args = (self._who, round(seconds * 1000))
        for first in range(0, len(left), QUEUES_AT_ONCE):
            some = left[first : first + QUEUES_AT_ONCE]
            keys = [(self._store.keys(queue).claim(what),) for queue in some]
            replies = run_each(self._store.server, [(CLAIM, key, args) for key in keys])
            claimed |= {queue for queue, is_ours in zip(some, replies, strict=True) if is_ours}
            yield
        return claimed


def report(queue: str, some: Unlisted) -> None:
    """Log what was not listed of *queue*, and is again."""
    if some.consumers:
        logger.warning(
            "Listed %d consumer(s) of queue %r with %d message(s) again, because keys in Redis were lost",
            some.consumers,
            queue,
            some.unacked,
        )
    if some.lists:
        logger.warning(
            "Gave %d key(s) of queue %r with %d message(s) a turn again, because keys in Redis were lost",
            some.lists,
            queue,
            some.sorted_in,
        )
