"""A kombu channel over the broker: kombu's vocabulary on top, the broker's below."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic
from typing import Any

from kombu.transport import redis, virtual
from kombu.utils.json import dumps, loads
from kombu.utils.scheduling import priority_cycle
from redis import BlockingConnectionPool, Redis
from redis.exceptions import RedisError

from kombu_redisdelay.broker.consumer import Consumer, Delivery
from kombu_redisdelay.broker.identity import new_consumer
from kombu_redisdelay.broker.lease import RENEWALS_PER_LEASE, Lease
from kombu_redisdelay.broker.store import Store
from kombu_redisdelay.message import (
    DELAY_HEADER,
    MalformedMessage,
    check,
    due,
    eta_ms,
    mark_delivery,
    message_id,
)
from kombu_redisdelay.options import Options
from kombu_redisdelay.qos import QoS

logger = logging.getLogger(__name__)

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
        self._callbacks: dict[str, Callable[[virtual.Message], Any]] = {}
        self._no_ack_queues: set[str] = set()
        self._taken: deque[tuple[Delivery, virtual.Message]] = deque()
        self._recovered_at = float("-inf")
        super().__init__(*args, **kwargs)
        self.brpop_timeout = self.connection.brpop_timeout

    # -- the broker below ------------------------------------------------------------------------------

    @property
    def store(self) -> Store:
        if self._store is None:
            # Not kombu's client: that one would prefix keys which are complete.
            client = Redis(connection_pool=self.pool)
            self._store = Store(client, self.global_keyprefix, self.priority_steps, self.sep)
        return self._store

    @property
    def consumer(self) -> Consumer:
        if self._consumer is None:
            lease_ms = self.options.lease_ms
            pool = self._get_pool()
            pool.connection_kwargs["socket_timeout"] = lease_ms / 1000 / RENEWALS_PER_LEASE
            name = new_consumer()
            lease = Lease(Redis(connection_pool=pool), name, lease_ms)
            limit = self.options.delivery_limit or 0
            self._consumer = Consumer(self.store, name, lease, lease_ms, limit)
        return self._consumer

    def _get_pool(self, asynchronous: bool = False) -> Any:
        pool = super()._get_pool(asynchronous)
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
        self._store = self._consumer = None
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
            message = self._receive_message(taken.deliveries[0], taken.now_ms)
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
            message = self._receive_message(delivery, taken.now_ms)
            if message is not None:
                self._taken.append((delivery, message))
        return taken.next_due

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
        """Give back what consumers that are gone left in our queues, unless that was just done."""
        interval = min(RECOVERY_INTERVAL, self.options.visibility_timeout / RENEWALS_PER_LEASE)
        queues = self.active_queues
        if not queues or monotonic() - self._recovered_at < interval:
            return
        self._recovered_at = monotonic()
        for queue in queues:
            self.consumer.recover(queue)

    def give_back_all(self) -> None:
        """Give back every message, first those that no callback has seen: as if they were never taken."""
        if self._consumer is None:
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
            self.qos.hold(delivery.tag, delivery.queue)
        if not no_ack:
            self.qos.append(message, delivery.tag)

    def _receive_message(self, delivery: Delivery, now_ms: int) -> virtual.Message | None:
        """The message of *delivery*; ``None`` if it went elsewhere, because it is none or is not due."""
        try:
            payload = self._decode(delivery)
            at_ms = _eta_ms(payload["headers"])
            if at_ms > now_ms and delivery.acked:
                suffix = payload["properties"].setdefault("delivery_tag", delivery.tag)
                self.consumer.park(delivery, message_id(payload), str(suffix), at_ms)
                return None
            mark_delivery(payload)
            payload["properties"]["delivery_tag"] = delivery.tag
            return self._to_message(payload)
        except MalformedMessage as exc:
            self.consumer.dead_letter(delivery, str(exc))
            logger.error(
                "Moved an entry of queue %r that is not a message to the dead letters: %s",
                delivery.queue,
                exc,
            )
            return None

    def _decode(self, delivery: Delivery) -> dict[str, Any]:
        try:
            payload = loads(delivery.payload)
        except Exception as exc:
            # Whatever foreign bytes make a decoder raise, they are not a message.
            raise MalformedMessage(f"not JSON: {exc}") from exc
        return check(payload)

    def _to_message(self, payload: dict[str, Any]) -> virtual.Message:
        try:
            return self.Message(payload, channel=self)
        except Exception as exc:
            # Its body is in an unknown or a broken encoding.
            raise MalformedMessage(f"body cannot be decoded: {exc!r}") from exc

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

    def queue_delete(
        self, queue: str, if_unused: bool = False, if_empty: bool = False, **kwargs: Any
    ) -> None:
        if if_empty and self.store.scheduled(queue):
            return
        super().queue_delete(queue, if_unused=if_unused, if_empty=if_empty, **kwargs)

    # -- the end ---------------------------------------------------------------------------------------

    def abandon(self) -> None:
        """The connection was lost: have :meth:`close` leave everything in Redis as it is.

        Tasks may still be running, so nothing is given back: acks still count, and what is never acked
        comes back when the lease ends.
        """
        self.do_restore = False
        self.auto_delete_queues.clear()

    def close(self) -> None:
        """Close the channel. Unacked messages go back at once, unless it was abandoned."""
        if not self.closed:
            self._closing = True
            # A token at most is lost with the reply that is still to come, which costs a second at most.
            self._in_poll = None
            client = self.__dict__.get("client")
            if client is not None and client.connection is not None:
                client.connection.disconnect()
            if self._consumer is not None:
                self._consumer.stop()
        super().close()
        if self._store is not None:
            self._store.client.connection_pool.disconnect()


@contextmanager
def _leaving_it_to_the_lease() -> Iterator[None]:
    """For giving back when Redis may be out of reach: then the messages return when the lease ends."""
    try:
        yield
    except (RedisError, OSError) as exc:
        logger.warning("Could not give messages back, they return when the lease ends: %s", exc)


def _eta_ms(headers: dict[str, Any]) -> int:
    try:
        return eta_ms(headers)
    except ValueError:
        # Published by somebody who did not check it; Celery's worker will say what is wrong.
        return 0
