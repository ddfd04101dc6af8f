"""Finds what was left behind: by workers of ``redis://``, by lost keys, and by an app that has changed."""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Iterator, Sequence
from typing import Any, NamedTuple

from redis.exceptions import ConnectionError, NoPermissionError, TimeoutError

from kombu_redisdelay.broker.bindings import Binding, bindings_of
from kombu_redisdelay.broker.server.server import Server
from kombu_redisdelay.broker.store import Store
from kombu_redisdelay.broker.unlisted import Unlisted
from kombu_redisdelay.operations.doctor.finding import Finding, ok, warning, wrong
from kombu_redisdelay.operations.mending import unlisted
from kombu_redisdelay.operations.stats import QueueStats
from kombu_redisdelay.words import first_of, number_of

#: Seconds after which a ``redis://`` worker gives back the messages of another one, by default.
STOCK_VISIBILITY_TIMEOUT = 3600


def check_leftovers(server: Server, unacked_key: str, unacked_index_key: str) -> Iterator[Finding]:
    """
    Arguments:
        unacked_key: key of a hash: delivery tag -> message.
        unacked_index_key: key of a zset: delivery tag -> when the message was taken, seconds since the epoch.
    """
    check = "redis:// leftovers"
    try:
        count = server.call("HLEN", unacked_key)
    except NoPermissionError:
        # Only this check needs the permission.
        yield ok(check, f"not looked for: this user may not read {unacked_key!r}")
        return
    if not count:
        yield ok(check, "none")
        return
    seconds, _ = server.call("TIME")
    old = server.call("ZCOUNT", unacked_index_key, "-inf", int(seconds) - STOCK_VISIBILITY_TIMEOUT)
    found = f"{number_of(count)} in {unacked_key!r}, where redis:// workers keep what they have taken"
    if old:
        yield wrong(
            check,
            f"{found}; {old} for more than an hour",
            "Unless a redis:// worker holds them for a long countdown or task, nobody will deliver them: see "
            "`celery delayed adopt --dry-run`, which tells whether one is connected, then run it "
            "without.",
        )
    else:
        yield warning(
            check,
            found,
            "Stop redis:// workers with SIGTERM: they give these back, countdown tasks too, which then wait "
            "in the schedule. If none is left, run `celery delayed adopt`.",
        )


#: Queues that are named.
MOST_NAMED = 10

_MEND = "`celery delayed mend` lists them again."


def check_unlisted(store: Store, queues: Sequence[str], declared: Collection[str]) -> Iterator[Finding]:
    """
    Arguments:
        queues: those that are checked. Whether a queue is listed itself is looked up for all.
        declared: queues that the app declares. Commands look at them, listed or not.
    """
    try:
        found = unlisted(store, store.partitions.all_names(queues))
    except (ConnectionError, TimeoutError) as exc:
        if not store.server.has_slots:
            raise
        yield warning("lost keys", f"not looked for at all servers of the cluster: {exc}", "")
        return
    unknown = sorted(
        {store.partitions.queue_of(name) for name, some in found.queues.items() if some.is_unknown}
        - set(declared)
    )
    if unknown:
        are = "is" if len(unknown) == 1 else "are"
        yield wrong(
            "queues",
            f"commands for all queues leave out {number_of(len(unknown), 'queue')} that {are} not listed "
            f"any more: {first_of(unknown, MOST_NAMED)}. Keys in Redis were lost",
            _MEND,
        )
    for queue in queues:
        each = [found.queues[name] for name in store.partitions.names(queue) if name in found.queues]
        if each:
            yield from _of_queue(queue, each)


def _of_queue(queue: str, each: Sequence[Unlisted]) -> Iterator[Finding]:
    consumers, unacked = sum(some.consumers for some in each), sum(some.unacked for some in each)
    if consumers:
        them = (
            "1 consumer that no key lists" if consumers == 1 else f"{consumers:,} consumers that no key lists"
        )
        yield wrong(
            f"queue {queue}",
            f"{number_of(unacked)} of {them}: if it is lost, nobody gives them back. Keys in Redis were lost",
            f"{_MEND} Workers do so each hour. Then what lost consumers hold comes back.",
        )
    lists, messages = sum(some.lists for some in each), sum(some.sorted_by_key for some in each)
    if lists:
        keys = number_of(lists, "key")
        yield wrong(
            f"queue {queue}",
            f"{number_of(messages)} of {keys} without a turn, so nobody takes them. Keys in Redis were lost",
            f"{_MEND} Workers do so each hour, and when later messages of the same keys come.",
        )


#: Bindings of a queue that are named.
MOST_BINDINGS = 5


class OldBinding(NamedTuple):
    """A binding of a queue that the app does not declare.

    Attributes:
        instead: a queue of the app that is bound to the same exchange by a key that covers this one, or is
            covered by it.
        is_topic: whether it is of a topic exchange. To a direct one, Celery publishes only what names it.
            Else it names the queue.
    """

    exchange: str
    routing_key: str
    instead: str
    is_topic: bool


def old_bindings(store: Store, app: Any, declared: Collection[str]) -> dict[str, list[OldBinding]]:
    """The queues that *app* does not declare, and that get copies of what is for its own.

    Arguments:
        declared: the queues that it declares.
    """
    exchanges = [
        exchange
        for queue in app.amqp.queues.values()
        for exchange in (queue.exchange, *(binding.exchange for binding in queue.bindings or ()))
    ]
    found: dict[str, list[OldBinding]] = {}
    # What a fanout exchange has in Redis routes nothing: each worker subscribes.
    for name in sorted({each.name for each in exchanges if each.name and each.type != "fanout"}):
        table = list(bindings_of(store, [name]))
        ours = {binding.routing_key: binding for binding in table if binding.queue in declared}
        topics = [binding for binding in ours.values() if binding.pattern]
        for binding in table:
            if binding.queue in declared:
                continue
            same = [ours[binding.routing_key]] if binding.routing_key in ours else topics
            instead = next((one.queue for one in same if _overlap(one, binding)), None)
            if instead is not None:
                old = OldBinding(name, binding.routing_key, instead, bool(binding.pattern))
                found.setdefault(binding.queue, []).append(old)
    return found


def check_old_bindings(stats: QueueStats, bindings: Sequence[OldBinding]) -> Iterator[Finding]:
    """
    Arguments:
        bindings: those of the queue, one or more.
    """
    bound = first_of([f"{each.exchange!r} by {each.routing_key!r}" for each in bindings], MOST_BINDINGS)
    instead = first_of(sorted({each.instead for each in bindings}), MOST_BINDINGS)
    queue, dropped = shlex.quote(stats.queue), stats.ready + stats.scheduled
    found = f"it gets a copy of what is for {instead}"
    twice = "With a worker for it, each of these tasks would run twice."
    if not any(each.is_topic for each in bindings):
        if not dropped:
            # It may never get any.
            return
        found += " and names its exchange"
        twice = (
            "Celery names the exchange if a route does. With a worker for it, such a task would run twice; "
            f"what was published for this queue alone runs nowhere else: `celery delayed list -Q {queue}`."
        )
    yield warning(
        f"queue {stats.queue}",
        f"{found}: it is still bound to {bound}, and the app does not declare it",
        f"{twice} Unless another program reads it: `celery amqp queue.delete {queue}` takes its bindings "
        f"away, and drops {number_of(dropped) if dropped else 'no message'}.",
    )


def _overlap(one: Binding, other: Binding) -> bool:
    return _covers(one, other.routing_key) or _covers(other, one.routing_key)


def _covers(binding: Binding, routing_key: str) -> bool:
    """Whether the key of *binding* stands for all that *routing_key* does. A wildcard in there is a word."""
    if not binding.pattern:
        return binding.routing_key == routing_key
    try:
        return re.match(binding.pattern, routing_key) is not None
    except re.error:
        return False
