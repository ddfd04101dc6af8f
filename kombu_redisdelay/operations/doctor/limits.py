"""Checks queues that are paused, limited, bounded in length, or fair."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import timezone
from itertools import chain, islice
from typing import Any

from redis.exceptions import NoPermissionError, ResponseError

from kombu_redisdelay.broker.fair_keys import ON, KeyState, iter_keys, iter_limited_keys
from kombu_redisdelay.broker.limits import LimitStore
from kombu_redisdelay.broker.message import from_ms
from kombu_redisdelay.broker.server.server import Server
from kombu_redisdelay.broker.store import Store
from kombu_redisdelay.operations.access import declared_bound, has_length, is_to_refuse, overflow_of
from kombu_redisdelay.operations.app_tasks import import_tasks, queue_of
from kombu_redisdelay.operations.doctor.finding import Finding, ok, warning, wrong
from kombu_redisdelay.operations.fair import fair_states, shown_key
from kombu_redisdelay.operations.limits import QueueLimits, queue_limits
from kombu_redisdelay.operations.mending import MOST_KEYS, miscounted
from kombu_redisdelay.operations.stats import QueueStats
from kombu_redisdelay.words import first_of, number_of

#: Partitions that are named.
MOST_NAMED = 10


def check_limits(store: Store, queue: str, limits: QueueLimits, app: Any) -> Iterator[Finding]:
    """
    Arguments:
        app: the Celery app, ``None`` if it is not known.
    """
    yield from _pause(queue, limits, app)
    yield from _partitions(store, queue)
    yield from check_early_acks(store, queue, limits.concurrency, app)


def check_stock_workers(store: Store, queues: Sequence[str], unacked_key: str) -> Iterator[Finding]:
    """
    Arguments:
        unacked_key: key of the hash in which workers of ``redis://`` keep what they have taken.
    """
    affected = [_is_limited_or_fair(store, queue) for queue in queues]
    if any(is_limited for is_limited, _ in affected):
        yield from _stock_workers(
            store.server,
            unacked_key,
            "pauses and limits",
            "They know of no pause and no limit. Have all workers use redisdelay://.",
        )
    if any(is_fair for _, is_fair in affected):
        yield from check_stock_workers_of_fair(store, unacked_key)


def check_stock_workers_of_fair(store: Store, unacked_key: str) -> Iterator[Finding]:
    """The same where a queue is fair."""
    yield from _stock_workers(
        store.server,
        unacked_key,
        "fair queues",
        "In a fair queue, they see only what is not sorted by key yet, and know no turns. Have all "
        "workers of fair queues use redisdelay://.",
    )


def _is_limited_or_fair(store: Store, queue: str) -> tuple[bool, bool]:
    """Whether a queue is paused or limited, and whether it is fair."""
    try:
        [limits], [state] = queue_limits(store, [queue]), fair_states(store, [queue])
    except ResponseError:
        # The check of the queues has said so.
        return False, False
    return limits.is_paused or limits.is_limited, bool(state)


def _pause(queue: str, limits: QueueLimits, app: Any) -> Iterator[Finding]:
    if limits.paused_since is not None:
        since = limits.paused_since.astimezone(timezone.utc if app is None else app.timezone)
        yield warning(
            f"queue {queue}",
            f"paused since {since.isoformat(' ', 'seconds')}",
            f"Workers take nothing from it. To go on: `celery delayed resume -Q {queue}`.",
            mended_by="resume",
        )


def _partitions(store: Store, queue: str) -> Iterator[Finding]:
    names = store.partitions.names(queue)
    each = [limits._replace(paused_ms=bool(limits.paused_ms)) for limits in LimitStore(store).get(names)]
    if len({(limits.paused_ms, limits.interval_us) for limits in each}) > 1:
        paused = [name for name, limits in zip(names, each, strict=True) if limits.paused_ms]
        some = f": {first_of(paused, MOST_NAMED)} paused" if 0 < len(paused) < len(names) else ""
        yield warning(
            f"queue {queue}",
            f"its partitions are not all paused or limited alike{some}",
            "One was paused or limited by its own name, or their number has changed since. Set the limits "
            "again, or pause or resume the queue again.",
            mended_by="limit",
        )


def check_early_acks(
    store: Store, queue: str, concurrency: int | None, app: Any, keys: str = ""
) -> Iterator[Finding]:
    """Says nothing if the tasks of the app cannot be imported.

    Arguments:
        concurrency: a limit of the queue or of its keys, which late acks need; ``None`` for no limit.
        keys: if it is a limit of keys, ``each key`` or ``the key``.
    """
    if concurrency is None or app is None or import_tasks(app):
        return
    tasks = {name: task for name, task in app.tasks.items() if not name.startswith("celery.")}
    of_queue = [name for name in tasks if queue_of(app, name) == queue]
    early = sorted(name for name in of_queue or tasks if not tasks[name].acks_late)
    if not early and (tasks or app.conf.task_acks_late):
        return
    partitions = len(store.partitions.names(queue))
    each = f" in each of {partitions} partitions" if keys and partitions > 1 else ""
    of = f" of {keys}" if keys else ""
    which = "tasks without acks_late are acked before they run"
    if of_queue:
        which = f"these tasks are acked before they run: {', '.join(early)}"
    yield warning(
        f"queue {queue}",
        f"workers may hold {number_of(concurrency)}{of} together{each}, but {which}",
        "A message that is acked is not held any more, so more tasks may run. Set task_acks_late, or "
        "acks_late for the tasks of this queue.",
    )


def _stock_workers(server: Server, unacked_key: str, check: str, advice: str) -> Iterator[Finding]:
    try:
        count = server.call("HLEN", unacked_key)
    except NoPermissionError:
        return
    if count:
        yield warning(check, "workers of redis:// take from this database, too", advice)


#: From this share of the bound on, new work will soon be refused.
ALMOST_FULL = 0.8


def check_bound(store: Store, stats: QueueStats, app: Any) -> Iterator[Finding]:
    """
    Arguments:
        app: the Celery app, ``None`` if it is not known.
    """
    check = f"queue {stats.queue}"
    declared = None if app is None else app.amqp.queues.get(stats.queue)
    if declared is None:
        return
    try:
        bound = declared_bound(declared, store.partitions)
    except ValueError as exc:
        yield wrong(
            check, f"it cannot be declared: {exc}", "Nothing can be published to it. Correct its max_length."
        )
        return
    overflow = overflow_of(declared)
    if bound is None and has_length(declared):
        reason = "it has no x-overflow" if overflow is None else f"its x-overflow is {overflow!r}"
        yield warning(
            check,
            f"its max_length has no effect, because {reason}: any number of messages may wait",
            "To have new work refused, declare it with queue_arguments={'x-overflow': 'reject-publish'}. To "
            "drop the oldest messages, as RabbitMQ does, is not possible here.",
        )
    elif bound is None and is_to_refuse(declared):
        yield warning(
            check,
            "its x-overflow has no effect, because it has no max_length: any number of messages may wait",
            "To have new work refused, declare it with max_length, too. A bound in bytes is not possible.",
        )
    elif is_almost_full(stats):
        waiting = number_of(stats.ready + stats.scheduled)
        moment = "now" if (stats.bound_share or 0) >= 1 else "soon"
        start = "more workers" if stats.consumers else "a worker"
        yield warning(
            check,
            f"{waiting} wait, and it may have {stats.bound:,}: new work is refused {moment}"
            f"{'' if stats.consumers else ', and no worker takes them'}",
            f"Start {start} for this queue, or see what fills it: `celery delayed count --by task "
            f"-Q {stats.queue}`.",
        )


def is_almost_full(stats: QueueStats) -> bool:
    """Whether the queue has a bound, and new work is refused, or will soon be."""
    return stats.bound_share is not None and stats.bound_share >= ALMOST_FULL


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
        yield ok(check, "it is not to be fair any more: workers move back what is sorted by key")
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
