"""The keys of a queue: what waits with each of them, and what they are allowed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

from kombu_redisdelay.broker import fair_keys, members
from kombu_redisdelay.broker.fair_keys import (
    KEYS_PER_PAGE,
    KeyState,
    greatest_keys,
    iter_names,
    key_of,
    key_states,
)
from kombu_redisdelay.broker.limits import FairQueues
from kombu_redisdelay.broker.paging import walk
from kombu_redisdelay.broker.schedule import upcoming
from kombu_redisdelay.broker.server.wire import answers
from kombu_redisdelay.broker.store import Store
from kombu_redisdelay.broker.unacked import UnackedHashes
from kombu_redisdelay.operations.fair import NO_LIMITS, KeyLimits, key_limits, limits_of_state, together
from kombu_redisdelay.operations.fairness import fairness_together, partition_fairness
from kombu_redisdelay.public import public

#: Keys that an operator looks at, if a queue has very many: those with the most ready messages.
MOST_KEYS = 1_000

#: Messages whose keys are not in any list or counter are read: no more of each state than this.
MOST_READ = 10_000


@public
@dataclass(frozen=True, slots=True)
class KeyStats:
    """What there is to know of one key of a queue.

    Attributes:
        key: the key; empty for messages without one.
        ready: number of ready messages.
        scheduled: number of scheduled messages. ``None`` if the queue has more than 10,000: they are in no
            order by key, and all would have to be read.
        unacked: number of unacked messages. ``None`` if the queue has more than 10,000, for the same reason.
        waiting: seconds for which its oldest ready message has waited; 0 if nothing is ready, ``None`` if
            that is unknown, because another transport has published these messages.
        limits: whether it is paused, and its limits: its own, and else those of every key.
        own: the same, without those of every key.
        is_at_limit: whether it has ready messages, and a pause or a limit of this key keeps them.
    """

    key: str
    ready: int
    scheduled: int | None
    unacked: int | None
    waiting: float | None
    limits: KeyLimits
    is_at_limit: bool = False
    own: KeyLimits = NO_LIMITS


@public
@dataclass(frozen=True, slots=True)
class QueueKeys:
    """The keys of a queue.

    Attributes:
        queue: name of the queue.
        fair: "on" if it is fair, "off" while workers move its messages back, empty if it is not fair.
        limits: the limits of every key.
        keys: those that have messages, or are paused, or have limits of their own; or, of too many, some.
        count: how many such keys the queue has. If *keys* are only some, one with messages of two priorities
            may count twice, and of partitions, it is the greatest number.
        unread: number of ready messages that are missing in *keys*. It is not 0 only if more than 10,000 are
            not sorted by key: because the queue is not fair, or no worker has looked at it since they came.
    """

    queue: str
    fair: str
    limits: KeyLimits
    keys: Sequence[KeyStats]
    count: int
    unread: int = 0


@dataclass
class _Found:
    """What is found of a key in all partitions, bit by bit.

    Attributes:
        heads: of its lists, since when the next message waits, ms since the epoch; ``None`` if that is
            unknown.
    """

    ready: int = 0
    scheduled: int = 0
    unacked: int = 0
    heads: list[float | None] = field(default_factory=list)
    states: list[KeyState] = field(default_factory=list)


def queue_keys(store: Store, queue: str, most: int | None = None, also: str = "") -> QueueKeys:
    """The keys of *queue*. Makes a few round trips for every 200 of them, and reads up to :data:`MOST_READ`
    messages in each state that is not counted for each key.

    Arguments:
        most: of the keys whose messages are sorted, no more than these with most of them are read, and no
            more of those that have limits of their own. ``None`` for all.
        also: a key that is read in any case.
    """
    fair, names = FairQueues(store), store.partitions.names(queue)
    found: defaultdict[str, _Found] = defaultdict(_Found)
    are_all = [_add_keys(store, name, found, most) for name in names]
    if also:
        found.setdefault(also, _Found())
    unread = sum(_add_unsorted(store, name, found) for name in names)
    has_unacked, has_scheduled = _add_unacked(store, names, found), _add_scheduled(store, names, found)
    for name in names:
        _add_states(store, name, found)
    [every], now_ms, state = fair.limits(names[:1]), store.now_ms(), together(fair.states(names))
    keys = []
    for key, each in found.items():
        limits = limits_of_state(every, each.states[0])
        stats = KeyStats(
            key,
            ready=each.ready,
            scheduled=each.scheduled if has_scheduled else None,
            unacked=each.unacked if has_unacked else None,
            waiting=_waiting(each.heads, now_ms),
            limits=limits,
            is_at_limit=bool(each.ready) and any(its.is_at_limit for its in each.states),
            own=limits_of_state(fair_keys.StoredKeyLimits(), each.states[0]),
        )
        if key != also or _is_any(stats):
            keys.append(stats)
    count = len(keys) if all(are_all) else max(len(keys), _count(store, names))
    return QueueKeys(queue, state, key_limits(every), keys, count, unread)


def keys_without_messages(store: Store, queue: str, some: Sequence[str]) -> list[str]:
    """Those of *some* keys of which no message is in *queue*. A key is missing if that is unknown, because
    more than :data:`MOST_READ` messages would have to be read."""
    names = store.partitions.names(queue)
    sorted_by_key = {state.key for name in names for state in key_states(store, name, some) if state.ready}
    left = [key for key in some if key not in sorted_by_key]
    if not left:
        return []
    found: defaultdict[str, _Found] = defaultdict(_Found)
    unread = sum(_add_unsorted(store, name, found) for name in names)
    are_read = _add_unacked(store, names, found), _add_scheduled(store, names, found)
    return [key for key in left if key not in found] if all(are_read) and not unread else []


def _add_keys(store: Store, name: str, found: dict[str, _Found], most: int | None) -> bool:
    """Note the names of the keys whose messages are sorted, and of those that have limits of their own.
    Returns whether they are all."""
    if most is None:
        sources = [list(iter_names(store, name))]
    else:
        limited = list(islice(iter_names(store, name, only_limited=True), most))
        sources = [greatest_keys(store, name, most), limited]
    for some in sources:
        for key in some:
            found.setdefault(key, _Found())
    return most is None or all(len(some) < most for some in sources)


def _count(store: Store, names: Sequence[str]) -> int:
    fairness = fairness_together([each.fairness for each in partition_fairness(store, names).values()])
    return 0 if fairness is None else fairness.keys


def _is_any(key: KeyStats) -> bool:
    """Whether there is anything of it."""
    has_messages = key.ready or key.scheduled or key.unacked
    return bool(has_messages or key.limits.is_own)


def _add_unsorted(store: Store, name: str, found: defaultdict[str, _Found]) -> int:
    """What is not sorted by key. Returns how many are left out."""
    lists = store.ready_keys(name)
    left = MOST_READ
    for key in lists:
        for entry in islice(walk(store.server, [key]), left):
            of_key = found[key_of(entry.data).key]
            of_key.ready += 1
            of_key.heads.append(members.due_ms(entry.data))
            left -= 1
    lengths: list[int] = answers(store.server, (("LLEN", key) for key in lists)) if left <= 0 else []
    return max(0, sum(lengths) - MOST_READ)


def _add_unacked(store: Store, names: Sequence[str], found: defaultdict[str, _Found]) -> bool:
    """Returns whether they could be counted."""
    hashes = UnackedHashes(store)
    if sum(hashes.counts(names)) > MOST_READ:
        return False
    for name in names:
        for each in hashes.iter(name):
            found[key_of(each.payload).key].unacked += 1
    return True


def _add_scheduled(store: Store, names: Sequence[str], found: defaultdict[str, _Found]) -> bool:
    """Returns whether they could be counted."""
    if sum(answers(store.server, (("ZCARD", store.keys(name).schedule) for name in names))) > MOST_READ:
        return False
    for each in upcoming(store, names):
        found[key_of(each.payload).key].scheduled += 1
    return True


def _add_states(store: Store, name: str, found: Mapping[str, _Found]) -> None:
    """What is sorted of the keys that were found, and what they are allowed."""
    keys, each = store.keys(name), list(found)
    for first in range(0, len(each), KEYS_PER_PAGE):
        states = key_states(store, name, each[first : first + KEYS_PER_PAGE])
        lists = [(state.key, keys.key_list(step, state.key)) for state in states for step in state.ready]
        heads = answers(store.server, (("LINDEX", key_list, -1) for _, key_list in lists)) if lists else []
        for (key, _), payload in zip(lists, heads, strict=True):
            if payload is not None:
                found[key].heads.append(members.due_ms(payload))
        for state in states:
            found[state.key].ready += sum(state.ready.values())
            found[state.key].states.append(state)


def _waiting(heads: Sequence[float | None], now_ms: float) -> float | None:
    known = [since_ms for since_ms in heads if since_ms is not None]
    if not known:
        return None if heads else 0.0
    return max(0.0, (now_ms - min(known)) / 1000)
