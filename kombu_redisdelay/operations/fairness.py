"""The state of fair queues, as far as it is known without looking at each key."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from kombu_redisdelay.broker import members
from kombu_redisdelay.broker.limits import FairQueues
from kombu_redisdelay.broker.server.scripts import READ_LANES, ScriptCall, run_each
from kombu_redisdelay.broker.server.wire import answers
from kombu_redisdelay.broker.store import Store
from kombu_redisdelay.operations.fair import KeyLimits, key_limits, together
from kombu_redisdelay.public import public

#: Keys that are looked at for each priority step, and those of them whose next messages are.
MOST_KEYS, MOST_FIRST = 1_000, 3


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
class Lanes:
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


def lanes_of(store: Store, names: Sequence[str]) -> dict[str, Lanes]:
    """Those of *names* that are fair. Makes a round trip, and another two if any is."""
    fair = FairQueues(store)
    states = {name: state for name, state in zip(names, fair.states(names), strict=True) if state}
    if not states:
        return {}
    replies = run_each(store.server, [_call(store, name) for name in states])
    every = fair.limits(list(states))
    return {
        name: _lanes(store, name, state, key_limits(limits), reply)
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


def since_ms_of(store: Store, lanes: dict[str, Lanes]) -> dict[str, int]:
    """Since when the next messages of fair queues wait, for each queue the earliest time of all priorities,
    in ms since the epoch. Queues are missing whose messages do not tell."""
    lists = [(name, some) for name, its in lanes.items() for some in its.firsts if some]
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
    return READ_LANES, keys, (MOST_KEYS, MOST_FIRST, *store.steps)


def _lanes(store: Store, name: str, state: str, limits: KeyLimits, reply: Sequence[Any]) -> Lanes:
    keys = store.keys(name)
    at_limit, pairs, *rows = reply
    door = turns = 0
    firsts: list[list[str]] = []
    for step, (unsorted, with_turn, empty, not_now, *some) in zip(store.steps, rows, strict=True):
        door, turns, at_limit = door + unsorted, turns + with_turn - empty - not_now, at_limit + not_now
        firsts.append([keys.key_list(step, key.decode(errors="replace")) for key in some])
    if not turns:
        steps = {b"%d" % step: step for step in store.steps}
        firsts = [
            [keys.key_list(steps[step], key.decode(errors="replace"))]
            for key, waiting in islice(zip(pairs[::2], pairs[1::2], strict=True), MOST_FIRST)
            for step in waiting.split()[::2]
            if step in steps
        ]
    fairness = Fairness(state, turns + at_limit, at_limit, limits, unsorted=door)
    return Lanes(fairness, bool(at_limit) and not turns and not door, firsts)
