"""The part of a channel that publishes messages to their queues."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from os import urandom
from time import monotonic
from typing import Any, TypeVar

from kombu.exceptions import OperationalError
from kombu.utils.json import JSONEncoder
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from kombu_redisdelay.broker.members import DUE, with_own
from kombu_redisdelay.broker.message import DELAY_HEADER, deliverable_ms, due, message_id
from kombu_redisdelay.broker.outgoing import (
    ASKING,
    ASKING_MORE,
    Addressed,
    Outbox,
    Outgoing,
    has_times,
    key_in,
)
from kombu_redisdelay.broker.plan import Plan, plan
from kombu_redisdelay.broker.publish_calls import Bindings
from kombu_redisdelay.broker.ready import ReadyLists
from kombu_redisdelay.broker.server.wire import without_frames
from kombu_redisdelay.broker.unique import UNIQUE_HEADER
from kombu_redisdelay.rpc_results import expires_ms
from kombu_redisdelay.transport.admission import Sizes
from kombu_redisdelay.transport.bindings import is_fanout_of_an_app
from kombu_redisdelay.transport.connecting import as_publisher_sees
from kombu_redisdelay.transport.declaring import DeclaringChannel
from kombu_redisdelay.transport.outbox import ProducerBatch, RefusedMessage, block_for
from kombu_redisdelay.transport.patience import put_into_each

_Result = TypeVar("_Result")

#: Encodes as kombu does. kombu makes a new encoder for each message, which costs time.
_encode = JSONEncoder().encode

#: Queues and priorities of which a channel remembers how it publishes to them.
MOST_PLANS = 1000

#: What is said of a message that may have been published.
UNSURE = (
    "the connection was lost before Redis has confirmed the message, so it may be there: publish it again if "
    "its task may run twice"
)


class PublishedTag(str):
    """A delivery tag that a message got when it was published by this process.

    kombu publishes a message again with the same properties. An application may publish one that it has
    received, with the tag that it came with.
    """

    __slots__ = ()


class PublishingChannel(DeclaringChannel):
    """Publishes to the queues of one Redis database. kombu handles exchanges and fanout.

    A message is read once, and what it says goes with it: to each of its queues, or into an outbox, which is
    sent later.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._sizes = Sizes(self.options)
        #: Queue and the priority that a message names -> how plain messages are published.
        self._plans: dict[tuple[str, Any], Plan] = {}
        #: kombu's connection, once the channel has lost its own; a weak reference.
        self._owner: Callable[[], Any] = lambda: None
        super().__init__(*args, **kwargs)
        if not self.priority_steps:
            raise ValueError("transport option 'priority_steps' must name one priority at least, not []")
        priorities = range(self.min_priority, self.max_priority + 1)
        #: The priority that a message names -> its priority step.
        self._steps = {each: self._step_of({"properties": {"priority": each}}) for each in priorities}

    def basic_publish(self, message: dict[str, Any], exchange: str, routing_key: str, **kwargs: Any) -> Any:
        """Publish *message*, or hold it back in the block of ``batch`` around the caller.

        Raises:
            ValueError: the due time or another header is invalid, or the message is too large. Nothing was
                published.
            QueueFull: a queue has a bound, and the message is new work. Nothing was published.
            RedisError: the connection failed, or the server refused.
            PartlyPublishedError: only some of its queues have it.
        """
        if self.connection is None:
            # Another thread or another error has closed it. Or kombu has: it connects anew to declare a
            # queue, and then uses the channel that it had before.
            return self._successor().basic_publish(message, exchange, routing_key, **kwargs)
        block = block_for(self.connection.client)
        if block is not None:
            return block.publish(self, message, exchange, routing_key)
        return self._publish(message, exchange, routing_key, None)

    def add_to(
        self, outbox: Outbox, message: dict[str, Any], exchange: str, routing_key: str, **kwargs: Any
    ) -> None:
        """As :meth:`~kombu_redisdelay.transport.outbox.Sender.add_to`."""
        channel = self if self.connection is not None else self._successor()
        channel._publish(message, exchange, routing_key, outbox)

    def _publish(
        self, message: dict[str, Any], exchange: str, routing_key: str, outbox: Outbox | None
    ) -> None:
        tag = message["properties"].get("delivery_tag")
        self._inplace_augment_message(message, exchange, routing_key)
        if not exchange and outbox is None and self._has_pushed(message, routing_key):
            return
        route = self._routes.get(exchange, routing_key) if exchange else None
        if route is not None and route.queue not in self.store.expires_ms:
            queues, bindings = [route.queue], route.bindings
        elif exchange and self._is_fanout(exchange):
            self._publish_to_all(Outgoing(message, 0, _encode), outbox)
            return
        else:
            queues, bindings = self._queues_of(exchange, routing_key), None
        self._send(self._outgoing(message, isinstance(tag, PublishedTag)), queues, bindings, outbox)

    def _has_pushed(self, message: dict[str, Any], queue: str) -> bool:
        """Publish *message* to *queue* by a plan, if both are plain. Returns whether it is done."""
        headers, properties, connection = message["headers"], message["properties"], self.connection
        store = self.store
        if queue in store.expires_ms or queue in connection.bounds.of:
            return False
        key = None
        if not ASKING.isdisjoint(headers or ()):
            if not ASKING_MORE.isdisjoint(headers):
                return False
            try:
                key = key_in(headers)
            except ValueError:
                # The other way says what is wrong.
                return False
        if DUE in message:
            return False
        if "correlation_id" in properties and not (headers and "task" in headers):
            # An answer, which expires.
            return False
        plan: Plan | None
        try:
            plan = self._plans[queue, properties["priority"]]
        except (KeyError, TypeError):
            plan = self._plan(queue, properties.get("priority"))
        if plan is None:
            return False
        when = due(message) if headers and has_times(headers) else None
        text = with_own(_encode(message), deliverable_ms(when), key)
        if len(text) > self._sizes.noted:
            return False
        if when is None:
            do = partial(store.push, plan, text)
        else:
            do = partial(store.push_later, plan, queue, text, when.at_ms, message_id(message))
        if connection.patience is not None:
            self._in_time(do, queue)
        else:
            try:
                do()
            except ResponseError as exc:
                raise as_publisher_sees(exc) from None
        connection.has_published = True
        if queue in connection.declared_queues and monotonic() >= store.known_until.get(queue, 0):
            store.try_to_remember(queue)
        return True

    def _plan(self, queue: str, priority: Any) -> Plan | None:
        """How to publish plain messages to *queue*; ``None`` if that takes more than a plan."""
        is_plain = not self.options.partitions and not self.store.confirms
        if not is_plain or type(priority) is not int:
            return None
        step = self._steps.get(priority)
        if step is None:
            return None
        if len(self._plans) >= MOST_PLANS:
            self._plans.clear()
        self._plans[queue, priority] = new = plan(self.store.keys(queue), step)
        return new

    def _put(self, queue: str, message: dict[str, Any], **kwargs: Any) -> None:
        """As kombu's, which calls it for what goes back to its queue without ack emulation."""
        self._send(self._outgoing(message), [queue])

    def _next_delivery_tag(self) -> PublishedTag:
        # As kombu's, which is a random UUID (RFC 9562, version 4). Its class takes longer than all else here.
        digits = urandom(16).hex()
        parts = digits[:8], digits[8:12], digits[13:16], "89ab"[int(digits[16], 16) & 3], digits[17:20]
        return PublishedTag("{}-{}-4{}-{}{}-{}".format(*parts, digits[20:]))

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

    # -- where a message goes --------------------------------------------------------------------------

    def _is_fanout(self, exchange: str) -> bool:
        if exchange not in self.state.exchanges:
            if is_fanout_of_an_app(exchange):
                return True
            self.learn_type(exchange)
        return bool(self.typeof(exchange).type == "fanout")

    def _queues_of(self, exchange: str, routing_key: str) -> list[str]:
        """The queues that *exchange* routes to, each once."""
        if not exchange:
            return [routing_key]
        queues = list(self._lookup(exchange, routing_key))
        if self.typeof(exchange).type != "topic":
            return queues
        # As kombu does.
        return [queue for queue in queues if queue and queue != self.deadletter_queue]

    def _partitions(self, queues: Sequence[str], message: Outgoing) -> list[str]:
        """The partitions of *queues* that *message* belongs to."""
        names = [self.store.partitions.pick(queue, message.partition_key) for queue in queues]
        # So that a program without the option `partitions` sees that there is one with messages.
        self.store.remember(*set(names).difference(queues))
        return names

    # -- the message -----------------------------------------------------------------------------------

    def _outgoing(self, message: dict[str, Any], is_repeated: bool = False) -> Outgoing:
        try:
            step = self._steps[message["properties"]["priority"]]
        except (KeyError, TypeError):
            step = self._step_of(message)
        outgoing = Outgoing(message, step, _encode, is_repeated)
        outgoing.write()
        if len(outgoing.text) > self._sizes.noted:
            self._sizes.check(outgoing)
        if outgoing.is_answer:
            outgoing.list_expires_ms = expires_ms()
        if outgoing.unique is not None and "celery" in sys.modules:
            # It needs Celery, which need not be there.
            from kombu_redisdelay.transport.unique_results import attach_result

            attach_result(self, outgoing)
        return outgoing

    def _step_of(self, message: Mapping[str, Any]) -> int:
        return int(self.priority(self._get_message_priority(message)))

    # -- sending ---------------------------------------------------------------------------------------

    def _send(
        self,
        message: Outgoing,
        queues: list[str],
        bindings: Bindings | None = None,
        outbox: Outbox | None = None,
    ) -> None:
        """Publish *message* to *queues*, or put it into *outbox*.

        Arguments:
            bindings: those that it was routed by, if they come from the cache. The server then checks
                that they are still the same.
        """
        if self.options.partitions:
            queues = self._partitions(queues, message)
        connection = self.connection
        bounds: Mapping[str, int] = connection.bounds.of
        if bounds and (bounds.keys().isdisjoint(queues) or not message.is_new_work):
            bounds = {}
        declared = connection.declared_queues
        addressed = [
            Addressed(message, queue, bindings, bounds.get(queue), queue in declared) for queue in queues
        ]
        if outbox is not None:
            outbox.add(message, addressed, self.store)
            return
        if bounds:
            self._admit(addressed)
        try:
            put_into_each(addressed, self._send_to)
        finally:
            if message.tell is not None:
                message.tell()

    def _send_to(self, each: Addressed) -> None:
        reply = self._in_time(lambda: each.publish(self.store), each.queue)
        self.connection.has_published = True
        if not reply and each.bindings is not None:
            self._publish_anew(each.message)

    def _in_time(self, do: Callable[[], _Result], queue: str) -> _Result:
        """Call *do*, which publishes to *queue*. Where there may be a failover, wait for it."""
        return self._wait_for(lambda: self._once(do), queue)

    def _once(self, do: Callable[[], _Result]) -> _Result:
        try:
            return do()
        except (RedisConnectionError, RedisTimeoutError) as exc:
            # Others say that nothing was done, or what has to be changed.
            if self.connection.patience is None or type(exc) not in (RedisConnectionError, RedisTimeoutError):
                raise
            # After this error, kombu does not publish it again.
            raise OperationalError(f"{UNSURE} ({exc})") from exc

    def _publish_anew(self, message: Outgoing) -> None:
        """Publish a message again: the bindings that it was routed by have changed."""
        self._routes.forget(*message.destination)
        queues = self._partitions(self._queues_of(*message.destination), message)
        put_into_each([Addressed(message, queue) for queue in queues], self._send_to)

    def _publish_to_all(self, message: Outgoing, outbox: Outbox | None) -> None:
        """Publish *message* to a fanout exchange."""
        exchange, routing_key = message.destination
        if message.unique is not None:
            raise ValueError(
                f"header {UNIQUE_HEADER!r} cannot be used with the fanout exchange {exchange!r}: a key is "
                "held in a queue"
            )
        if message.due is not None and message.due.delay_ms:
            raise ValueError(
                f"header {DELAY_HEADER!r} cannot be used with the fanout exchange {exchange!r}: "
                "PUB/SUB reaches only those that listen now"
            )
        message.text = _encode(message.message)
        topics = self._topics(exchange, routing_key)
        if outbox is not None:
            outbox.add_fanout(message, topics)
            return
        try:
            with self.conn_or_acquire() as client:
                for topic in topics:
                    client.publish(topic, message.text)
        except ResponseError as exc:
            raise as_publisher_sees(exc) from None

    def _topics(self, exchange: str, routing_key: str) -> list[str]:
        """The topics of PUB/SUB that a fanout exchange publishes to."""
        if hasattr(self, "_get_publish_topics"):
            # New in kombu 5.7: with sentinels, there may be two.
            return list(self._get_publish_topics(exchange, routing_key))
        return [str(self._get_publish_topic(exchange, routing_key))]

    def _admit(self, addressed: Sequence[Addressed]) -> None:
        """Make sure that queues have room for messages that they may refuse.

        Raises:
            QueueFull: one of them has not.
        """
        bounds = {each.queue: each.max_length for each in addressed if each.max_length is not None}
        if bounds:
            counts = Counter(each.queue for each in addressed if each.max_length is not None)
            self.connection.lengths.admit(counts, bounds, self._lengths)

    def _lengths(self, queues: Sequence[str]) -> list[int]:
        ready = ReadyLists(self.store)
        return self._wait_for(lambda: ready.counts(queues, with_scheduled=True), queues[0])

    # -- together with others --------------------------------------------------------------------------

    def create_publish_batch(self, max_size: int) -> ProducerBatch:
        """Return the batch that ``Producer.batch`` of kombu 5.7 publishes through.

        Arguments:
            max_size: the largest number of messages in the batch.
        """
        return ProducerBatch(self, max_size)

    def send(self, outbox: Outbox) -> list[RefusedMessage]:
        """As :meth:`~kombu_redisdelay.transport.outbox.Sender.send`."""
        self._admit(outbox.addressed)
        replies: list[Any] = []
        if outbox.addressed:
            replies = outbox.publish(self.store)
            self.connection.has_published = True
            for index, each in enumerate(outbox.addressed):
                try:
                    if not isinstance(replies[index], ResponseError):
                        replies[index] = self._followed(each, replies[index])
                except ResponseError as exc:
                    replies[index] = without_frames(exc)
            for message in outbox.messages:
                if message.tell is not None:
                    message.tell()
        if outbox.fanout:
            with self.conn_or_acquire() as client, client.pipeline(transaction=False) as pipe:
                for topic, text in outbox.fanout:
                    pipe.publish(topic, text)
                pipe.execute()
        return [
            RefusedMessage(each.message, reply)
            for each, reply in zip(outbox.addressed, replies, strict=True)
            if isinstance(reply, ResponseError)
        ]

    def _followed(self, each: Addressed, reply: Any) -> Any:
        """Do what the *reply* to a message says. Returns the last reply."""
        if each.message.unique is not None:
            reply = self._in_time(lambda: each.follow(self.store, reply), each.queue)
        if not reply and each.bindings is not None:
            self._publish_anew(each.message)
        return reply
