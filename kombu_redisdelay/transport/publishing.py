"""The part of a channel that publishes: queues and bindings, and how messages get there."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable
from time import monotonic
from typing import Any, TypeVar

from kombu.exceptions import OperationalError
from kombu.transport import redis
from kombu.utils.json import JSONEncoder
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import OutOfMemoryError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from kombu_redisdelay.broker.bindings import BINDING
from kombu_redisdelay.broker.fair_key import member_of
from kombu_redisdelay.broker.fair_keys import ON
from kombu_redisdelay.broker.fair_queues import FairQueues
from kombu_redisdelay.broker.keys import is_ours
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
from kombu_redisdelay.broker.partitions import taken
from kombu_redisdelay.broker.server.replies import explained, without_frames
from kombu_redisdelay.broker.server.scripts import PUBLISH_UNIQUE, SCHEDULE
from kombu_redisdelay.broker.store import Bound, Call
from kombu_redisdelay.broker.unique import UNIQUE_HEADER, conflict_in, next_replacement, unique_of
from kombu_redisdelay.transport.block import block_for
from kombu_redisdelay.transport.connecting import ConnectingChannel
from kombu_redisdelay.transport.exchanges import is_fanout_of_an_app
from kombu_redisdelay.transport.fates import fate_by_hand, noting, tell, wanted_fate
from kombu_redisdelay.transport.keyed_message import KeyedMessage, PublishedTag, is_repeated
from kombu_redisdelay.transport.outbox import Outbox, OutboxCall, Refused, Routed
from kombu_redisdelay.transport.producer_batch import ProducerBatch
from kombu_redisdelay.transport.routes import Routes

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

#: Seconds between two attempts to note bindings that Redis had no memory for.
BIND_PAUSE = 1.0


class PublishingChannel(ConnectingChannel):
    """Publishes to the queues of one Redis database. kombu handles exchanges, bindings and fanout."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._routes = Routes()
        #: kombu's connection, once the channel has lost its own; a weak reference.
        self._owner: Callable[[], Any] = lambda: None
        #: Bindings that Redis had no memory for, arguments of `_queue_bind` -> whether the log tells of it.
        self._unbound: dict[tuple[str, str, str, str], bool] = {}
        self._bind_at = 0.0
        super().__init__(*args, **kwargs)
        if not self.priority_steps:
            raise ValueError("transport option 'priority_steps' must name one priority at least, not []")

    # -- publishing ------------------------------------------------------------------------------------

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
                with noting(fate):
                    self.basic_publish(message, exchange, routing_key, **kwargs)
                if "_publish_batch" not in kwargs:
                    fate.tell()
                return None
        route = self._routes.get(exchange, routing_key)
        if route is None or route.queue in self.store.expires_ms:
            if exchange and exchange not in self.state.exchanges and is_fanout_of_an_app(exchange):
                self._inplace_augment_message(message, exchange, routing_key)
                return self._put_fanout(exchange, message, routing_key, **kwargs)
            return super().basic_publish(message, exchange, routing_key, **kwargs)
        self._inplace_augment_message(message, exchange, routing_key)
        self._publish_to(route.queue, message, route.bound, Routed(message, exchange, routing_key), **kwargs)
        return None

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

    def _wait_to_bind(self, do: Callable[[], _Result]) -> _Result:
        """The same for what reads or notes bindings. On a cluster, all of them are in one slot."""
        return self._wait_for("bindings", do)

    def _publish_anew(self, routed: Routed) -> None:
        """Publish a message again: the bindings that it was routed by have changed."""
        self._routes.forget(routed.exchange, routed.routing_key)
        self.typeof(routed.exchange).deliver(*routed)

    def get_table(self, exchange: str) -> list[tuple[str, ...]]:
        # A message must not miss its queue.
        self._bind_again()
        key = self.global_keyprefix + self.keyprefix_queue % (exchange,)
        block = block_for(self.connection.client)
        bindings = None if block is None else block.tables.get(key)
        if bindings is None:
            bindings = self._wait_to_bind(lambda: self.store.server.call("SMEMBERS", key))
            if block is not None:
                block.tables[key] = bindings
        self._routes.has_read(key, bindings)
        table = (tuple(binding.decode().split(self.sep)) for binding in bindings)
        # Programs with another `sep` have bindings in there which cannot be read.
        return [binding for binding in table if len(binding) == BINDING]

    def _lookup(self, exchange: str, routing_key: str, default: str | None = None) -> Collection[str]:
        queues: Collection[str] = super()._lookup(exchange, routing_key, default)
        if exchange:
            self._routes.found(exchange, routing_key, queues)
        return queues

    def _put(self, queue: str, message: dict[str, Any], **kwargs: Any) -> None:
        """Publish *message* to *queue*, now or for later.

        Raises:
            ValueError: the due time or the header ``x-delay-on-conflict`` is invalid. Nothing was published.
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
        **_: Any,
    ) -> None:
        """Publish *message* to *queue*.

        Arguments:
            bound: the bindings that the message was routed by, if they come from the cache. The server then
                checks that they are still the same.
            routed: what it was routed by, to do that again if they are not.
        """
        queue = self._partition(queue, message)
        keyed = self._keyed(queue, message, bound, is_repeated=_is_repeated)
        call = self._call(queue, message, bound) if keyed is None else keyed.call()
        if _publish_batch is not None:
            _publish_batch.add_call(OutboxCall(queue, call, routed, keyed))
            return
        reply = self._run(queue, call)
        if keyed is not None:
            reply = self._follow(keyed, reply)
        if not reply and routed is not None:
            self._publish_anew(routed)

    def _keyed(
        self, queue: str, message: dict[str, Any], bound: Bound | None, *, is_repeated: bool
    ) -> KeyedMessage | None:
        unique = unique_of(message["headers"]) if message["headers"] else None
        if unique is None:
            return None
        step = self.priority(self._get_message_priority(message))
        id = message_id(message)
        keyed = KeyedMessage(
            *(self.store, queue, step, message, unique, bound, _encoder.encode),
            *(id, is_repeated, wanted_fate(id)),
        )
        keyed.check()
        return keyed

    def _follow(self, keyed: KeyedMessage, reply: Any) -> Any:
        """Do what the *reply* to the call of a message says, until it is published or dropped. Returns the
        last reply."""
        while (instead := next_replacement(reply)) is not None:
            reply = self._run(keyed.queue, keyed.call(instead))
        if reply:
            tell(keyed.queue, keyed.message["headers"], keyed.id, conflict_in(reply), keyed.fate)
        return reply

    def add_to(self, outbox: Outbox, message: dict[str, Any], **kwargs: Any) -> None:
        """As :meth:`~kombu_redisdelay.transport.outbox.Sender.add_to`."""
        with outbox.one_message():
            self.basic_publish(message, _publish_batch=outbox, **kwargs)

    def send(self, outbox: Outbox) -> list[Refused]:
        """As :meth:`~kombu_redisdelay.transport.outbox.Sender.send`."""
        calls, commands = list(outbox.calls), list(outbox.commands)
        outbox.clear()
        replies: list[Any] = []
        if calls:
            self.store.remember(*dict.fromkeys(each.queue for _, each in calls if each.call[0] in SCHEDULING))
            replies = self.store.run_all([each.call for _, each in calls])
            self.connection.has_published = True
            self.note_use(dict.fromkeys(each.queue for _, each in calls))
            for index, (_, each) in enumerate(calls):
                try:
                    if each.keyed is not None and not isinstance(replies[index], ResponseError):
                        replies[index] = self._follow(each.keyed, replies[index])
                    if replies[index] == 0 and each.routed is not None:
                        with noting(each.keyed and each.keyed.fate):
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
        key = member_of(message["headers"]) if message["headers"] else None
        payload = _encoder.encode(with_own(message, deliverable_ms(when), key))
        if when is None:
            return self.store.put(queue, step, payload, bound=bound)
        return self.store.schedule(queue, step, payload, when, message_id(message), conflict, bound)

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
            super()._put_fanout(exchange, message, routing_key, **kwargs)
        else:
            outbox.add("publish", self._get_publish_topic(exchange, routing_key), _encoder.encode(message))

    # -- queues and bindings ---------------------------------------------------------------------------

    def _new_queue(self, queue: str, auto_delete: bool = False, **kwargs: Any) -> None:
        whose = self.store.partitions.queue_of(queue)
        if whose != queue:
            raise ValueError(taken(queue, whose))
        if is_ours(queue):
            raise ValueError(
                f"a queue cannot be named {queue!r}, because the transport has a key of this name"
            )
        arguments, names = kwargs.get("arguments") or {}, self.store.partitions.names(queue)
        expires_ms, is_fair = arguments.get("x-expires"), bool(arguments.get("x-fair"))
        if expires_ms is not None and is_fair:
            raise ValueError(
                f"queue {queue!r} cannot be both fair ('x-fair') and declared with 'x-expires': Redis would "
                "expire the list of each key by itself"
            )
        super()._new_queue(queue, auto_delete=auto_delete, **kwargs)
        if not auto_delete:
            self.connection.declared_queues.update(names)
        for name in names:
            if expires_ms is None:
                self.store.expires_ms.pop(name, None)
            else:
                self.store.expires_ms[name] = int(expires_ms)
        if is_fair:
            fair = FairQueues(self.store)
            if set(fair.states(names)) != {ON}:
                fair.switch_on(names)

    def queue_declare(self, queue: str | None = None, *args: Any, **kwargs: Any) -> Any:
        declare = super().queue_declare
        return self._wait_for(self.store.slot(queue or ""), lambda: declare(queue, *args, **kwargs))

    def _queue_bind(self, exchange: str, routing_key: str, pattern: str, queue: str) -> None:
        block = block_for(self.connection.client)
        if block is not None:
            block.tables.clear()
        bind = super()._queue_bind
        try:
            self._wait_to_bind(lambda: bind(exchange, routing_key, pattern, queue))
        except ResponseError as exc:
            if not self.is_out_of_memory(exc):
                raise
            # A worker must be able to start: the tasks that it runs give memory back.
            self._unbound[exchange, routing_key, pattern, queue] = False

    def is_out_of_memory(self, error: ResponseError) -> bool:
        """Whether Redis refused because it is full."""
        return isinstance(explained(error, self.store.server, ()), OutOfMemoryError)

    def bind_later(self, queues: Iterable[str]) -> None:
        """Have the bindings of *queues* noted again when Redis has memory for it."""
        for queue in queues:
            for exchange, routing_key, args in self.state.queue_bindings(queue):
                _, pattern, _ = self.typeof(exchange).prepare_bind(queue, exchange, routing_key, args)
                self._unbound.setdefault((exchange, routing_key, pattern, queue), False)

    def _bind_again(self) -> None:
        """Note the bindings that Redis had no memory for.

        Raises:
            OutOfMemoryError: it still has none.
        """
        for binding in list(self._unbound):
            super()._queue_bind(*binding)
            del self._unbound[binding]

    def try_to_bind(self) -> None:
        """Note the bindings that Redis had no memory for, if it is time to try that again."""
        if self._unbound and monotonic() > self._bind_at:
            self._bind_at = monotonic() + BIND_PAUSE
            try:
                self._bind_again()
            except ResponseError:
                self._tell_of_unbound()

    def _tell_of_unbound(self) -> None:
        """Log each binding once. A channel that only publishes gets an error instead, and does not come
        here."""
        for binding, is_told in self._unbound.items():
            if not is_told:
                exchange, _, _, queue = binding
                logger.warning(
                    "Redis is out of memory and has not noted that queue %r is bound to exchange %r. "
                    "Trying again each second.",
                    queue,
                    exchange,
                )
                self._unbound[binding] = True
