"""Deliveries: what a consumer asks for, what it gets, by which tag, and which ack ends it.

Most acks are a plain command. One that frees a permit or a unique key is a script.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from time import monotonic, time
from types import MappingProxyType
from typing import NamedTuple

from kombu_redisdelay.broker.members import UNIQUE_BEGINS, UNIQUE_WITHIN
from kombu_redisdelay.broker.server.line import Ack
from kombu_redisdelay.broker.server.scripts import ACK
from kombu_redisdelay.broker.server.wire import without_last
from kombu_redisdelay.broker.store import Store
from kombu_redisdelay.broker.unique import field_until_ack

#: Queues for which a consumer remembers how its acks are sent.
MOST_PLANS = 1000


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
        polled: those of the queues that may have messages, at most
            :data:`~kombu_redisdelay.broker.takes.QUEUES_PER_TAKE`, in the order in which they are taken
            from if *in_turn*; ``None`` for all.
        also_woken: whether to take from the other queues, too, that were woken meanwhile.
        polls_again: whether the consumer takes again when the reply says that something is due.
        known: queue -> tasks that the consumer knows, and of which messages wait for a worker that does. They
            are taken, too.
    """

    queues: Sequence[str]
    limit: int
    in_turn: bool = True
    no_ack: Collection[str] = ()
    polled: Sequence[str] | None = None
    also_woken: bool = True
    polls_again: bool = True
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
        due: polled queue -> seconds until its next scheduled message is due, or until its rate allows another
            message, unless another consumer watches the rate. Queues without such a time are missing.
        more: queue -> the first of its priority steps that has more messages, counted from 1. It may be one
            of the other queues, if there were too many for this take.
        with_permits: those of the polled queues that have a limited concurrency.
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


def taken_ms(tag: bytes | str) -> float | None:
    """When the message with this delivery tag was asked for, in ms since the epoch by the server's clock;
    ``None`` if the tag is not one of ours."""
    # Microseconds since the epoch have 16 digits from 2001 to 2286.
    return int(tag) / 1000 if len(tag) == 16 and tag.isdigit() else None


class Tags:
    """The delivery tags of a consumer.

    A tag is the time when the message was asked for, in microseconds since the epoch, or the next free
    number. So a tag shows for how long its message has been held.
    """

    def __init__(self) -> None:
        self._next = 1

    def reserve(self, count: int, now_us: int) -> int:
        """The first of *count* tags that were never used. *now_us* is the server's clock."""
        first = max(self._next, now_us)
        self._next = first + count
        return first


class ServerClock:
    """The server's clock: the time in its latest reply, plus the time that has passed here since."""

    def __init__(self) -> None:
        self.set(round(time() * 1_000_000))

    def set(self, now_us: int) -> None:
        """Note what the server has said, microseconds since the epoch."""
        self._ahead = now_us / 1_000_000 - monotonic()

    def now_us(self) -> int:
        return round((monotonic() + self._ahead) * 1_000_000)


class Acks:
    """Knows which ack a message needs, by what it holds until then: a permit, if its queue or the keys of
    that have a limited concurrency; and its unique key. Most hold nothing, and need no script."""

    def __init__(self, store: Store, consumer: str) -> None:
        self._store = store
        self._consumer = consumer
        #: For each queue: the key of the unacked hash, and what is sent before the tag.
        self._plain: dict[str, tuple[str, bytes]] = {}
        #: The queues with a limited concurrency.
        self._limited: set[str] = set()
        #: Delivery tag -> the unique key as it is in Redis.
        self._unique: dict[str, str] = {}

    def note(self, polled: Collection[str], left_out: Collection[str], taken: Taken) -> None:
        """Note what the reply to a take from the queues *polled* has said. Of those that it may have
        *left_out*, it does not say whether they are limited."""
        if taken.with_permits or self._limited:
            self._limited.difference_update(set(polled).difference(left_out))
            self._limited.update(taken.with_permits)
        for delivery in taken.deliveries:
            # Most have no unique key.
            if UNIQUE_BEGINS in delivery.payload[:UNIQUE_WITHIN] and delivery.needs_ack:
                field = field_until_ack(delivery.payload)
                if field is not None:
                    self._unique[delivery.tag] = field

    @property
    def limited(self) -> Collection[str]:
        """The queues that are known to have a limited concurrency, or whose keys have one. It changes."""
        return self._limited

    def is_limited(self, queue: str) -> bool:
        """Whether the concurrency of *queue* is limited."""
        return queue in self._limited

    def of(self, queue: str, tag: str) -> Ack:
        """The ack of a message of *queue* that the consumer holds. If a permit is free by it, it wakes
        another consumer; and it frees the unique key."""
        is_limited = queue in self._limited
        field = self._unique.pop(tag, None) if self._unique else None
        if field is None and not is_limited:
            key, before = self._plain.get(queue) or self._plan(queue)
            data = tag.encode()
            packed = b"%b$%d\r\n%b\r\n" % (before, len(data), data)
            return Ack(queue, tag, ("HDEL", key, tag), packed=packed)
        keys = self._store.keys(queue)
        # Another program may have written a key that is empty.
        args = (tag, int(is_limited)) if field is None else (tag, int(is_limited), field)
        used = (keys.unacked(self._consumer), keys.wake)
        return ACK.as_ack(self._store.server, queue, tag, used, args)

    def _plan(self, queue: str) -> tuple[str, bytes]:
        if len(self._plain) >= MOST_PLANS:
            # Some callers get messages of new queues again and again.
            self._plain.clear()
        key = self._store.keys(queue).unacked(self._consumer)
        self._plain[queue] = plan = key, without_last(("HDEL", key, ""))
        return plan

    def forget(self, tag: str) -> None:
        """Note that a message was settled without an ack."""
        self._unique.pop(tag, None)

    def wake(self, queues: Iterable[str]) -> None:
        """Wake a consumer of each of *queues* that is limited: messages of it were settled without an ack."""
        self._store.wake(*self._limited.intersection(queues))
