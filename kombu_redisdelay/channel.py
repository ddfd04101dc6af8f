"""A kombu channel over the broker: kombu's vocabulary on top, the broker's below."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from time import monotonic
from typing import Any

from kombu.transport import redis, virtual
from kombu.utils.json import JSONEncoder
from redis import BlockingConnectionPool
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError

from kombu_redisdelay.batch import Batch
from kombu_redisdelay.broker.client import Client
from kombu_redisdelay.broker.consumer import Consumer
from kombu_redisdelay.broker.identity import new_consumer
from kombu_redisdelay.broker.lease import RENEWALS_PER_LEASE, Lease
from kombu_redisdelay.broker.server import warn_of_eviction
from kombu_redisdelay.broker.store import Bound, Call, Store
from kombu_redisdelay.broker.watch import Watch
from kombu_redisdelay.caretaker import Caretaker
from kombu_redisdelay.intake import Intake
from kombu_redisdelay.message import DELAY_HEADER, KEEP, Due, due, message_id, on_conflict
from kombu_redisdelay.options import Options
from kombu_redisdelay.qos import QoS
from kombu_redisdelay.routes import Routes

logger = logging.getLogger(__name__)

#: As kombu encodes JSON, which makes a new encoder each time.
_encoder = JSONEncoder()

#: Seconds that a server which owes us a reply may be silent before the connection counts as lost.
SILENCE_LIMIT = 3.0

#: Seconds between two looks for consumers that are gone, at most; with a short lease, more often.
RECOVERY_INTERVAL = 10.0


class Channel(redis.Channel):
    """Publishes to, and consumes from, the queues of one Redis database.

    Exchanges, bindings, fanout and connections are kombu's. A channel that consumes is one consumer of
    the broker, with a name and a lease of its own.
    """

    QoS = QoS  # type: ignore[assignment]
    _in_poll: Any
    _brpop_sent_at: Any

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        transport = args[0] if args else kwargs["connection"]
        self.options = Options.of(transport.client.transport_options)
        self.intake = Intake(self)
        self._routes = Routes()
        self._store: Store | None = None
        self._consumer: Consumer | None = None
        self._consumer_to_stop: Consumer | None = None
        self._recovered_at = float("-inf")
        self._was_silent = False
        super().__init__(*args, **kwargs)
        self.brpop_timeout = self.connection.brpop_timeout

    # -- the broker below ------------------------------------------------------------------------------

    @property
    def store(self) -> Store:
        """What we publish with."""
        if self._store is None:
            self._store = self._open_store(self.pool)
        return self._store

    @property
    def consumer(self) -> Consumer:
        """Who we are to the broker, from the first use on."""
        if self._consumer is None:
            name = new_consumer()
            pool = self._get_pool()
            # A renewal that gets no reply must leave time for the next one.
            limit = self.options.visibility_timeout / RENEWALS_PER_LEASE
            pool.connection_kwargs["socket_timeout"] = min(pool.connection_kwargs["socket_timeout"], limit)
            lease = Lease(Client(pool), name, self.options.lease_ms)
            store = self._open_store(self._get_pool())
            store.expires_ms = self.store.expires_ms
            # Half as long again as it takes until a lease is renewed.
            watch = Watch(1.5 * self.options.visibility_timeout / RENEWALS_PER_LEASE)
            self._consumer = Consumer(
                store, name, lease, self.options, watch, lambda queue, tags: self.qos.lease_lost(queue, tags)
            )
            self._consumer_to_stop = self._consumer
            warn_of_eviction(store.client)
        return self._consumer

    def _open_store(self, pool: Any) -> Store:
        return Store(Client(pool), self.global_keyprefix, self.priority_steps, self.sep)

    def _get_pool(self, asynchronous: bool = False) -> Any:
        pool = super()._get_pool(asynchronous)
        for option in ("socket_timeout", "socket_connect_timeout"):
            if pool.connection_kwargs.get(option) is None:
                # kombu's default is to wait for ever, and with it the event loop.
                pool.connection_kwargs[option] = SILENCE_LIMIT
        if asynchronous:
            return pool
        # Acks come from as many threads as the worker has; kombu's pool raises when it runs out of
        # connections, and the ack would be lost. This one lets the thread wait.
        return BlockingConnectionPool(
            max_connections=self.max_connections,
            connection_class=pool.connection_class,
            **pool.connection_kwargs,
        )

    def _after_fork(self) -> None:
        # The consumer is the parent's: neither its messages nor its lease are ours to touch.
        super()._after_fork()
        self._store = self._consumer = self._consumer_to_stop = None
        self.intake.cancel_all()

    # -- publishing ------------------------------------------------------------------------------------

    def basic_publish(self, message: dict[str, Any], exchange: str, routing_key: str, **kwargs: Any) -> Any:
        route = self._routes.get(exchange, routing_key)
        if route is None or route.queue in self.store.expires_ms:
            return super().basic_publish(message, exchange, routing_key, **kwargs)
        self._inplace_augment_message(message, exchange, routing_key)
        call = self._call(route.queue, message, route.bound)

        def publish_anew() -> None:
            self._routes.forget(exchange, routing_key)
            self.typeof(exchange).deliver(message, exchange, routing_key)

        batch: Batch | None = kwargs.get("_publish_batch")
        if batch is not None:
            batch.add_call(call, publish_anew)
        elif not self.store.run(call):
            publish_anew()
        return None

    def get_table(self, exchange: str) -> list[tuple[str, ...]]:
        table = self.global_keyprefix + self.keyprefix_queue % (exchange,)
        bindings = self.store.client.call("SMEMBERS", table)
        self._routes.has_read(table, bindings)
        return [tuple(binding.decode().split(self.sep)) for binding in bindings]

    def _lookup(self, exchange: str, routing_key: str, default: str | None = None) -> Collection[str]:
        queues: Collection[str] = super()._lookup(exchange, routing_key, default)
        if exchange:
            self._routes.found(exchange, routing_key, queues)
        return queues

    def _put(self, queue: str, message: dict[str, Any], **kwargs: Any) -> None:
        """Publish *message* to *queue*, now or for later.

        Raises:
            ValueError: its due time, or ``x-delay-on-conflict``, makes no sense. Nothing was published.
        """
        call = self._call(queue, message)
        batch: Batch | None = kwargs.get("_publish_batch")
        if batch is not None:
            batch.add_call(call)
        else:
            self.store.run(call)

    def _call(self, queue: str, message: dict[str, Any], bound: Bound | None = None) -> Call:
        """How *message* gets to *queue*; *bound* if that was not read just now."""
        when = due(message)
        conflict = on_conflict(message)
        if when is None and conflict != KEEP:
            when = Due()
        step = self.priority(self._get_message_priority(message))
        payload = _encoder.encode(message)
        if when is None:
            return self.store.put(queue, step, payload, bound=bound)
        return self.store.schedule(queue, step, payload, when, message_id(message), conflict, bound)

    def create_publish_batch(self, max_size: int) -> Batch:
        """What kombu 5.7's ``Producer.batch`` publishes through."""
        return Batch(self, max_size)

    def _put_fanout(self, exchange: str, message: dict[str, Any], routing_key: str, **kwargs: Any) -> None:
        when = due(message)
        if when is not None and when.delay_ms:
            raise ValueError(
                f"header {DELAY_HEADER!r} cannot be used with the fanout exchange {exchange!r}: "
                "PUB/SUB reaches who listens now"
            )
        super()._put_fanout(exchange, message, routing_key, **kwargs)

    # -- consuming -------------------------------------------------------------------------------------

    def basic_consume(
        self,
        queue: str,
        no_ack: bool,
        callback: Callable[[virtual.Message], Any],
        consumer_tag: str,
        **kwargs: Any,
    ) -> Any:
        self.intake.consume(queue, no_ack, callback)
        # A dead worker's queues are looked at as soon as somebody consumes from them.
        self._recovered_at = float("-inf")
        return super().basic_consume(queue, no_ack, callback, consumer_tag, **kwargs)

    def _basic_cancel(self, consumer_tag: str) -> Any:
        if self.connection is None:
            # Closed in a callback: kombu puts a cancel off until the callback is done.
            return None
        queue = self._tag_to_queue.get(consumer_tag)
        ret = super()._basic_cancel(consumer_tag)
        if queue is not None and queue not in self._active_queues:
            taken = self.intake.cancel(queue)
            if taken and self.do_restore:
                with _leaving_it_to_the_lease():
                    self.consumer.put_back(taken)
        return ret

    def basic_get(self, queue: str, no_ack: bool = False, **kwargs: Any) -> virtual.Message | None:
        return self.intake.get(queue, no_ack)

    @property
    def active_queues(self) -> list[str]:
        """The queues that are consumed from and are not fanout, in the order in which that began, which
        ``queue_order_strategy`` may go by."""
        queues = dict.fromkeys(self._active_queues)
        return [queue for queue in queues if queue not in self.active_fanout_queues]

    def recover(self) -> None:
        """Give back what consumers that are gone left in our queues, and clean up after a schedule that
        somebody damaged, unless that was just done."""
        interval = min(RECOVERY_INTERVAL, self.options.visibility_timeout / RENEWALS_PER_LEASE)
        queues = self.active_queues
        if not queues or monotonic() - self._recovered_at < interval:
            return
        self._recovered_at = monotonic()
        for queue in queues:
            self.consumer.recover(queue)
            self.consumer.sweep(queue)
            if queue not in self.auto_delete_queues:
                self.store.remember(queue)

    def give_back_all(self) -> None:
        """Give back every message, first those that no callback has seen: as if they were never taken."""
        if self._consumer is None or not self._consumer.is_ours:
            return
        self._finish_taking()
        # On a half-open connection we would wait for seconds, and then leave it all to the lease.
        self._consumer.disconnect()
        with _leaving_it_to_the_lease():
            self._consumer.put_back(self.intake.cancel_all())
            self._consumer.give_back_all()

    def _finish_taking(self) -> None:
        """What was asked for may already be ours, and has to be known to be given back."""
        if self._consumer is not None and self._consumer.is_ours and self.intake.is_taking:
            # Without a reply, what we hold is still to be seen in Redis.
            with suppress(RedisError, OSError):
                self.intake.answer()

    # -- waiting, driven by the poller -----------------------------------------------------------------

    def _brpop_start(self, timeout: float | None = None) -> None:
        """Ask over the poll connection. kombu's name, for kombu's poller: what is popped here is never a
        message."""
        connection = self.client.connection
        self.intake.ask(connection, timeout or self.brpop_timeout)
        self._in_poll = connection
        self._brpop_sent_at = monotonic()

    def check(self) -> None:
        """See that the server is still there.

        Raises:
            ConnectionError: it has been silent for too long, or the connection failed.
        """
        if self._was_silent:
            raise RedisConnectionError("no reply from Redis in time")
        self.intake.check(self.brpop_timeout, SILENCE_LIMIT)

    def _refresh_bindings(self, queues: list[str]) -> None:
        """kombu 5.7's, from a timer that goes on after a timeout, again and again; for us that is the end."""
        try:
            super()._refresh_bindings(queues)
        except RedisTimeoutError:
            self._was_silent = True
            raise

    # -- queues ----------------------------------------------------------------------------------------

    def _new_queue(self, queue: str, auto_delete: bool = False, **kwargs: Any) -> None:
        super()._new_queue(queue, auto_delete=auto_delete, **kwargs)
        expires_ms = (kwargs.get("arguments") or {}).get("x-expires")
        if expires_ms is None:
            self.store.expires_ms.pop(queue, None)
        else:
            self.store.expires_ms[queue] = int(expires_ms)

    def _has_queue(self, queue: str, **kwargs: Any) -> bool:
        return self.store.exists(queue)

    def _purge(self, queue: str) -> int:
        return self.store.purge(queue)

    def _delete(self, queue: str, *args: Any, **kwargs: Any) -> None:
        super()._delete(queue, *args, **kwargs)
        if queue not in self._fanout_queues:
            self.store.purge(queue)
            self.intake.forget_queue(queue)
            if self._consumer is not None:
                self._consumer.forget_queue(queue)
                self.qos.forget_queue(queue)

    def queue_delete(
        self, queue: str, if_unused: bool = False, if_empty: bool = False, **kwargs: Any
    ) -> None:
        if if_empty and self.store.scheduled(queue):
            return
        super().queue_delete(queue, if_unused=if_unused, if_empty=if_empty, **kwargs)

    # -- the end ---------------------------------------------------------------------------------------

    def abandon(self) -> None:
        """Close the channel after its connection was lost, without a word to the server. Tasks may still be
        running, and their acks still count; see :mod:`kombu_redisdelay.caretaker`."""
        self.do_restore = False
        self.auto_delete_queues.clear()
        self.intake.cancel_all()
        consumer, self._consumer_to_stop = self._consumer_to_stop, None
        if consumer is not None and consumer.is_ours:
            Caretaker(consumer, self.qos.let_go()).start()
        self.close()

    def close(self) -> None:
        """Close the channel. Unacked messages go back at once."""
        if not self.closed:
            self._closing = True
            if self.do_restore:
                self._finish_taking()
            # A token at most is lost with the reply that is still to come, which costs a second at most.
            self._in_poll = None
            client = self.__dict__.get("client")
            if client is not None and client.connection is not None:
                client.connection.disconnect()
            if self._consumer_to_stop is not None:
                self._consumer_to_stop.stop()
        super().close()
        if self._store is not None:
            self._store.disconnect()
        # Acks may still be on their way over the consumer's connections if it was abandoned.
        if self._consumer is not None and self.do_restore:
            self._consumer.disconnect()


@contextmanager
def _leaving_it_to_the_lease() -> Iterator[None]:
    """For giving back when Redis may be out of reach: then the messages return when the lease ends."""
    try:
        yield
    except (RedisError, OSError) as exc:
        logger.warning("Could not give messages back, they return when the lease ends: %s", exc)
