"""What a consumer asks for, and what it gets."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple


class Request(NamedTuple):
    """What a consumer wants to take.

    Attributes:
        limit: how many messages at most. With 0 nothing is taken, but due messages are moved to their ready
            lists, and other consumers are woken for ready messages. The limit is ignored if the reply to the
            last request was lost: then the messages of that request are returned.
        in_turn: whether to take one message from each queue in turn. Otherwise the first queue is taken from
            until it is empty.
        no_ack: those of the queues whose messages count as acked when they are taken.
    """

    queues: Sequence[str]
    limit: int
    in_turn: bool = True
    no_ack: Collection[str] = ()


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
        next_due: seconds until the next scheduled message is due, ``None`` if there is none.
    """

    deliveries: list[Delivery]
    now_ms: float
    next_due: float | None
