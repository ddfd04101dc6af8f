"""The requests of a consumer, and their results."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple


class Request(NamedTuple):
    """A request of a consumer for messages.

    Attributes:
        queues: all queues that it consumes from. If not *in_turn*, they are taken from in this order.
        limit: how many messages at most. With 0 nothing is taken, but due messages are moved to their ready
            lists, and other consumers are woken for ready messages. The limit is ignored if the reply to the
            last request was lost: then the messages of that request are returned.
        in_turn: whether to take one message from each queue in turn. Otherwise the first queue is taken from
            until it is empty.
        no_ack: those of the queues whose messages count as acked when they are taken.
        hot: those of the queues that may have messages, at most
            :data:`~kombu_redisdelay.broker.takes.QUEUES_PER_TAKE`, in the order in which they are taken
            from if *in_turn*; ``None`` for all.
        also_woken: whether to take from the other queues, too, that were woken meanwhile.
        comes_again: whether the consumer takes again when the reply says that something is due.
        known: queue -> tasks that the consumer knows, and of which messages wait for a worker that does. They
            are taken, too.
    """

    queues: Sequence[str]
    limit: int
    in_turn: bool = True
    no_ack: Collection[str] = ()
    hot: Sequence[str] | None = None
    also_woken: bool = True
    comes_again: bool = True
    known: Mapping[str, Sequence[Waiting]] = MappingProxyType({})


class Delivery(NamedTuple):
    """A taken message.

    Attributes:
        tag: delivery tag, unique for the consumer.
        step: priority step of the ready list that it came from.
        payload: the message as it is in Redis.
        needs_ack: whether it stays in the unacked hash until it is acked.
    """

    tag: str
    queue: str
    step: int
    payload: bytes
    needs_ack: bool


class Taken(NamedTuple):
    """What a take brought.

    Attributes:
        now_ms: the server's clock, ms since the epoch.
        due: hot queue -> seconds until its next scheduled message is due, or until its rate allows another
            message, unless another consumer watches the rate. Queues without such a time are missing.
        more: queue -> the first of its priority steps that has more messages, counted from 1. It may be one
            of the other queues, if there were too many for this take.
        with_permits: those of the hot queues that have a limited concurrency.
    """

    deliveries: list[Delivery]
    now_ms: float
    due: Mapping[str, float]
    more: Mapping[str, int]
    with_permits: Collection[str] = ()


class Looked(NamedTuple):
    """What a look at queues has shown.

    Attributes:
        ready: queue -> the first of its priority steps that has ready messages, counted from 1; only queues
            that something may be taken from.
        due: queue -> seconds until its next scheduled message is due, or until its rate allows another
            message, unless another consumer watches the rate. Queues without such a time are missing.
    """

    ready: Mapping[str, int]
    due: Mapping[str, float]


class Peek(NamedTuple):
    """What a peek at queues has shown.

    Attributes:
        any_ready: whether any of them has a ready message.
        due: queue -> seconds until its next scheduled message is due, for those of *schedules_of* that have
            one.
        schedules_of: the queues whose schedules were looked at.
        any_unknown: whether in any of the queues messages may wait for a worker that knows their task.
    """

    any_ready: bool
    due: Mapping[str, float]
    schedules_of: Sequence[str]
    any_unknown: bool = False


class Waiting(NamedTuple):
    """Messages of one task and priority step that wait for a worker that knows the task.

    Attributes:
        task: its name, as :func:`~kombu_redisdelay.broker.unknown_tasks.listed` writes it.
        step: the priority step, as text.
        since_ms: since when the oldest of them waits, ms since the epoch; ``None`` if that was not found at
            once.
    """

    task: str
    step: str
    since_ms: int | None
