"""The part of a channel that publishes messages to their queues."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, TypeVar

from kombu.exceptions import OperationalError
from kombu.transport import redis
from kombu.utils.json import JSONEncoder
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from kombu_redisdelay.broker.members import with_own
from kombu_redisdelay.broker.message import (
    DELAY_HEADER,
    KEEP,
    Due,
    deliverable_ms,
    due,
    message_id,
    on_conflict,
)
from kombu_redisdelay.broker.publish_calls import Bound, Call
from kombu_redisdelay.broker.ready import ReadyLists
from kombu_redisdelay.broker.server.scripts import PUBLISH_UNIQUE, SCHEDULE
from kombu_redisdelay.broker.server.wire import without_frames
from kombu_redisdelay.broker.unique import UNIQUE_HEADER, next_replacement, unique_of
from kombu_redisdelay.rpc_results import expires_ms
from kombu_redisdelay.transport.admission import TRANSIENT, Sizes, is_new_work, published_key
from kombu_redisdelay.transport.bindings import is_fanout_of_an_app
from kombu_redisdelay.transport.connecting import as_publisher_sees
from kombu_redisdelay.transport.declaring import DeclaringChannel
from kombu_redisdelay.transport.keyed_message import (
    KeyedMessage,
    Noting,
    PublishedTag,
    fate_by_hand,
    is_repeated,
    tell,
    wanted_fate,
)
from kombu_redisdelay.transport.outbox import Outbox, OutboxCall, ProducerBatch, Refused, Routed, block_for
from kombu_redisdelay.transport.patience import put_into_each

logger = logging.getLogger(__name__)

_Result = TypeVar("_Result")

#: Encodes as kombu does. kombu makes a new encoder for each message, which costs time.
_encoder = JSONEncoder()

_KOMBU_HAS_BATCHES = hasattr(redis.Channel, "create_publish_batch")

#: What is said of a message that may have been published.
UNSURE = (
    "the connection was lost before Redis has confirmed the message, so it may be there: publish it again if "
    "its task may run twice"
)

#: What may put a message into the schedule.
SCHEDULING = (SCHEDULE, PUBLISH_UNIQUE)

#: The types of exchanges that look up their queues, and put a message into each of these.
LOOKED_UP = ("direct", "topic")


class PublishingChannel(DeclaringChannel):
    """Publishes to the queues of one Redis database. kombu handles exchanges and fanout."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._sizes = Sizes(self.options)
        #: kombu's connection, once the channel has lost its own; a weak reference.
        self._owner: Callable[[], Any] = lambda: None
        super().__init__(*args, **kwargs)
        if not self.priority_steps:
            raise ValueError("transport option 'priority_steps' must name one priority at least, not []")

    def basic_publish(self, message: dict[str, Any], exchange: str, routing_key: str, **kwargs: Any) -> Any:
        if self.connection is None:
            # Another thread or another error has closed it. Or kombu has: it connects anew to declare a
            # queue, and then uses the channel that it had before.
            return self._successor().basic_publish(message, exchange, routing_key, **kwargs)
        if "_publish_batch" not in kwargs and (block := block_for(self.connection.client)) is not None:
            return block.publish(self, message, exchange=exchange, routing_key=routing_key, **kwargs)
        if (message["headers"] or {}).get(UNIQUE_HEADER) is not None:
            if is_repeated(message):
                kwargs["_is_repeated"] = True
            fate = fate_by_hand(message["headers"])
            if fate is not None:
                with Noting(fate):
                    self.basic_publish(message, exchange, routing_key, **kwargs)
                if "_publish_batch" not in kwargs:
                    fate.tell()
                return None
        route = self._routes.get(exchange, routing_key)
        if route is None or route.queue in self.store.expires_ms:
            if exchange and exchange not in self.state.exchanges:
                if is_fanout_of_an_app(exchange):
                    self._inplace_augment_message(message, exchange, routing_key)
                    return self._put_fanout(exchange, message, routing_key, **kwargs)
                self.learn_type(exchange)
            if exchange and "_publish_batch" not in kwargs:
                return self._publish_to_each(message, exchange, routing_key, **kwargs)
            return super().basic_publish(message, exchange, routing_key, **kwargs)
        self._inplace_augment_message(message, exchange, routing_key)
        self._publish_to(route.queue, message, route.bound, Routed(message, exchange, routing_key), **kwargs)
        return None

    def _publish_to_each(
        self, message: dict[str, Any], exchange: str, routing_key: str, **kwargs: Any
    ) -> None:
        """Publish *message* as kombu does, but to none of its queues if one of them is full, and to each of
        them only once."""
        kind = self.typeof(exchange).type
        if kind not in LOOKED_UP:
            super().basic_publish(message, exchange, routing_key, **kwargs)
            return
        self._inplace_augment_message(message, exchange, routing_key)
        queues = list(self._lookup(exchange, routing_key))
        if kind == "topic":
            queues = [queue for queue in queues if queue and queue != self.deadletter_queue]
        if self.connection.bounds.of and is_new_work(message):
            names, bounds = [self._partition(queue, message) for queue in queues], self.connection.bounds.of
            self._admit(Counter(name for name in names if name in bounds), bounds)
        put_into_each(queues, lambda queue: self._put(queue, message, _is_admitted=True, **kwargs))

    def _next_delivery_tag(self) -> PublishedTag:
        return PublishedTag(super()._next_delivery_tag())

    def _successor(self) -> Any:
        """The channel that has taken the place of this one, whose connection was lost.

        Raises:
            ConnectionError: there is none, because there is no new connection, or the application has closed
                this channel.
        """
        owner = self._owner()
        if owner is not None and owner.connected:
            channel = owner.default_channel
            if channel is not self:
                return channel
        raise RedisConnectionError("the channel is closed, because its connection was lost")

    def _publish_anew(self, routed: Routed) -> None:
        """Publish a message again: the bindings that it was routed by have changed."""
        self._routes.forget(routed.exchange, routed.routing_key)
        self.typeof(routed.exchange).deliver(*routed, _is_admitted=True)

    def _put(self, queue: str, message: dict[str, Any], **kwargs: Any) -> None:
        """Publish *message* to *queue*, now or for later.

        Raises:
            ValueError: the due time or the header ``x-delay-on-conflict`` is invalid, or the message is too
                large. Nothing was published.
        """
        self._publish_to(queue, message, **kwargs)

    def _publish_to(
        self,
        queue: str,
        message: dict[str, Any],
        bound: Bound | None = None,
        routed: Routed | None = None,
        *,
        _publish_batch: Outbox | None = None,
        _is_repeated: bool = False,
        _is_admitted: bool = False,
        **_: Any,
    ) -> None:
        """Publish *message* to *queue*.

        Arguments:
            bound: the bindings that the message was routed by, if they come from the cache. The server then
                checks that they are still the same.
            routed: what it was routed by, to do that again if they are not.

        Raises:
            QueueFull: the queue has a bound, and the message is new work.
        """
        queue = self._partition(queue, message)
        keyed = self._keyed(queue, message, bound, is_repeated=_is_repeated)
        call = self._call(queue, message, bound) if keyed is None else keyed.call()
        connection, most = self.connection, None
        if queue in connection.bounds.of and not _is_admitted and is_new_work(message):
            most = connection.bounds.of[queue]
        if _publish_batch is not None:
            is_to_note = queue in connection.declared_queues or _is_routed_work(message)
            _publish_batch.add_call(OutboxCall(queue, call, routed, keyed, most, is_to_note))
            return
        if most is not None:
            self._admit({queue: 1}, {queue: most})
        reply = self._run(queue, call)
        if queue not in connection.declared_queues and _is_routed_work(message):
            self.store.try_to_remember(queue)
        if keyed is not None:
            reply = self._follow(keyed, reply)
        if not reply and routed is not None:
            self._publish_anew(routed)

    def _admit(self, counts: Mapping[str, int], bounds: Mapping[str, int]) -> None:
        """Make sure that queues with *bounds* have room for so many messages.

        Raises:
            QueueFull: one of them has not.
        """
        if counts:
            self.connection.lengths.admit(counts, bounds, self._lengths)

    def _lengths(self, queues: Sequence[str]) -> list[int]:
        ready = ReadyLists(self.store)
        return self._wait_for(self.store.slot(queues[0]), lambda: ready.counts(queues, with_scheduled=True))

    def _keyed(
        self, queue: str, message: dict[str, Any], bound: Bound | None, *, is_repeated: bool
    ) -> KeyedMessage | None:
        unique = unique_of(message["headers"]) if message["headers"] else None
        if unique is None:
            return None
        step = self.priority(self._get_message_priority(message))
        id = message_id(message)
        fate = wanted_fate(id)
        if fate is not None:
            fate.channel, fate.properties = self, message["properties"]
        keyed = KeyedMessage(
            *(self.store, queue, step, message, unique, bound, self._encode),
            *(id, is_repeated, fate),
        )
        keyed.check()
        return keyed

    def _follow(self, keyed: KeyedMessage, reply: Any) -> Any:
        """Do what the *reply* to the call of a message says, until it is published or dropped. Returns the
        last reply."""
        if reply == 1:
            # Most messages.
            if keyed.fate is not None:
                keyed.fate.note(None)
            return reply
        while (instead := next_replacement(reply)) is not None:
            reply = self._run(keyed.queue, keyed.call(instead))
        if reply:
            tell(keyed.queue, keyed.message["headers"], keyed.id, keyed.conflict_in(reply), keyed.fate)
        return reply

    def add_to(self, outbox: Outbox, message: dict[str, Any], **kwargs: Any) -> None:
        """As :meth:`~kombu_redisdelay.transport.outbox.Sender.add_to`."""
        with outbox.one_message():
            self.basic_publish(message, _publish_batch=outbox, **kwargs)

    def send(self, outbox: Outbox) -> list[Refused]:
        """As :meth:`~kombu_redisdelay.transport.outbox.Sender.send`."""
        calls, commands = list(outbox.calls), list(outbox.commands)
        outbox.clear()
        bounds = {each.queue: each.most for _, each in calls if each.most is not None}
        self._admit(Counter(each.queue for _, each in calls if each.most is not None), bounds)
        replies: list[Any] = []
        if calls:
            self.store.remember(*dict.fromkeys(each.queue for _, each in calls if each.call[0] in SCHEDULING))
            replies = self.store.run_all([each.call for _, each in calls])
            self.connection.has_published = True
            self.store.try_to_remember(*dict.fromkeys(each.queue for _, each in calls if each.is_to_note))
            for index, (_, each) in enumerate(calls):
                try:
                    if each.keyed is not None and not isinstance(replies[index], ResponseError):
                        replies[index] = self._follow(each.keyed, replies[index])
                    if replies[index] == 0 and each.routed is not None:
                        with Noting(each.keyed and each.keyed.fate):
                            self._publish_anew(each.routed)
                except ResponseError as exc:
                    replies[index] = without_frames(exc)
            for fate in {each.keyed.fate for _, each in calls if each.keyed is not None}:
                if fate is not None:
                    fate.tell()
        if commands:
            with self.conn_or_acquire() as client, client.pipeline(transaction=False) as pipe:
                for name, args in commands:
                    getattr(pipe, name)(*args)
                pipe.execute()
        return [
            Refused(message, reply)
            for (message, _), reply in zip(calls, replies, strict=True)
            if isinstance(reply, ResponseError)
        ]

    def _partition(self, queue: str, message: dict[str, Any]) -> str:
        """The partition of *queue* that *message* belongs to."""
        if not self.options.partitions:
            return queue
        # Messages with the same key are in the same partition.
        key = (message["headers"] or {}).get(UNIQUE_HEADER) or message_id(message)
        name = self.store.partitions.pick(queue, str(key))
        if name != queue:
            # So that a program without the option `partitions` sees that there is one with messages.
            self.store.remember(name)
        return name

    def _run(self, queue: str, call: Call) -> Any:
        reply = self._wait_for(self.store.slot(queue), lambda: self._run_once(queue, call))
        self.connection.has_published = True
        self.note_use([queue])
        return reply

    def _run_once(self, queue: str, call: Call) -> Any:
        if call[0] in SCHEDULING:
            self.store.remember(queue)
        try:
            return self.store.run(call)
        except (RedisConnectionError, RedisTimeoutError) as exc:
            # Others say that nothing was done, or what has to be changed.
            if self.connection.patience is None or type(exc) not in (RedisConnectionError, RedisTimeoutError):
                raise
            # After this error, kombu does not publish it again.
            raise OperationalError(f"{UNSURE} ({exc})") from exc

    def note_use(self, queues: Collection[str]) -> None:
        """Note in Redis that messages were published to those of *queues* that were declared: consumers do
        not note a misspelt name. Once a minute for each queue, this is a round trip."""
        if self.connection is not None:
            declared = self.connection.declared_queues
            self.store.try_to_remember(*[queue for queue in queues if queue in declared])

    def _call(self, queue: str, message: dict[str, Any], bound: Bound | None = None) -> Call:
        """The call that publishes *message* to *queue*.

        Arguments:
            bound: the bindings that the message was routed by, if they come from the cache. The server then
                checks that they are still the same.
        """
        when = due(message)
        conflict = on_conflict(message)
        if when is None and conflict != KEEP:
            when = Due()
        step = self.priority(self._get_message_priority(message))
        payload = self._encode(with_own(message, deliverable_ms(when), published_key(message)))
        if when is None:
            # Answers have it, and tasks, for which nothing is called here.
            is_answer = "correlation_id" in message["properties"] and "task" not in (message["headers"] or ())
            return self.store.put(
                queue, step, payload, bound=bound, expires_ms=expires_ms() if is_answer else 0
            )
        return self.store.schedule(queue, step, payload, when, message_id(message), conflict, bound)

    def _encode(self, message: Mapping[str, Any]) -> str:
        """*message* as text, which is ASCII.

        Raises:
            ValueError: it is too large.
        """
        text = _encoder.encode(message)
        if len(text) > self._sizes.noted:
            self._sizes.check(message, len(text))
        return text

    def create_publish_batch(self, max_size: int) -> ProducerBatch:
        """Return the batch that ``Producer.batch`` of kombu 5.7 publishes through.

        Arguments:
            max_size: the largest number of messages in the batch.
        """
        return ProducerBatch(self, max_size)

    def _put_fanout(self, exchange: str, message: dict[str, Any], routing_key: str, **kwargs: Any) -> None:
        if (message["headers"] or {}).get(UNIQUE_HEADER) is not None:
            raise ValueError(
                f"header {UNIQUE_HEADER!r} cannot be used with the fanout exchange {exchange!r}: a key is "
                "held in a queue"
            )
        when = due(message)
        if when is not None and when.delay_ms:
            raise ValueError(
                f"header {DELAY_HEADER!r} cannot be used with the fanout exchange {exchange!r}: "
                "PUB/SUB reaches only those that listen now"
            )
        outbox: Outbox | None = kwargs.get("_publish_batch")
        if outbox is None or _KOMBU_HAS_BATCHES:
            try:
                super()._put_fanout(exchange, message, routing_key, **kwargs)
            except ResponseError as exc:
                raise as_publisher_sees(exc) from None
        else:
            outbox.add("publish", self._get_publish_topic(exchange, routing_key), _encoder.encode(message))


def _is_routed_work(message: Mapping[str, Any]) -> bool:
    """Whether *message* goes to a queue that another program has bound to an exchange, and is no reply."""
    properties = message["properties"]
    exchange = (properties.get("delivery_info") or {}).get("exchange")
    return bool(exchange) and properties.get("delivery_mode") != TRANSIENT
