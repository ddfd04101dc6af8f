"""A kombu channel over the broker. It consumes, and inherits what publishes."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any
from weakref import ref

from kombu.transport import virtual
from kombu.utils.encoding import bytes_to_str, str_to_bytes
from redis.connection import UnixDomainSocketConnection
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from kombu_redisdelay import metrics
from kombu_redisdelay.broker.consumer import Consumer
from kombu_redisdelay.broker.lease import Lease
from kombu_redisdelay.broker.maintenance import Maintenance
from kombu_redisdelay.broker.mover import Mover
from kombu_redisdelay.broker.processes import new_consumer
from kombu_redisdelay.broker.ready import ReadyLists
from kombu_redisdelay.broker.recovery import LeaseWatch, Recoverer
from kombu_redisdelay.broker.server.connections import PlainConnection, SecureConnection, ToPrimary
from kombu_redisdelay.broker.server.server import SlotUnavailable, warn_of_eviction
from kombu_redisdelay.refusals import refusal_of
from kombu_redisdelay.transport.intake import Intake
from kombu_redisdelay.transport.orphan_keeper import OrphanKeeper
from kombu_redisdelay.transport.publishing import PublishingChannel
from kombu_redisdelay.transport.qos import QoS
from kombu_redisdelay.transport.receive import check_fanout
from kombu_redisdelay.transport.refused import Asked, patiently, served
from kombu_redisdelay.transport.revoker import Revoker
from kombu_redisdelay.transport.slot_fetcher import SlotFetcher
from kombu_redisdelay.transport.tasks import has_crashed, worker_name
from kombu_redisdelay.transport.urls import options_of

logger = logging.getLogger(__name__)


class Channel(PublishingChannel):
    """Publishes to, and consumes from, the queues of one Redis database.

    A channel that consumes is one consumer of the broker, with its own name and its own lease.
    """

    QoS = QoS  # type: ignore[assignment]
    connection_class: Any = PlainConnection
    connection_class_ssl: Any = SecureConnection

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        transport = args[0] if args else kwargs["connection"]
        self.options = options_of(transport.client)
        self.intake = Intake(self)
        self._consumer: Consumer | None = None
        self._consumer_to_stop: Consumer | None = None
        self._maintenance: Maintenance | None = None
        #: The active queues that are maintained.
        self._maintained: Sequence[str] = ()
        #: Moves what is due while this channel cannot; ``None`` before it consumes.
        self.mover: Mover | None = None
        self._has_given_back = True
        #: Takes out of the schedule what Celery's worker is told to revoke; ``None`` before it is told.
        self.revoker: Revoker | None = None
        self._gets = 0
        self._was_silent = False
        super().__init__(*args, **kwargs)
        self.brpop_timeout = self.connection.brpop_timeout

    # -- the broker below ------------------------------------------------------------------------------

    @property
    def consumer(self) -> Consumer:
        """This channel as a consumer of the broker. Created when it is first used."""
        if self._consumer is None:
            name, options = new_consumer(worker_name()), self.options
            policy = options.lease_policy
            reply_limit = min(self.pool.connection_kwargs["socket_timeout"], policy.reply_limit)
            server = self.store.server.with_own_connections(socket_timeout=reply_limit)
            self.mover = Mover(self.store.through(server))
            lease = Lease(server, name, policy, self.mover)
            self._consumer = Consumer(
                self.store,
                name,
                lease,
                options,
                lambda queue, tags: self.qos.lease_lost(queue, tags),
                self.intake.consumed.callbacks,
            )
            watch = LeaseWatch(policy.watch_time, served_since=lambda: lease.served_since)
            recoverer = Recoverer(self.store, name, options, watch)
            unnoted = self.auto_delete_queues
            self._maintenance = Maintenance(
                *(self.store, recoverer, options, policy.look_interval),
                unnoted=unnoted,
                limited=self._consumer.limited,
            )
            self._consumer_to_stop = self._consumer
            warn_of_eviction(self.store.server)
        return self._consumer

    @property
    def is_workers(self) -> bool:
        """Whether a Celery worker consumes over the connection of this channel. Another program may have
        imported Celery's worker, too."""
        return self.connection is not None and bool(self.connection.is_workers)

    def _connparams(self, asynchronous: bool = False) -> dict[str, Any]:
        params: dict[str, Any] = super()._connparams(asynchronous)
        made_by = params["connection_class"]
        if issubclass(made_by, UnixDomainSocketConnection):
            # kombu asks us only for the classes of other connections.
            params["connection_class"] = type("SocketConnection", (ToPrimary, made_by), {})
        return params

    def _after_fork(self) -> None:
        # The consumer belongs to the parent process. This process must not touch its messages or its lease.
        super()._after_fork()
        self._consumer = self._consumer_to_stop = self._maintenance = self.mover = None
        self.intake.after_fork()

    # -- consuming -------------------------------------------------------------------------------------

    def basic_consume(
        self,
        queue: str,
        no_ack: bool,
        callback: Callable[[virtual.Message], Any],
        consumer_tag: str,
        **kwargs: Any,
    ) -> Any:
        for name in self.store.partitions.names(queue):
            self.intake.consume(name, no_ack, callback)
            # A queue without acks is for the answers to one program, and has a name of its own.
            if not no_ack and queue not in self._fanout_queues:
                metrics.consuming(name)
        # Check the queues as soon as a consumer starts: a dead worker may have left messages there.
        if self._maintenance is not None:
            self._maintenance.queues_have_changed()
        return super().basic_consume(queue, no_ack, callback, consumer_tag, **kwargs)

    def _basic_cancel(self, consumer_tag: str) -> Any:
        if self.connection is None:
            # The channel was closed in a callback. kombu delays a cancel until the callback has returned.
            return None
        queue = self._tag_to_queue.get(consumer_tag)
        ret = super()._basic_cancel(consumer_tag)
        if queue is not None and queue not in self._active_queues:
            taken = []
            for name in self.store.partitions.names(queue):
                taken += self.intake.cancel(name)
                if self._consumer is not None:
                    self._consumer.membership.cancel(name)
            if taken and self.do_restore:
                with _leaving_it_to_the_lease():
                    self.consumer.put_back(taken)
        return ret

    def basic_get(self, queue: str, no_ack: bool = False, **kwargs: Any) -> virtual.Message | None:
        names = self.store.partitions.names(queue)
        # Begin with another one each time, so that all get their turn.
        self._gets += 1
        for index in range(len(names)):
            message = self.intake.get(names[(self._gets + index) % len(names)], no_ack)
            if message is not None:
                return message
        return None

    @property
    def active_queues(self) -> Sequence[str]:
        """The queues that the channel consumes from, without fanout queues, and with all partitions. They are
        in the order in which consuming began, because ``queue_order_strategy`` may depend on it."""
        return self.intake.consumed.queues

    def _update_queue_cycle(self) -> None:
        # kombu calls this after each change.
        queues = [queue for queue in self._active_queues if queue not in self.active_fanout_queues]
        self.intake.consumed.queues = tuple(self.store.partitions.all_names(queues))
        self._maintained = tuple(name for name in self.active_queues if not self._is_of_one_program(name))
        self._move_nothing()
        super()._update_queue_cycle()

    def _is_of_one_program(self, name: str) -> bool:
        """Whether the queue is for the answers to one program, as that of a ping, or of results by ``rpc://``:
        it does not last, and no message of it is ever unacked, so there is nothing to maintain."""
        lasts = self.lasts(self.store.partitions.queue_of(name))
        return not lasts and name in self.intake.consumed.no_ack

    def _move_nothing(self) -> None:
        """Have the mover leave all queues alone, until the intake names them anew."""
        if self.mover is not None:
            self.mover.queues = ()

    def look_after_queues(self) -> bool:
        """Make the next round trip of maintaining the queues, if it is time for one. Maintenance gives back
        the messages of lost consumers, and cleans up.

        Returns:
            Whether it is time for another round trip.
        """
        queues = self._maintained
        if not queues:
            return False
        if self._consumer is None:
            # This takes round trips, too.
            return self.consumer.is_ours
        if not self._consumer.is_ours:
            return False
        assert self._maintenance is not None
        try:
            with self.store.server.hurrying():
                return self.intake.maintain(queues, self._maintenance)
        except SlotUnavailable as exc:
            logger.debug("Could not maintain the queues now: %s", exc)
            return False

    def stop_taking(self) -> None:
        """Take nothing more, after all consumers were cancelled. What is on its way goes back."""
        self._finish_taking()
        # Otherwise this channel might be told that there are messages again, instead of another one.
        self.intake.close()

    def give_back_all(self, keep: Collection[str] = (), *, is_end: bool = True) -> bool:
        """Give back every message but those with the delivery tags in *keep*. Messages that no callback has
        seen go first, and go back unchanged, as if they had never been taken. Returns whether the server has
        done that.

        Arguments:
            is_end: whether the channel is about to end. Then a server that refuses is waited for.
        """
        if self._consumer is None or not self._consumer.is_ours:
            return True
        self._finish_taking()
        # Use new connections. If the old one is half-open, giving back over it would wait for seconds and
        # then fail, and the messages would only return when the lease ends.
        self._consumer.disconnect()
        self._has_given_back = False
        unseen, consumer = self.intake.cancel_all(), self._consumer
        crashed = self.is_workers and has_crashed()
        settle = patiently if is_end else _once
        with _leaving_it_to_the_lease():
            settle(self.intake.settle_rest)
            settle(lambda: consumer.put_back(unseen))
            settle(lambda: consumer.give_back_all(keep, crashed=crashed))
            self._has_given_back = True
        return self._has_given_back

    def _finish_taking(self) -> None:
        """Read the reply of a take that is on its way. The server may already have handed out messages for
        it, and they must be known to be given back."""
        if self._consumer is not None and self._consumer.is_ours:
            # Without the reply, the messages can still be found in Redis.
            with suppress(RedisError, OSError):
                self.intake.finish_taking()

    def _handle_message(self, client: Any, r: Any) -> dict[str, Any]:
        """kombu's, for what came over PUB/SUB. kombu would raise for what is not a message, and the worker
        would end."""
        message: dict[str, Any] = super()._handle_message(client, r)
        if bytes_to_str(message["type"]).endswith("subscribe"):
            served(self.connection.broker, Asked.LISTEN)
        has_data = bytes_to_str(message["type"]).endswith("message") and message["data"]
        if has_data and not check_fanout(bytes_to_str(message["channel"]), str_to_bytes(message["data"])):
            message["data"] = None
        return message

    # -- waiting, driven by the poller -----------------------------------------------------------------

    def new_poll_client(self, queue: str) -> Any:
        """A client of redis-py whose connection waits for messages of *queue*, and of others in its slot."""
        return self.client

    def _on_connection_disconnect(self, connection: Any) -> None:
        self.intake.is_disconnected(connection)
        super()._on_connection_disconnect(connection)

    def _flush_brpop_reauth(self) -> None:
        """Leave it to the fetchers to send new credentials over the poll connection: they know when no reply
        is outstanding. kombu 5.7 calls this from a timer."""

    def _poll_error(self, type: Any, **options: Any) -> None:
        if isinstance(type, SlotFetcher):
            # This raises the error.
            type.client.connection.read_response()
        else:
            super()._poll_error(type, **options)

    def check(self) -> None:
        """Check that the server still answers.

        Raises:
            ConnectionError: the server has been silent for too long, or the connection failed.
        """
        if self._was_silent:
            raise RedisConnectionError("no reply from Redis in time")
        self.intake.settle()
        self.intake.check_silence(self.silence_limit)
        self.try_to_bind()

    def _refresh_bindings(self, queues: list[str]) -> None:
        """Refresh bindings, for kombu 5.7. kombu calls this from a timer, and after a timeout it tries again
        and again. Here, a timeout means that the connection is lost. While Redis refuses, kombu logs a
        traceback each second."""
        try:
            super()._refresh_bindings(queues)
        except RedisTimeoutError:
            self._was_silent = True
            raise
        except ResponseError as exc:
            if not self.is_refused_for_a_while(exc):
                raise
            self.bind_later(queues)

    def sweep_bindings(self, *args: Any, **kwargs: Any) -> int:
        """As kombu's, from 5.7 on. kombu calls this from the same timer. While Redis refuses, a worker leaves
        it for another time."""
        try:
            return int(super().sweep_bindings(*args, **kwargs))
        except ResponseError as exc:
            if not self.is_refused_for_a_while(exc):
                raise
            return 0

    def _receive_one(self, c: Any) -> Any:
        """As kombu's, which hears fanout exchanges. A server may refuse the PING with which redis-py checks
        that it is there. It is, so the connection stands."""
        try:
            return super()._receive_one(c)
        except ResponseError as exc:
            if not (c.health_check_response_counter and self.is_refused_for_a_while(exc)):
                raise
            c.health_check_response_counter -= 1
            return None

    # -- queues ----------------------------------------------------------------------------------------

    def _size(self, queue: str) -> int:
        """The number of ready messages of *queue*, including those that this channel has taken but not
        delivered yet."""
        names = self.store.partitions.names(queue)
        taken = sum(self.intake.count(name) for name in names)
        if not self.lasts(queue):
            # Queues of replies, of events and of remote control are such, and not fair.
            return taken + sum(int(super(Channel, self)._size(name)) for name in names)
        return taken + sum(ReadyLists(self.store).counts(names))

    def _has_queue(self, queue: str, **kwargs: Any) -> bool:
        names = self.store.partitions.names(queue)
        return any(self.intake.count(name) > 0 or self.store.exists(name) for name in names)

    def _purge(self, queue: str) -> int:
        purged = 0
        for name in self.store.partitions.names(queue):
            taken = self.intake.forget_queue(name)
            for delivery in taken:
                if delivery.needs_ack:
                    self.consumer.ack(name, delivery.tag)
            purged += self.store.purge(name) + len(taken)
        return purged

    def _delete(self, queue: str, *args: Any, **kwargs: Any) -> None:
        super()._delete(queue, *args, **kwargs)
        is_fanout = queue in self._fanout_queues
        self.connection.bounds.forget(self.store.partitions.names(queue))
        for name in self.store.partitions.names(queue):
            self.store.expires_ms.pop(name, None)
            self.connection.declared_queues.discard(name)
            metrics.forget(name)
            if not is_fanout:
                self.store.delete(name)
                self.intake.forget_queue(name)
                if self._consumer is not None:
                    self._consumer.forget_queue(name)
                    self.qos.forget_queue(name)

    def queue_delete(self, queue: str, if_unused: bool = False, if_empty: bool = False, **kwargs: Any) -> int:
        """As kombu's. Returns how many ready messages were deleted; they are not counted in queues that do
        not last, such as those of replies."""
        names = self.store.partitions.names(queue)
        if if_empty and (self._size(queue) or any(map(self.store.scheduled, names))):
            return 0
        ready = 0
        try:
            if self.lasts(queue):
                ready = self._size(queue)
                self._declared.forget_queue(queue)
                # If it is to go only when it is unused, who uses it may bind it again.
                found = [] if if_unused else self.unbind_all(queue)
                if not any(self.state.queue_bindings(queue)):
                    # kombu deletes nothing of a queue that this connection has not bound.
                    if if_unused:
                        return 0
                    exchange, *rest = found[0] if found else ("", "", "")
                    self._delete(queue, exchange, *rest)
            super().queue_delete(queue, if_unused=if_unused, **kwargs)
        except ResponseError as exc:
            # kombu deletes some queues when the channel is closed, and would not close the rest.
            if not self._closing or refusal_of(exc) is None:
                raise
            logger.debug("Queue %r was not deleted: %s", queue, exc)
            return 0
        return ready

    # -- the end ---------------------------------------------------------------------------------------

    def abandon(self) -> None:
        """Close the channel after its connection was lost, without sending anything to the server. Tasks may
        still be running, and their acks still count; see :mod:`kombu_redisdelay.transport.orphan_keeper`."""
        self.do_restore = False
        self._owner = ref(self.connection.client)
        self.auto_delete_queues.clear()
        self.intake.cancel_all()
        consumer, self._consumer_to_stop = self._consumer_to_stop, None
        if consumer is not None and consumer.is_ours:
            OrphanKeeper(consumer, self.qos.release(), self.qos.fail, self.intake.settle_rest).start()
        self.close()

    def close(self) -> None:
        """Close the channel. Unacked messages go back at once."""
        self._move_nothing()
        if not self.closed:
            self._closing = True
            if self.do_restore:
                self._finish_taking()
            # This drops the reply that is still on its way. At most one wake-up token is lost with it, and
            # that delays messages by one second at most.
            self.intake.close()
        try:
            super().close()
        finally:
            # kombu has closed its connections, unless an error has ended that.
            self._disconnect_pools()
            self._close_clients()
            self._release()

    def _release(self) -> None:
        consumer, self._consumer_to_stop = self._consumer_to_stop, None
        if consumer is not None:
            if self._has_given_back or not consumer.is_ours:
                consumer.stop()
            else:
                # Redis cannot be reached. When it is back, the orphan keeper sends the acks that are not
                # confirmed. Otherwise, these messages would be delivered again.
                OrphanKeeper(consumer, {}, self.qos.fail, self.intake.settle_rest).start()
        if self._store is not None:
            self._store.disconnect()


def _once(settle: Callable[[], object]) -> None:
    settle()


@contextmanager
def _leaving_it_to_the_lease() -> Iterator[None]:
    """Log errors of giving messages back, and go on. If Redis is out of reach, the messages return later."""
    try:
        yield
    except (RedisError, OSError) as exc:
        logger.warning(
            "Could not give messages back. They return when another worker of their queue looks for them, or "
            "the lease ends. What has run and could not be acked runs again: %s",
            exc,
        )
