"""A few figures that tell whether a fair queue is fair, however many keys it has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from math import ceil

from kombu_redisdelay.broker import members
from kombu_redisdelay.broker.fair_keys import ON, KeyState, iter_keys
from kombu_redisdelay.broker.limits import FairQueues
from kombu_redisdelay.broker.server.wire import answers
from kombu_redisdelay.broker.store import Store

#: Keys that are looked at, and those of them whose next message is read: first these with the most messages.
MOST_KEYS = 10_000
MOST_GREATEST, MOST_READ = 100, 1_000


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
    """The figures of *queue*, a fair one, from what is sorted in. Looks at up to :data:`MOST_KEYS` keys."""
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
