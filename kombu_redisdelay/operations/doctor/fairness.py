"""Checks fair queues."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from datetime import timezone
from itertools import chain, islice
from typing import Any

from kombu_redisdelay.broker.fair_keys import ON, KeyState, iter_keys, iter_limited_keys
from kombu_redisdelay.broker.message import from_ms
from kombu_redisdelay.broker.store import Store
from kombu_redisdelay.operations.doctor.finding import Finding, ok, warning, wrong
from kombu_redisdelay.operations.fair import shown_key
from kombu_redisdelay.operations.mending import MOST_KEYS, miscounted
from kombu_redisdelay.operations.stats import QueueStats
from kombu_redisdelay.words import first_of, number_of

#: Keys that are named.
MOST_NAMED = 10

#: With fewer ready messages without a key, it may be by chance that no other is there.
LEAST_WITHOUT = 10


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
    yield from check_prefetch_of_fair(stats.queue, app)
    if stats.fairness.keys <= len(store.steps):
        ready = Counter[str]()
        for state in (state for name in names for state in islice(iter_keys(store, name), most)):
            ready[state.key] += sum(state.ready.values())
        yield from check_use_of_keys(stats.queue, ready)
    if stats.fairness.keys <= most:
        for name in names:
            yield from _recount(store, stats.queue, name, most)
    states = [list(islice(iter_limited_keys(store, name), most)) for name in names]
    are_all = all(len(some) < most for some in states)
    yield from _limited(stats.queue, chain.from_iterable(states), are_all, app)


def check_prefetch_of_fair(queue: str, app: Any) -> Iterator[Finding]:
    """
    Arguments:
        queue: a fair one.
        app: the Celery app, ``None`` if it is not known.
    """
    ahead = 1 if app is None else app.conf.worker_prefetch_multiplier
    if ahead != 1:
        what = f"{number_of(ahead)} for each of its processes" if ahead else "all messages that are ready"
        yield warning(
            f"queue {queue}",
            f"fair, but a worker fetches {what}, and those take no part in the turns",
            "Set worker_prefetch_multiplier = 1.",
        )


def check_use_of_keys(queue: str, ready: Mapping[str, int]) -> Iterator[Finding]:
    """
    Arguments:
        ready: key -> how many ready messages it has.
    """
    without = ready.get("", 0)
    if without >= LEAST_WITHOUT and not any(count for key, count in ready.items() if key):
        yield warning(
            f"queue {queue}",
            f"none of {number_of(without, 'ready message')} has a key, so they do not take turns",
            "Call kombu_redisdelay.keys(app, function) where tasks are published, or set the header x-key.",
        )


def _state(stats: QueueStats) -> Iterator[Finding]:
    check = f"queue {stats.queue}"
    if stats.fairness is None or stats.fairness.state == ON:
        yield ok(check, "fair: LLEN does not count its messages; the exporter and `stats` do")
    elif stats.consumers or not stats.ready:
        yield ok(check, "it is not to be fair any more: workers move back what is sorted in by key")
    else:
        is_or_are, them = ("is", "it") if stats.ready == 1 else ("are", "them")
        yield warning(
            check,
            f"it is not to be fair any more, and {number_of(stats.ready)} {is_or_are} ready: no worker moves "
            f"{them} back",
            "Start a worker of redisdelay:// for this queue. One of redis:// does not see these messages.",
        )


def _recount(store: Store, queue: str, name: str, most: int) -> Iterator[Finding]:
    counts = miscounted(store, name, most)
    if counts:
        parts = [f"{count} of {noted}" for noted, count in counts.values()]
        yield wrong(
            f"queue {queue}",
            f"not all messages of its keys are where they are counted: {', '.join(parts)}",
            "Somebody has changed or deleted keys of this queue in Redis. Workers count them anew in some "
            "seconds. If this stays: `celery delayed mend`.",
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
        elif state.is_at_limit and state.ready:
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
