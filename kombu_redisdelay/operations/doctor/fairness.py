"""Checks fair queues."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import timezone
from itertools import chain, islice
from typing import Any

from kombu_redisdelay.broker.fair_keys import ON, KeyState, iter_keys, iter_limited_keys, sorted_in
from kombu_redisdelay.broker.store import Store
from kombu_redisdelay.broker.times import from_ms
from kombu_redisdelay.operations.doctor.finding import Finding, ok, warning, wrong
from kombu_redisdelay.operations.fair import shown_key
from kombu_redisdelay.operations.stats import QueueStats
from kombu_redisdelay.words import first_of, number_of

#: Keys that are looked at, in all partitions together. A queue with more is not recounted.
MOST_KEYS = 10_000

#: Keys that are named.
MOST_NAMED = 10

#: How often a queue is recounted while workers take from it.
TRIES = 3


def check_fairness(store: Store, stats: QueueStats, app: Any) -> Iterator[Finding]:
    """What is to be said of a queue, if it is fair.

    Arguments:
        app: the Celery app, ``None`` if it is not known.
    """
    if stats.fairness is None:
        return
    names = store.partitions.names(stats.queue)
    most = MOST_KEYS // len(names)
    yield from _state(stats)
    if stats.fairness.keys <= most:
        for name in names:
            yield from _recount(store, stats.queue, name, most)
    states = [list(islice(iter_limited_keys(store, name), most)) for name in names]
    are_all = all(len(some) < most for some in states)
    yield from _limited(stats.queue, chain.from_iterable(states), are_all, app)


def _state(stats: QueueStats) -> Iterator[Finding]:
    check = f"queue {stats.queue}"
    if stats.fairness is None or stats.fairness.state == ON:
        yield ok(check, "fair: LLEN does not count its messages; the exporter and `stats` do")
    elif stats.consumers or not stats.ready:
        yield ok(check, "it is not to be fair any more: workers move back what is sorted in by key")
    else:
        yield warning(
            check,
            f"it is not to be fair any more, and {number_of(stats.ready)} ready: no worker moves them back",
            "Start a worker of redisdelay:// for this queue. One of redis:// does not see these messages.",
        )


def _recount(store: Store, queue: str, name: str, most: int) -> Iterator[Finding]:
    for _ in range(TRIES):
        [noted] = sorted_in(store, [name])
        states = list(islice(iter_keys(store, name), most + 1))
        if len(states) > most:
            return
        found = {step: sum(state.ready.get(step, 0) for state in states) for step in store.steps}
        [again] = sorted_in(store, [name])
        counts = {step: (again.get(step, 0), found[step]) for step in store.steps}
        if all(noted == count for noted, count in counts.values()):
            return
        if noted == again:
            break
    else:
        # Workers are at work: they change it all the time.
        return
    parts = [f"{count} of {noted}" for noted, count in counts.values() if noted != count]
    yield wrong(
        f"queue {queue}",
        f"not all messages of its keys are where they are counted: {', '.join(parts)}",
        "Somebody has changed or deleted keys of this queue in Redis. Change them by `celery delayed` only.",
    )


def _limited(queue: str, states: Iterable[KeyState], are_all: bool, app: Any) -> Iterator[Finding]:
    """
    Arguments:
        are_all: whether no other key is paused or at a limit.
    """
    check, or_more = f"queue {queue}", "" if are_all else " or more"
    zone = timezone.utc if app is None else app.timezone
    paused: dict[str, int] = {}
    at_limit: dict[str, int] = {}
    for state in states:
        key = shown_key(state.key)
        if state.paused_ms is not None:
            paused[key] = min(state.paused_ms, paused.get(key, state.paused_ms))
        elif state.is_limited:
            at_limit[key] = at_limit.get(key, 0) + sum(state.ready.values())
    if paused:
        each = [
            f"{key} (since {from_ms(ms).astimezone(zone).isoformat(' ', 'seconds')})"
            for key, ms in paused.items()
        ]
        yield warning(
            check,
            f"{number_of(len(paused), 'key')}{or_more} paused: {first_of(each, MOST_NAMED)}",
            f"Workers take nothing of them. To go on: `celery delayed resume -Q {queue} --key KEY`.",
        )
    if at_limit:
        by_size = sorted(at_limit, key=lambda key: -at_limit[key])
        each = [f"{key} ({at_limit[key]:,} ready)" for key in by_size]
        count = f"{number_of(len(at_limit), 'key')}{or_more}"
        its = "its limit" if count == "1 key" else "their limits"
        yield ok(check, f"{count} at {its}: {first_of(each, MOST_NAMED)}")
