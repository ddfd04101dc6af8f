"""What the messages of a queue are to those who look at them, and how one is told from another."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Generic, TypeVar

from kombu_redisdelay.broker.times import to_ms
from kombu_redisdelay.public import public

MessageT = TypeVar("MessageT")

SCHEDULED, READY, HELD, DEAD = "scheduled", "ready", "held", "dead"

#: The states of a message, in the order in which it passes through them. All are looked at in this order, so
#: that a message which moves on meanwhile is not missed.
STATES = (SCHEDULED, READY, HELD, DEAD)


@public
@dataclass(frozen=True, slots=True)
class QueuedMessage:
    """A message, wherever it is.

    Attributes:
        id: the id to find and to cancel it by. For a Celery task, this is the task id. For other messages, it
            is the ``message_id``, else the ``correlation_id``, else the delivery tag. For an entry that is
            not a message, it is the SHA-1 of its bytes in hexadecimal, or the name that it has in the
            schedule.
        queue: name of the queue.
        state: "scheduled", "ready", "held" or "dead".
        task: name of the Celery task, ``None`` if the message is not a task.
        args: ``repr`` of the task's positional arguments, from the message headers. Celery shortens it. Empty
            if there is none.
        kwargs: the same for its keyword arguments.
        priority: the priority that it was published with, 0 if there is none.
        deliveries: how many deliveries of it have failed; for a dead letter, how many times it was delivered.
        size: size of the message in bytes.
        due: scheduled: when it will be delivered, in UTC, by the server's clock. Else ``None``.
        place: ready: how many messages of its queue, or of its partition, are taken before it. Else ``None``.
        waiting_since: ready: since when it may be delivered, in UTC: when it was published, or was due, by
            the publisher's clock. ``None`` if another transport has published it. Else ``None``.
        host: held: the name of this host if the worker runs on it (in the same PID namespace), otherwise the
            boot id of the worker's host. ``None`` if it is unknown, or the message is not held.
        pid: held: the process id of the worker on its host. ``None`` as for *host*.
        worker: held: the name of the Celery worker, such as ``celery@web-1``; ``None`` if it is unknown, or
            not one of Celery.
        held_since: held: when the worker asked for it, in UTC, by the server's clock. Else ``None``.
        lease_has_ended: held: whether the worker's lease has ended, so that the message is about to be given
            to another one. Else ``False``.
        process_is_gone: held: whether the process of the worker certainly does not exist any more, as far as
            this host can tell. The message comes back when another worker of the queue runs. Else ``False``.
        died: dead: when it became a dead letter, in UTC. Else ``None``.
        reason: dead: why it became one, in one line. Scheduled: that it waits for a worker that knows its
            task, and since when, if it does. Else empty.
        headers: the headers that it was published with; empty if the entry is not a message.
        payload: the bytes of the message.
    """

    id: str
    queue: str
    state: str
    task: str | None
    args: str
    kwargs: str
    priority: int
    deliveries: int
    size: int
    due: datetime | None = None
    place: int | None = None
    waiting_since: datetime | None = None
    host: str | None = None
    pid: int | None = None
    worker: str | None = None
    held_since: datetime | None = None
    lease_has_ended: bool = False
    process_is_gone: bool = False
    died: datetime | None = None
    reason: str = ""
    headers: Mapping[str, Any] = field(default_factory=dict, repr=False)
    payload: bytes = field(default=b"", repr=False)


def moment_of(message: QueuedMessage) -> datetime | None:
    """Since when a message is in its state; if it is scheduled, when it is due. ``None`` if that is
    unknown."""
    return message.due or message.waiting_since or message.held_since or message.died


def is_within(moment: datetime | None, after_ms: float | None, before_ms: float | None) -> bool:
    """Whether *moment* is not before *after_ms*, and before *before_ms*, in ms since the epoch. ``None`` is
    no limit. An unknown moment is only within no limits."""
    if after_ms is None and before_ms is None:
        return True
    if moment is None:
        return False
    ms = to_ms(moment)
    return (after_ms is None or after_ms <= ms) and (before_ms is None or ms < before_ms)


# slots do not go together with Generic and Python 3.10.
@dataclass(frozen=True)
class Found(Generic[MessageT]):
    """A message, and what tells it from others.

    Attributes:
        identity: no other message has it, if *is_unique*.
        is_unique: whether it was published with a delivery tag.
        is_sure: whether this very entry was certainly not read before.
    """

    message: MessageT
    identity: object
    is_unique: bool
    is_sure: bool = True


def without_repetitions(found: Iterable[Found[MessageT]]) -> Iterator[MessageT]:
    """The messages, each once. One without a delivery tag may have its equals, and is left out only if it may
    have been read before."""
    known: set[int] = set()
    for each in found:
        key = hash(each.identity)
        if key in known and (each.is_unique or not each.is_sure):
            continue
        known.add(key)
        yield each.message
