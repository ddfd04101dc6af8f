"""Finds what no key lists any more, because one was lost, and lists it again.

Redis may evict a key, and a person may delete one. Consumers that hold messages, keys of fair queues that
have some, and the queues themselves are listed in other keys. What is not listed there is known by its name
only: so the whole database is searched, in portions. :class:`Relisting` says when.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from random import uniform
from typing import TYPE_CHECKING

from redis.exceptions import ConnectionError, NoPermissionError, ResponseError, TimeoutError

from kombu_redisdelay.broker.keys import STAYS, known_queues, names_of
from kombu_redisdelay.broker.portions import Chore, Doing, RoundTrips, Turn, Upkeep
from kombu_redisdelay.broker.server.scripts import CLAIM, RELIST, ScriptCall, run_each, try_each
from kombu_redisdelay.broker.server.wire import answers

if TYPE_CHECKING:
    from kombu_redisdelay.broker.store import Store

logger = logging.getLogger(__name__)

#: Keys of the database that the server looks at in one round trip.
KEYS_PER_CALL = 1000

#: Names that one script gets.
NAMES_PER_SCRIPT = 200

#: Keys that a queue has only if it is to be among the known ones. One that only has consumers is noted by
#: these.
_OF_KNOWN = frozenset(name.encode() for name in names_of(STAYS)) - {b"consumers"}

#: Keys that another key lists: unacked hashes, and lists and turns of a fair queue.
_LISTED = re.compile(rb"unacked:|turns:|\d*:")

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


@dataclass(frozen=True, slots=True)
class Unlisted:
    """What was not listed of a queue.

    Attributes:
        consumers: how many consumers hold messages and were not listed.
        unacked: how many messages they hold.
        lists: how many lists of keys of a fair queue had no turn.
        sorted_by_key: how many messages are in these.
        scheduled: how many scheduled messages had lost their due times.
        kept: how many failed tasks and dead letters were not listed.
        is_unknown: whether the queue was not among the known ones.
    """

    consumers: int = 0
    unacked: int = 0
    lists: int = 0
    sorted_by_key: int = 0
    scheduled: int = 0
    kept: int = 0
    is_unknown: bool = False

    def plus(self, other: Unlisted) -> Unlisted:
        return Unlisted(
            self.consumers + other.consumers,
            self.unacked + other.unacked,
            self.lists + other.lists,
            self.sorted_by_key + other.sorted_by_key,
            self.scheduled + other.scheduled,
            self.kept + other.kept,
            self.is_unknown or other.is_unknown,
        )


@dataclass
class Found:
    """What a search has found so far.

    Attributes:
        queues: what was not listed of each queue of which there was something.
        keys: how many keys of the database were looked at, about.
        is_whole: whether no part of the database had to be left out.
        is_refused: whether this user may not search the database.
    """

    queues: dict[str, Unlisted] = field(default_factory=dict)
    keys: int = 0
    is_whole: bool = True
    is_refused: bool = False

    def add(self, queue: str, some: Unlisted) -> None:
        self.queues[queue] = self.queues.get(queue, Unlisted()).plus(some)


def search(
    store: Store, found: Found, queues: Container[str] | None = None, *, only_looks: bool = False
) -> RoundTrips[None]:
    """Look for what is not listed, and list it again. Any number of processes may do so at the same time.

    Arguments:
        found: is told what was found.
        queues: those whose messages are looked for; ``None`` for all. Whether a queue is known is looked up
            for all.
        only_looks: whether nothing is listed again.

    Raises:
        RedisError: the connection failed. On a cluster, a server that is away is left out.
    """
    for names in _names(store, found, ""):
        if names:
            yield
            wanted = names if queues is None else {each: names[each] for each in names if each in queues}
            _look_at(store, found, wanted, only_looks)
            yield
            _note_unknown(store, found, names, only_looks)
        yield


def search_for(store: Store, queue: str) -> Unlisted:
    """Look for what is not listed of *queue*, and list it again. Returns what that was."""
    found = Found()
    for names in _names(store, found, queue):
        _look_at(store, found, names, only_looks=False)
    return found.queues.get(queue, Unlisted())


def _names(store: Store, found: Found, queue: str) -> Iterator[dict[str, list[bytes]]]:
    """The keys of the queues, or of one *queue*, in portions: for each queue the names that they have behind
    that of the queue."""
    begins = f"{store.prefix}redisdelay:{{"
    pattern = f"{_literally(f'{begins}{queue}}}:' if queue else begins)}*"
    for server in store.server.servers():
        cursor = b"0"
        while True:
            try:
                cursor, keys = server.call("SCAN", cursor, "MATCH", pattern, "COUNT", KEYS_PER_CALL)
            except NoPermissionError:
                found.is_whole, found.is_refused = False, True
                return
            except (ConnectionError, TimeoutError):
                if not store.server.has_slots:
                    raise
                found.is_whole = False
                break
            found.keys += KEYS_PER_CALL
            yield dict(_by_queue(keys, len(begins.encode())))
            if cursor == b"0":
                break


def _literally(text: str) -> str:
    """A pattern of Redis that only *text* fits."""
    return re.sub(r"([*?\[\]\\^])", r"\\\1", text)


def _by_queue(keys: Iterable[bytes], start: int) -> Iterator[tuple[str, list[bytes]]]:
    """Each queue with the names that its *keys* have behind that of the queue."""
    names: dict[bytes, list[bytes]] = {}
    for key in keys:
        queue, _, name = key[start:].partition(b"}:")
        names.setdefault(queue, []).append(name)
    for queue, some in names.items():
        try:
            yield queue.decode(), some
        except UnicodeDecodeError:
            # No program can use such a queue.
            continue


def _look_at(store: Store, found: Found, names: Mapping[str, Sequence[bytes]], only_looks: bool) -> None:
    calls: list[ScriptCall] = []
    queues = []
    for queue, all_names in names.items():
        some = [name for name in all_names if _LISTED.match(name)]
        for first in range(0, len(some), NAMES_PER_SCRIPT):
            calls.append(relisting(store, queue, some[first : first + NAMES_PER_SCRIPT], only_looks))
            queues.append(queue)
    for queue, reply in zip(queues, try_each(store.server, calls), strict=True):
        if isinstance(reply, ResponseError):
            # A key of it has another type, for example.
            logger.debug("Could not look at queue %r: %s", queue, reply)
            found.is_whole = False
        elif any(reply):
            found.add(queue, Unlisted(*reply))
            if not only_looks:
                # It may have been forgotten meanwhile.
                store.remember(queue)


def relisting(store: Store, queue: str, names: Sequence[bytes], only_looks: bool = False) -> ScriptCall:
    """The call that lists these keys of *queue* again. Without any, it only sees to it that what is sorted
    is moved back if the queue is not said to be fair any more."""
    keys = store.keys(queue)
    return RELIST, (keys.consumers, keys.wake, keys.limits), (int(only_looks), *names)


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
            some.sorted_by_key,
        )


def _note_unknown(store: Store, found: Found, names: Mapping[str, Sequence[bytes]], only_looks: bool) -> None:
    queues = [queue for queue, some in names.items() if any(name in _OF_KNOWN for name in some)]
    if not queues:
        return
    [noted] = answers(store.server, [("ZMSCORE", known_queues(store.prefix), *queues)])
    unknown = [queue for queue, at in zip(queues, noted, strict=True) if at is None]
    for queue in unknown:
        found.add(queue, Unlisted(is_unknown=True))
    if unknown and not only_looks:
        store.remember(*unknown)


def _searching(upkeep: Upkeep) -> Doing:
    relisting = Relisting(upkeep.store, upkeep.recoverer.name, upkeep.clock())

    def go_on(turn: Turn) -> RoundTrips[None]:
        if not turn.are_new:
            relisting.search_at_once(upkeep.lost)
            upkeep.lost.clear()
            searched = yield from relisting.go_on(turn.all_queues, upkeep.clock())
            upkeep.searched.update(searched)

    return go_on


CHORES = (Chore("list again what no key lists", _searching, is_for_all=True),)
