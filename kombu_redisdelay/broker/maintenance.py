"""Maintenance of the queues of a consumer, a few at a time, so that the consumer stays ready for messages.

One round gives back what lost consumers hold, mends schedules that were damaged, drops failed tasks that are
too old, moves dead letters of an older release, checks keys, notes that the queues are in use, records their
history, and forgets queues and consumers that are unused.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Callable, Container, Sequence
from time import monotonic

from redis.exceptions import ResponseError

from kombu_redisdelay import metrics
from kombu_redisdelay.broker.failure import report_dropped
from kombu_redisdelay.broker.keeping import move_older, trim
from kombu_redisdelay.broker.keys import known_queues
from kombu_redisdelay.broker.lease_policy import LONGEST_WATCHED_LOOK_INTERVAL
from kombu_redisdelay.broker.limits import check_fair
from kombu_redisdelay.broker.message import task_and_id, which
from kombu_redisdelay.broker.options import Options
from kombu_redisdelay.broker.portions import RoundTrips
from kombu_redisdelay.broker.recovery import Recoverer
from kombu_redisdelay.broker.server.scripts import (
    CHECK_UNIQUE,
    FORGET,
    MEND_SCHEDULE,
    RECORD,
    TIDY,
    UNUSED,
    ScriptCall,
    run_each,
    try_each,
)
from kombu_redisdelay.broker.server.server import by_slot
from kombu_redisdelay.broker.server.wire import Argument, answers
from kombu_redisdelay.broker.store import KNOWN_FOR, Store, name_of
from kombu_redisdelay.broker.unlisted import Relisting

logger = logging.getLogger(__name__)

#: Queues that are maintained together, in one round trip: some milliseconds of the server's time.
QUEUES_AT_ONCE = 50

#: A damaged schedule is a rare accident, and failed tasks are kept for days.
ROUNDS_PER_MENDING = 6

#: Messages of a schedule that one script checks, so that it never keeps Redis from its other clients for
#: long.
MESSAGES_PER_SCRIPT = 100

#: Queues that one script records: half a millisecond of the server's time at most.
RECORDED_PER_SCRIPT = 10

#: Seconds after which a queue that was not noted again is looked at. A process that uses a queue notes it
#: again after :data:`~kombu_redisdelay.broker.store.KNOWN_FOR`. So no queue is forgotten that a process
#: believes to have noted.
UNUSED_FOR = 2 * KNOWN_FOR

#: Queues that are looked at together.
UNUSED_AT_ONCE = 200

#: Keys of messages that one script checks.
KEYS_PER_SCRIPT = 100

#: Consumers of a queue that are looked at together.
CONSUMERS_PER_SCRIPT = 100


class Maintenance:
    """Maintains the queues of a consumer, round after round.

    Arguments:
        interval: seconds that one round takes. The first round is made at once.
        unnoted: queues, without the numbers of partitions, that are not noted in Redis for operations on all
            queues.
    """

    def __init__(
        self,
        store: Store,
        recoverer: Recoverer,
        options: Options,
        interval: float,
        unnoted: Container[str] = (),
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._store = store
        self._recoverer = recoverer
        self._relisting = Relisting(store, recoverer.name, clock())
        self._options = options
        self._interval = interval
        self._unnoted = unnoted
        self._clock = clock
        #: Queues that are left to do in this round, in portions.
        self._left: deque[Sequence[str]] = deque()
        #: Queues that had no maintenance yet.
        self._new: list[str] = []
        self._known: set[str] = set()
        self._have_changed = True
        self._next_at = float("-inf")
        self._round_trips: RoundTrips[None] | None = None
        #: Where the next check of the keys of a queue begins.
        self._keys_checked: dict[str, Sequence[bytes]] = {}
        #: The same for the keys of fair queues.
        self._fair_checked: dict[str, tuple[bytes, bytes]] = {}
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
            self._round_trips = self._maintain(queues)
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
        yield from self._recoverer.recover(some, is_first=are_new)
        yield
        if are_new or self._round % ROUNDS_PER_MENDING == 0:
            yield from mend_schedules(self._store, self._options, some)
            yield
            # If that is refused, as by a full server, the rest is moved later.
            yield from move_older(self._store, some, refused=ResponseError)
            yield
            yield from trim(self._store, self._options, some)
            yield
        check_unique(self._store, some, self._keys_checked)
        yield
        self._relisting.search_at_once(check_fair(self._store, some, self._fair_checked))
        yield
        self._store.remember(*noted)
        yield
        record(self._store, noted)
        if self._new or self._left:
            return
        yield
        self._recoverer.keep_only(queues)
        looked_at = yield from forget_unused(self._store)
        if not are_new:
            self._round += 1
            yield
            searched = yield from self._relisting.go_on(queues, self._clock())
            if searched:
                check_fair(self._store, list(searched), self._fair_checked, searched)
        if looked_at >= UNUSED_AT_ONCE:
            self._next_at = self._clock()
        elif not are_new or self._next_at == float("-inf"):
            self._wait(len(queues))

    def _wait(self, queues: int) -> None:
        """Spread the round trips over the interval."""
        interval = self._interval
        if self._recoverer.is_watching:
            interval = min(interval, LONGEST_WATCHED_LOOK_INTERVAL)
        self._next_at = self._clock() + interval / max(1, -(-queues // QUEUES_AT_ONCE))


def mend_schedules(store: Store, options: Options, queues: Sequence[str]) -> RoundTrips[int]:
    """Give scheduled messages of *queues* that have lost their due time the one that they say themselves.
    Move those that say none to the dead letters. Returns how many both are."""
    cursors: dict[str, bytes] = dict.fromkeys(queues, b"0")
    dead: Counter[str] = Counter()
    scheduled: Counter[str] = Counter()
    briefs: dict[str, list[bytes]] = {}
    while True:
        calls = []
        for queue, cursor in cursors.items():
            k = store.keys(queue)
            keys = (k.schedule, k.messages, k.dead_index, k.duplicates)
            args = (cursor, MESSAGES_PER_SCRIPT, options.dead_letter_limit)
            calls.append((MEND_SCHEDULE, keys, args))
        replies = run_each(store.server, calls)
        for queue, (cursor, some_dead, dropped, some_briefs, again) in zip(
            list(cursors), replies, strict=True
        ):
            report_dropped(options, queue, dropped)
            dead[queue] += some_dead
            scheduled[queue] += again
            briefs.setdefault(queue, some_briefs)
            cursors[queue] = cursor
        cursors = {queue: cursor for queue, cursor in cursors.items() if cursor != b"0"}
        if not cursors:
            break
        yield
    for queue in queues:
        _report_mended(store, queue, dead[queue], briefs[queue], scheduled[queue])
    return sum(dead.values()) + sum(scheduled.values())


def _report_mended(store: Store, queue: str, dead: int, briefs: Sequence[bytes], scheduled: int) -> None:
    if scheduled:
        store.remember(queue)
        logger.warning(
            "%d scheduled message(s) of queue %r had lost their due time, and have the one that they say",
            scheduled,
            queue,
        )
    if dead:
        metrics.dead_lettered(queue, dead)
        store.remember(queue)
        logger.error(
            "%d scheduled message(s) of queue %r had no due time: dead letters now%s",
            dead,
            queue,
            which(map(task_and_id, briefs), dead),
        )


def check_unique(store: Store, queues: Sequence[str], begin_at: dict[str, Sequence[bytes]]) -> None:
    """Free keys that no message holds any more, and release messages that wait for them. Looks at some keys
    of those of *queues* that have any. Makes one or two round trips.

    Arguments:
        begin_at: queue -> where to begin. It is kept from one call to the next.
    """
    keys = {queue: store.keys(queue) for queue in queues}
    looks = (
        (("EXISTS", each.unique, each.running), ("ZCOUNT", each.schedule, "+inf", "+inf"))
        for each in keys.values()
    )
    counts = answers(store.server, (command for both in looks for command in both))
    some = [queue for queue, *found in zip(queues, counts[::2], counts[1::2], strict=True) if any(found)]
    calls: list[ScriptCall] = [
        (
            CHECK_UNIQUE,
            (keys[queue].wake, keys[queue].ready),
            (store.separator, KEYS_PER_SCRIPT, *begin_at.pop(queue, (b"0", b"0", b"0"))),
        )
        for queue in some
    ]
    begin_at.update(zip(some, run_each(store.server, calls), strict=True))


def record(store: Store, queues: Sequence[str]) -> None:
    """Record what has happened in *queues*, those that have no record of this minute. Makes one round trip.

    Others do the same, so a refusal does not matter to the caller: the next record then covers more than a
    minute.
    """
    some_each = by_slot(store.server, queues, lambda queue: store.keys(queue).wake, RECORDED_PER_SCRIPT)
    try_each(store.server, [_recording(store, some) for some in some_each])


def _recording(store: Store, queues: Sequence[str]) -> ScriptCall:
    expires_ms = " ".join([str(store.expires_ms.get(queue, 0)) for queue in queues])
    braces = int(store.server.has_slots)
    args: list[Argument] = [store.prefix, store.separator, braces, expires_ms, *store.steps]
    return RECORD, [store.keys(queue).wake for queue in queues], args


def forget_unused(store: Store) -> RoundTrips[int]:
    """Look at some of the queues that no process has noted for :data:`UNUSED_FOR`. Forget their lost
    consumers that hold nothing, and the queues themselves if they are empty. Any number of processes may do
    this at the same time.

    Returns:
        How many queues were looked at. If it is :data:`UNUSED_AT_ONCE`, there may be more.
    """
    known = (known_queues(store.prefix),)
    unused_ms = round(UNUSED_FOR * 1000)
    members = UNUSED(store.server, known, (unused_ms, UNUSED_AT_ONCE))
    if not members:
        return 0
    yield
    names = list(filter(None, map(name_of, members)))
    are_empty = run_each(store.server, [_tidying(store, name) for name in names])
    in_use = {name for name, is_empty in zip(names, are_empty, strict=True) if not is_empty}
    yield
    FORGET(store.server, known, (unused_ms, *(each for each in members if name_of(each) not in in_use)))
    yield
    store.remember(*in_use)
    return len(members)


def _tidying(store: Store, queue: str) -> ScriptCall:
    k = store.keys(queue)
    forgotten = (k.consumers, k.wake, k.duplicates, k.unknown, k.history)
    keys = (
        *forgotten,
        k.schedule,
        k.messages,
        k.limits,
        k.dead,
        k.dead_index,
        k.failed,
        k.finished,
        *store.ready_keys(queue),
    )
    return TIDY, keys, (k.unacked(""), CONSUMERS_PER_SCRIPT)
