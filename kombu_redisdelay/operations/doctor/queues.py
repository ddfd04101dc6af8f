"""Checks whether workers look after the queues, and whether their keys are in order."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any

from redis.exceptions import NoPermissionError

from kombu_redisdelay.broker.keys import expected_type, is_ours
from kombu_redisdelay.broker.limits import LimitStore
from kombu_redisdelay.broker.message import from_ms
from kombu_redisdelay.broker.options import Options
from kombu_redisdelay.broker.server.wire import checked
from kombu_redisdelay.broker.store import Store
from kombu_redisdelay.broker.stranded import Stranded
from kombu_redisdelay.operations.doctor.finding import Finding, Level, ok, warning, wrong
from kombu_redisdelay.operations.doctor.leases import check_unacked
from kombu_redisdelay.operations.doctor.left_behind import OldBinding, check_old_bindings
from kombu_redisdelay.operations.doctor.limits import (
    check_bound,
    check_early_acks,
    check_fairness,
    check_limits,
    is_almost_full,
)
from kombu_redisdelay.operations.doctor.messages import check_failed, check_keys, expired_share
from kombu_redisdelay.operations.history import unreadable_fields
from kombu_redisdelay.operations.mending import lost_names, options_for
from kombu_redisdelay.operations.queue_reasons import ISOLATED, LOST, PREFETCH, unknown_tasks
from kombu_redisdelay.operations.states import DEAD
from kombu_redisdelay.operations.stats import QueueStats, queue_stats
from kombu_redisdelay.words import first_of, number_of, span

#: Seconds that a message may be overdue before this counts as a problem, and that a ready one may wait before
#: it is worth a remark. Workers move what is due in less than this.
PATIENCE = 15.0

#: The same limit for a queue without a worker, in seconds.
UNATTENDED_PATIENCE = 2.0

#: From this share of ``dead_letter_limit`` on, dead letters will soon be dropped.
DEAD_SHARE = 0.8

#: From this share of the ready messages on, and with so many of these, expired ones are worth a remark.
EXPIRED_SHARE, LEAST_EXPIRED = 0.1, 10

#: Tasks of a queue that are named.
MOST_TASKS = 10

#: Lists of a queue that are named.
MOST_LISTS = 5


def check_queues(
    store: Store,
    queues: Iterable[str],
    options: Options,
    app: Any,
    declared: Collection[str] | None,
    stranded: Sequence[Stranded],
    old: Mapping[str, Sequence[OldBinding]],
) -> Iterator[Finding]:
    """What is to be said of each queue, and at last how many are in order.

    Arguments:
        app: the Celery app, ``None`` if it is not known.
        declared: the queues that it declares; ``None`` if they are not known.
        stranded: the lists of these queues where no worker looks.
        old: queue -> bindings by which it gets copies of what is for others.
    """
    in_order = 0
    lists_of: dict[str, list[Stranded]] = {}
    for each in stranded:
        lists_of.setdefault(store.partitions.queue_of(each.queue), []).append(each)
    for queue in dict.fromkeys(map(store.partitions.queue_of, queues)):
        try:
            is_odd = declared is not None and queue not in declared
            found = [
                *_stranded(store, queue, lists_of.get(queue, ())),
                *_of_queue(store, queue, options, app, is_odd, old.get(queue, ())),
            ]
        except NoPermissionError:
            # The queue may belong to another application in this database.
            advice = (
                "If it is yours, see the permissions. If not, name yours: `celery delayed doctor -Q ...`."
            )
            found = [warning(f"queue {queue}", "this user may not look at it", advice)]
        yield from found
        in_order += all(finding.level is Level.OK for finding in found)
    if in_order:
        yield ok("queues", f"{in_order} in order")


def _of_queue(
    store: Store, queue: str, options: Options, app: Any, is_odd: bool, old: Sequence[OldBinding]
) -> Iterator[Finding]:
    """
    Arguments:
        is_odd: whether there is an app that does not declare it.
        old: bindings by which it gets copies of what is for others.
    """
    if is_ours(queue):
        yield wrong(
            f"queue {queue}",
            "its name is that of a key of another queue, so their messages are mixed up",
            "Give it another name, and find out where this one comes from. It cannot be declared any more.",
        )
        return
    names = store.partitions.names(queue)
    wrong_types = [finding for name in names for finding in _wrong_types(store, name)]
    if wrong_types:
        # While a key has the wrong type, the other checks would fail.
        yield from wrong_types
        return
    [stats] = queue_stats(store, [queue])
    has_copies = bool(old) and not stats.consumers
    if has_copies:
        yield from check_old_bindings(stats, old)
    else:
        yield from _late(stats, is_odd)
        yield from _consumers(stats)
    yield from _dead(stats, options.dead_letter_limit)
    yield from check_failed(store, stats, names)
    yield from _unknown(store, queue, options)
    for name in names:
        if stats.blocked:
            yield from check_keys(store, name, stats)
        if stats.unacked:
            yield from check_unacked(store, name)
        yield from _damage(store, name)
        yield from _foreign_fields(store, name)
    if not has_copies:
        yield from _expired(store, stats, names)
    yield from check_limits(store, queue, stats.limits, app)
    yield from check_bound(store, stats, app)
    yield from check_fairness(store, stats, app)
    if stats.fairness is not None:
        yield from check_early_acks(store, queue, stats.fairness.limits.concurrency, app, "each key")


def _stranded(store: Store, queue: str, lists: Sequence[Stranded]) -> Iterator[Finding]:
    if not lists:
        return
    named = first_of([repr(each.key) for each in lists], MOST_LISTS)
    options = options_for(store, lists)
    count = sum(each.messages for each in lists)
    look = f"Workers look there with broker_transport_options = {options}. Or stop" if options else "Stop"
    yield wrong(
        f"queue {queue}",
        f"{number_of(count)} in {named}, where no worker of this app looks: their publisher has another "
        "sep, or other priority_steps",
        f"{look} the publisher, and run `celery delayed adopt`: it moves them to where all workers look.",
    )


def _wrong_types(store: Store, queue: str) -> Iterator[Finding]:
    # By its name, a ready list could be taken for another key.
    every = dict.fromkeys(store.ready_keys(queue), "list")
    every |= {key: expected_type(key) for key in store.keys(queue).own}
    types = checked(store.server.call_all(*(("TYPE", key) for key in every)))
    for (key, expected), reply in zip(every.items(), types, strict=True):
        found = reply.decode()
        if found not in ("none", expected):
            yield wrong(
                f"queue {queue}",
                f"key {key!r} holds a {found}, where a {expected} belongs",
                "Another program uses this key: give one of the two another database or global_keyprefix.",
            )


def _late(stats: QueueStats, is_odd: bool) -> Iterator[Finding]:
    check = f"queue {stats.queue}"
    if stats.reason == LOST:
        counts = {"ready": stats.ready, "overdue": stats.overdue}
        left = " and ".join(f"{number_of(count)} {state}" for state, count in counts.items() if count)
        yield wrong(
            check,
            f"{left}, and the processes of all its workers are gone",
            "Start a worker for this queue. The logs of those that are gone, or of the system, say why they "
            "ended.",
        )
        return
    if stats.overdue and not stats.consumers and stats.lateness > UNATTENDED_PATIENCE:
        yield wrong(
            check,
            f"{number_of(stats.overdue)} overdue, for up to {span(stats.lateness)}, and no worker",
            "Start a worker for this queue, or `celery delayed forward` if an autoscaler is to do that.",
        )
    elif stats.overdue and stats.lateness > PATIENCE:
        yield wrong(
            check,
            f"{number_of(stats.overdue)} overdue, for up to {span(stats.lateness)}, that no worker moves",
            "Workers move what is due within seconds, also while they are busy. These were told to stop, and "
            "end their tasks; or they are stuck, or of an older version: see their logs. Start others.",
        )
    if not stats.consumers and not is_almost_full(stats):
        yield from _without_worker(stats, is_odd)
    elif stats.reason == ISOLATED:
        yield warning(
            check,
            f"{number_of(stats.ready)} ready, and each worker holds a message alone, because workers have "
            "died that held it",
            "They go on when it is done, or after a minute. The log of each worker names its message; the "
            "logs of those that died, or of the system, say why.",
        )
    elif stats.reason == PREFETCH and (waiting := stats.waiting or 0.0) > PATIENCE:
        yield ok(
            check, f"{number_of(stats.ready)} ready, for up to {span(waiting)}: all workers are busy, or stop"
        )


def _without_worker(stats: QueueStats, is_odd: bool) -> Iterator[Finding]:
    check, scheduled = f"queue {stats.queue}", stats.scheduled - stats.blocked
    if stats.overdue and stats.lateness > UNATTENDED_PATIENCE:
        # That is told.
        scheduled = 0
    if stats.ready:
        misspelt = " The app does not declare it: is its name misspelt?" if is_odd else ""
        also = f" and {number_of(scheduled)} scheduled" if scheduled else ""
        yield warning(
            check,
            f"{number_of(stats.ready)} ready{also}, and no worker",
            f"Start a worker for this queue. One of redis:// is not seen here.{misspelt}",
        )
    elif scheduled:
        yield warning(
            check,
            f"{number_of(scheduled)} scheduled, and no worker",
            "Start a worker for this queue before they are due, or `celery delayed forward` if an "
            "autoscaler is to do that.",
        )


def _consumers(stats: QueueStats) -> Iterator[Finding]:
    check = f"queue {stats.queue}"
    if not stats.consumers_lost:
        return
    found = f"messages are still held by {number_of(stats.consumers_lost, 'consumer')} whose lease ended"
    if not stats.consumers:
        yield wrong(check, found, "Start a worker for this queue: it gives the messages back to the queue.")
    else:
        yield warning(
            check, found, "Workers give them back within seconds; if this stays, see their logs for errors."
        )


def _dead(stats: QueueStats, limit: int) -> Iterator[Finding]:
    if not stats.dead:
        return
    found = number_of(stats.dead, "dead letter")
    if stats.dead >= DEAD_SHARE * limit:
        found += f"; the queue keeps {limit}, then the oldest go"
    advice = "See `celery delayed list --state dead`, then requeue or remove them."
    yield warning(f"queue {stats.queue}", found, advice, mended_by=DEAD)


def _expired(store: Store, stats: QueueStats, names: Sequence[str]) -> Iterator[Finding]:
    if stats.ready < LEAST_EXPIRED:
        return
    # Messages are spread over partitions at random.
    share = expired_share(store, names[0])
    if share < EXPIRED_SHARE:
        return
    yield warning(
        f"queue {stats.queue}",
        f"about {share:.0%} of {number_of(stats.ready)} ready have expired"
        f"{'' if stats.consumers else ', and no worker takes them'}".replace("%", " %"),
        "Workers discard them, which takes time. `celery delayed cancel --expired --mark-revoked -Q "
        f"{stats.queue}` removes them. Start more workers, or have fewer tasks published.",
    )


def _unknown(store: Store, queue: str, options: Options) -> Iterator[Finding]:
    tasks = sorted(unknown_tasks(store, [queue]), key=attrgetter("since"))
    if not tasks:
        return
    now = from_ms(store.now_ms())
    each = [f"{one.task} (for {span((now - one.since).total_seconds())})" for one in tasks]
    wait = options.unknown_task_wait
    end = "" if wait is None else f" Each message becomes a dead letter after {span(wait)}."
    yield warning(
        f"queue {queue}",
        f"messages of {number_of(len(tasks), 'task')} wait for a worker that knows it: "
        f"{first_of(each, MOST_TASKS)}",
        f"Start workers whose code has these tasks. If such workers run, they are full: start more.{end}",
    )


def _damage(store: Store, queue: str) -> Iterator[Finding]:
    keys, check = store.keys(queue), f"queue {queue}"
    # No transaction, because a server that is out of memory refuses it. The server handles both commands at
    # once even without one.
    ids, messages = checked(store.server.call_all(("ZCARD", keys.schedule), ("HLEN", keys.messages)))
    if ids > messages:
        yield wrong(
            check,
            f"{number_of(ids - messages, 'scheduled message')} lost: somebody deleted a part of the queue",
            "Nothing brings them back. Workers skip their ids when they are due. Change these keys by "
            "`celery delayed` only.",
        )
    elif ids < messages:
        yield wrong(
            check,
            f"{number_of(messages - ids, 'scheduled message')} without a due time: somebody deleted a part "
            "of the queue",
            "Workers give each the time that it says, within a minute. Those that say none become dead "
            "letters. Without a worker, `celery delayed mend` does it. Change these keys by `celery delayed` "
            "only.",
        )
    if count := lost_names(store, queue):
        yield wrong(
            check,
            f"{number_of(count)} of failed tasks or dead letters in no list: somebody deleted a part of the "
            "queue",
            "Workers list them again within a minute. Without a worker, `celery delayed mend` does it. "
            "Change these keys by `celery delayed` only.",
        )


def _foreign_fields(store: Store, queue: str) -> Iterator[Finding]:
    keys = store.keys(queue)
    limits = "They count as missing. Set the limits again: `celery delayed limit`."
    history = "They count as missing. Delete the key: a new history begins."
    for key, fields, advice, mended_by in (
        (keys.limits, LimitStore(store).unreadable(queue), limits, "limit"),
        (keys.history, unreadable_fields(store, queue), history, ""),
    ):
        if fields:
            found = f"key {key!r} has what does not belong there: {', '.join(fields)}"
            yield wrong(f"queue {queue}", found, advice, mended_by)
