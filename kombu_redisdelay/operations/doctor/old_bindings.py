"""Finds queues that are still bound where the app publishes, though it does not declare them any more."""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Iterator, Sequence
from typing import Any, NamedTuple

from kombu_redisdelay.broker.bindings import Binding, bindings_of
from kombu_redisdelay.broker.store import Store
from kombu_redisdelay.operations.doctor.finding import Finding, warning
from kombu_redisdelay.operations.stats import QueueStats
from kombu_redisdelay.words import first_of, number_of

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
