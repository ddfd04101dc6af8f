"""Whether queues are fair: their state, without a look at each key, and a few figures of their keys."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from math import ceil
from typing import Any

from kombu_redisdelay.broker import members
from kombu_redisdelay.broker.fair_keys import ON, KeyState, iter_keys
from kombu_redisdelay.broker.limits import FairQueues
from kombu_redisdelay.broker.server.scripts import READ_ORDERS, ScriptCall, run_each
from kombu_redisdelay.broker.server.wire import answers
from kombu_redisdelay.broker.store import Store
from kombu_redisdelay.operations.fair import KeyLimits, key_limits, together
from kombu_redisdelay.public import public

#: Keys that are looked at for each priority step, and those of them whose next messages are.
MOST_NEXT, MOST_FIRST = 1_000, 3

#: For the figures, keys that are looked at, and those of them whose next message is read: first these with
#: the most messages.
MOST_KEYS = 10_000
MOST_GREATEST, MOST_READ = 100, 1_000


@public
@dataclass(frozen=True, slots=True)
class Fairness:
    """The fairness of a queue: whether it is fair, and how many keys wait in it.

    Attributes:
        state: "on"; or "off" while workers move its messages back, because it is not to be fair any more.
        keys: how many keys wait for their turn or at a limit. A key with messages of two priorities may count
            twice. Of partitions, it is the greatest number.
        keys_at_limit: how many of these wait because of their limits, or are paused. Of more than 1,000 keys
            that wait for their turn, only the first ones are looked at.
        limits: the limits of every key.
        unsorted: how many ready messages workers have not sorted by key yet, or have moved back.
    """

    state: str
    keys: int
    keys_at_limit: int
    limits: KeyLimits
    unsorted: int = 0


@dataclass(frozen=True, slots=True)
class PartitionFairness:
    """How the messages of a fair partition wait, or those of a fair queue without partitions.

    Attributes:
        fairness: the same as for the queue.
        waits_for_keys: whether there are ready messages, and all are of keys at their limits.
        firsts: for each priority the keys whose turns are next, by their lists; if there are none, some that
            are at a limit.
    """

    fairness: Fairness
    waits_for_keys: bool
    firsts: Sequence[Sequence[str]]


def partition_fairness(store: Store, names: Sequence[str]) -> dict[str, PartitionFairness]:
    """Those of *names* that are fair. Makes a round trip, and another two if any is."""
    fair = FairQueues(store)
    states = {name: state for name, state in zip(names, fair.states(names), strict=True) if state}
    if not states:
        return {}
    replies = run_each(store.server, [_call(store, name) for name in states])
    every = fair.limits(list(states))
    return {
        name: _partition(store, name, state, key_limits(limits), reply)
        for (name, state), limits, reply in zip(states.items(), every, replies, strict=True)
    }


def fairness_together(each: Sequence[Fairness | None]) -> Fairness | None:
    """The fairness of a queue whose partitions have these."""
    found = [one for one in each if one is not None]
    if not found:
        return None
    keys, at_limit = max(one.keys for one in found), max(one.keys_at_limit for one in found)
    unsorted = sum(one.unsorted for one in found)
    return Fairness(together([one.state for one in found]), keys, at_limit, found[0].limits, unsorted)


def since_ms_of(store: Store, partitions: dict[str, PartitionFairness]) -> dict[str, int]:
    """Since when the next messages of fair queues wait, for each queue the earliest time of all priorities,
    in ms since the epoch. Queues are missing whose messages do not tell."""
    lists = [(name, some) for name, its in partitions.items() for some in its.firsts if some]
    replies = iter(answers(store.server, [("LINDEX", key, -1) for _, some in lists for key in some]))
    found: dict[str, int] = {}
    for name, some in lists:
        heads = [payload for payload in islice(replies, len(some)) if payload is not None]
        since_ms = members.due_ms(heads[0]) if heads else None
        if since_ms is not None:
            found[name] = min(since_ms, found.get(name, since_ms))
    return found


def _call(store: Store, name: str) -> ScriptCall:
    keys = (store.keys(name).limits, *store.ready_keys(name))
    return READ_ORDERS, keys, (MOST_NEXT, MOST_FIRST, *store.steps)


def _partition(
    store: Store, name: str, state: str, limits: KeyLimits, reply: Sequence[Any]
) -> PartitionFairness:
    keys = store.keys(name)
    at_limit, pairs, *rows = reply
    all_unsorted = turns = 0
    firsts: list[list[str]] = []
    for step, (unsorted, with_turn, empty, not_now, *some) in zip(store.steps, rows, strict=True):
        all_unsorted += unsorted
        turns, at_limit = turns + with_turn - empty - not_now, at_limit + not_now
        firsts.append([keys.key_list(step, key.decode(errors="replace")) for key in some])
    if not turns:
        steps = {b"%d" % step: step for step in store.steps}
        firsts = [
            [keys.key_list(steps[step], key.decode(errors="replace"))]
            for key, waiting in islice(zip(pairs[::2], pairs[1::2], strict=True), MOST_FIRST)
            for step in waiting.split()[::2]
            if step in steps
        ]
    fairness = Fairness(state, turns + at_limit, at_limit, limits, unsorted=all_unsorted)
    return PartitionFairness(fairness, bool(at_limit) and not turns and not all_unsorted, firsts)


@dataclass(frozen=True, slots=True)
class KeyFigures:
    """What is seen of the keys of a queue at one moment. A *quiet* key has no more ready messages than there
    are for each key on average, and no pause or limit keeps them. A message that no worker has sorted by key
    yet counts as one of a quiet key.

    Attributes:
        greatest_share: which part of the ready messages is of the key with the most; 0 if there are none.
        longest_wait: seconds for which the ready message has waited that has waited longest; 0 if there is
            none, ``None`` if that is unknown.
        quiet_wait: how many seconds the oldest message of a quiet key has waited: in 99 of 100 of these keys,
            no longer; 0 if there is no such key, ``None`` if that is unknown.
    """

    greatest_share: float
    longest_wait: float | None
    quiet_wait: float | None


def key_figures(store: Store, queue: str) -> KeyFigures:
    """The figures of *queue*, a fair one, from what is sorted. Looks at up to :data:`MOST_KEYS` keys."""
    names = store.partitions.names(queue)
    ready: dict[str, int] = {}
    lists: dict[str, list[str]] = {}
    at_limit: set[str] = set()
    for name in names:
        for state in islice(iter_keys(store, name), MOST_KEYS):
            if state.ready:
                ready[state.key] = ready.get(state.key, 0) + sum(state.ready.values())
                lists.setdefault(state.key, []).extend(_lists(store, name, state))
                if state.is_at_limit:
                    at_limit.add(state.key)
    unsorted_wait = _waits(store, {"": _unsorted_lists(store, names)}).get("", 0.0)
    if not ready:
        return KeyFigures(0.0, unsorted_wait, unsorted_wait)
    total = sum(ready.values())
    by_size = sorted(ready, key=lambda key: -ready[key])
    waits = _waits(store, {key: lists[key] for key in _some(by_size, list(ready))})
    quiet = {key for key, count in ready.items() if count * len(ready) <= total} - at_limit
    known = sorted(waits[key] for key in quiet if key in waits)
    longest = max(waits.values(), default=None)
    quiet_wait = known[ceil(0.99 * len(known)) - 1] if known else None if quiet else 0.0
    return KeyFigures(
        greatest_share=ready[by_size[0]] / total,
        longest_wait=None if longest is None else max(longest, unsorted_wait),
        quiet_wait=None if quiet_wait is None else max(quiet_wait, unsorted_wait),
    )


def _unsorted_lists(store: Store, names: Sequence[str]) -> list[str]:
    """The lists of what no worker has sorted by key yet, whose keys may all be quiet. While a queue is made
    plain, they have what was moved back instead: then none."""
    states = FairQueues(store).states(names)
    fair = [name for name, state in zip(names, states, strict=True) if state == ON]
    return [key for name in fair for key in store.ready_keys(name)]


def _lists(store: Store, name: str, state: KeyState) -> list[str]:
    keys = store.keys(name)
    return [keys.key_list(step, state.key) for step in state.ready]


def _some(by_size: Sequence[str], as_found: Sequence[str]) -> list[str]:
    """Redis tells the keys in no order, so the first ones are as good as any."""
    return list(dict.fromkeys([*by_size[:MOST_GREATEST], *as_found]))[:MOST_READ]


def _waits(store: Store, lists: dict[str, list[str]]) -> dict[str, float]:
    """For how many seconds the oldest message of each key has waited. Keys are missing whose messages do not
    tell."""
    now_ms = store.now_ms()
    each = [(key, list_) for key, some in lists.items() for list_ in some]
    heads = answers(store.server, (("LINDEX", list_, -1) for _, list_ in each))
    found: dict[str, float] = {}
    for (key, _), payload in zip(each, heads, strict=True):
        since_ms = None if payload is None else members.due_ms(payload)
        if since_ms is not None:
            found[key] = max(found.get(key, 0.0), (now_ms - since_ms) / 1000)
    return found
