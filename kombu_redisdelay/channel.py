"""A kombu channel over the broker: kombu's vocabulary on top, the broker's below."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic
from typing import Any

from kombu.transport import redis, virtual
from kombu.utils.json import dumps
from kombu.utils.scheduling import priority_cycle
from redis import BlockingConnectionPool, Redis
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError

from kombu_redisdelay.broker.consumer import Consumer, Delivery
from kombu_redisdelay.broker.identity import new_consumer
from kombu_redisdelay.broker.lease import RENEWALS_PER_LEASE, Lease
from kombu_redisdelay.broker.server import warn_of_eviction
from kombu_redisdelay.broker.store import Store
from kombu_redisdelay.broker.watch import Watch
from kombu_redisdelay.caretaker import Caretaker
from kombu_redisdelay.message import DELAY_HEADER, DELIVERY_COUNT_HEADER, due, message_id
from kombu_redisdelay.options import Options
from kombu_redisdelay.qos import QoS
from kombu_redisdelay.receive import receive

logger = logging.getLogger(__name__)

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
        #: Take at once when waiting would start, because nothing is known of what came in the meantime.
        self.take_before_waiting = True
        self._store: Store | None = None
        self._consumer: Consumer | None = None
        self._consumer_to_stop: Consumer | None = None
        self._callbacks: dict[str, Callable[[virtual.Message], Any]] = {}
        self._no_ack_queues: set[str] = set()
        self._taken: deque[tuple[Delivery, virtual.Message]] = deque()
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
            lease = Lease(Redis(connection_pool=pool), name, self.options.lease_ms)
            store = self._open_store(self._get_pool())
            store.expires_ms = self.store.expires_ms
            # Half as long again as it takes until a lease is renewed.
            watch = Watch(1.5 * self.options.visibility_timeout / RENEWALS_PER_LEASE)
            self._consumer = Consumer(store, name, lease, self.options, watch)
            self._consumer_to_stop = self._consumer
            warn_of_eviction(store.client)
        return self._consumer

    def _open_store(self, pool: Any) -> Store:
        # With a client of ours: kombu's would prefix keys, which are complete.
        client = Redis(connection_pool=pool)
        return Store(client, self.global_keyprefix, self.priority_steps, self.sep)

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
        self._taken.clear()

    # -- publishing ------------------------------------------------------------------------------------

    def _put(self, queue: str, message: dict[str, Any], **kwargs: Any) -> None:
        """Publish *message* to *queue*, now or for later.

        Raises:
            ValueError: its due time makes no sense. Nothing was published.
        """
        when = due(message)
        step = self.priority(self._get_message_priority(message))
        payload = dumps(message)
        if when is None:
            call = self.store.put(queue, step, payload)
        else:
            suffix = message["properties"]["delivery_tag"]
            call = self.store.schedule(queue, step, payload, when, message_id(message), suffix)
        batch = kwargs.get("_publish_batch")
        if batch is None:
            self.store.run(call)
        else:
            # By its text: in the middle of a pipeline, a server that does not know a script cannot be
            # given it.
            script, keys, args = call
            batch.add("execute_command", "EVAL", script.text, len(keys), *keys, *args)

    def _put_fanout(self, exchange: str, message: dict[str, Any], routing_key: str, **kwargs: Any) -> None:
        when = due(message)
        if when is not None and when.delay_ms:
            raise ValueError(
                f"header {DELAY_HEADER!r} cannot be used with the fanout exchange {exchange!r}: "
                "PUB/SUB reaches who listens now"
            )
        super()._put_fanout(exchange, message, routing_key, **kwargs)

    def _restore(self, message: virtual.Message, leftmost: bool = False) -> None:
        """Requeue a message that only this process knows of, because of ``ack_emulation=False``."""
        # Its delay is over.
        message.headers.pop(DELAY_HEADER, None)
        super()._restore(message, leftmost)

    # -- consuming -------------------------------------------------------------------------------------

    def basic_consume(
        self,
        queue: str,
        no_ack: bool,
        callback: Callable[[virtual.Message], Any],
        consumer_tag: str,
        **kwargs: Any,
    ) -> Any:
        self._callbacks[queue] = callback
        self._no_ack_queues.discard(queue)
        if no_ack:
            self._no_ack_queues.add(queue)
        self.take_before_waiting = True
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
            self._callbacks.pop(queue, None)
            taken = [entry for entry in self._taken if entry[0].queue == queue]
            self._taken = deque(entry for entry in self._taken if entry[0].queue != queue)
            if taken and self.do_restore:
                with _leaving_it_to_the_lease():
                    self.consumer.put_back(delivery for delivery, _ in taken)
        return ret

    def basic_get(self, queue: str, no_ack: bool = False, **kwargs: Any) -> virtual.Message | None:
        while True:
            taken = self.consumer.take(
                [queue], 1, in_turn=True, no_ack={queue} if self._without_acks(no_ack) else ()
            )
            if not taken.deliveries:
                return None
            # More than one if a reply was lost.
            self.consumer.put_back(taken.deliveries[1:])
            message = receive(self, taken.deliveries[0], taken.now_ms)
            if message is not None:
                self._hold(taken.deliveries[0], message, no_ack)
                return message

    def take(self) -> float | None:
        """Take as many messages as the prefetch count leaves room for.

        Returns:
            Seconds until the next message is due, ``None`` if none is scheduled.
        """
        queues = list(self._queue_cycle.consume(len(self.active_queues)))
        if not queues:
            return None
        taken = self.consumer.take(
            queues,
            self._credit(),
            in_turn=not isinstance(self._queue_cycle, priority_cycle),
            no_ack=[q for q in queues if self._without_acks(q in self._no_ack_queues)],
        )
        for delivery in taken.deliveries:
            self._queue_cycle.rotate(delivery.queue)
            message = receive(self, delivery, taken.now_ms)
            if message is not None:
                self._taken.append((delivery, message))
        return taken.next_due

    @property
    def active_queues(self) -> list[str]:
        """The queues that are consumed from and are not fanout, in the order in which that began, which
        ``queue_order_strategy`` may go by."""
        queues = dict.fromkeys(self._active_queues)
        return [queue for queue in queues if queue not in self.active_fanout_queues]

    @property
    def has_taken(self) -> bool:
        """Whether there are messages that were taken and not delivered yet."""
        return bool(self._taken)

    def deliver_one(self) -> None:
        """Hand the next message that was taken to its callback."""
        delivery, message = self._taken.popleft()
        self._hold(delivery, message, delivery.queue in self._no_ack_queues)
        self._callbacks[delivery.queue](message)

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

    def give_back_all(self) -> None:
        """Give back every message, first those that no callback has seen: as if they were never taken."""
        if self._consumer is None or not self._consumer.is_ours:
            return
        taken = [delivery for delivery, _ in self._taken]
        self._taken.clear()
        with _leaving_it_to_the_lease():
            self._consumer.put_back(taken)
            self._consumer.give_back_all()

    def _credit(self) -> int:
        """How many messages may be taken now."""
        if not self.qos.can_consume():
            return 0
        if "can_consume" in vars(self.qos):
            # Replaced by somebody who decides message by message (Celery's worker_disable_prefetch).
            return 1
        room: int | None = self.qos.can_consume_max_estimate()
        if room is None:
            return self.options.max_batch
        return max(0, min(self.options.max_batch, room - len(self._taken)))

    def _without_acks(self, no_ack: bool) -> bool:
        return no_ack or not self.ack_emulation

    def _hold(self, delivery: Delivery, message: virtual.Message, no_ack: bool) -> None:
        if delivery.acked:
            deliveries = message.headers.get(DELIVERY_COUNT_HEADER, 0)
            self.qos.hold(delivery.tag, delivery.queue, alone=deliveries >= self.options.alone_after)
        if not no_ack:
            self.qos.append(message, delivery.tag)

    # -- waiting, driven by the poller -----------------------------------------------------------------

    @property
    def is_waiting(self) -> bool:
        """Whether the poll connection owes us a reply."""
        return bool(self._in_poll)

    def _brpop_start(self, timeout: float | None = None) -> None:
        """Ask for a reply on the poll connection at the time to take: at once, or when there is a token.

        kombu's name, for kombu's poller: what is popped here is never a message.
        """
        connection = self.client.connection
        if self.take_before_waiting:
            self.take_before_waiting = False
            connection.send_command("PING")
        else:
            wake = [self.store.keys(queue).wake for queue in self.active_queues]
            connection.send_command("BRPOP", *wake, timeout or self.brpop_timeout)
        self._in_poll = connection
        self._brpop_sent_at = monotonic()
        self._reply_was_overdue = False

    def check_reply(self) -> None:
        """See that the server is still there.

        Raises:
            ConnectionError: it has been silent for too long.
        """
        if self._was_silent:
            raise RedisConnectionError("no reply from Redis in time")
        if not self.is_waiting:
            return
        overdue = monotonic() - self._brpop_sent_at > self.brpop_timeout + SILENCE_LIMIT
        if overdue and self._reply_was_overdue:
            # For the second time, with a poll in between: the reply does not just wait to be read.
            self.client.connection.disconnect()
            raise RedisConnectionError(f"no reply from Redis for {SILENCE_LIMIT:g} seconds")
        self._reply_was_overdue = overdue

    def _refresh_bindings(self, queues: list[str]) -> None:
        """kombu 5.7's, from a timer that goes on after a timeout, again and again; for us that is the end."""
        try:
            super()._refresh_bindings(queues)
        except RedisTimeoutError:
            self._was_silent = True
            raise

    def stop_waiting(self) -> None:
        """Read the reply that came on the poll connection: it is time to take."""
        connection = self.client.connection
        try:
            connection.read_response()
        except self.connection_errors:
            connection.disconnect()
            raise
        finally:
            self._in_poll = None

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
        self._taken.clear()
        consumer, self._consumer_to_stop = self._consumer_to_stop, None
        if consumer is not None and consumer.is_ours:
            Caretaker(consumer, self.qos.let_go()).start()
        self.close()

    def close(self) -> None:
        """Close the channel. Unacked messages go back at once."""
        if not self.closed:
            self._closing = True
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
            self._consumer.store.disconnect()


@contextmanager
def _leaving_it_to_the_lease() -> Iterator[None]:
    """For giving back when Redis may be out of reach: then the messages return when the lease ends."""
    try:
        yield
    except (RedisError, OSError) as exc:
        logger.warning("Could not give messages back, they return when the lease ends: %s", exc)
