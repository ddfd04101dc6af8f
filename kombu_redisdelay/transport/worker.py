"""A Celery worker of ours: it goes on whatever a message makes it raise, and stops in good order.

Nothing changes without a worker: a program that consumes with kombu may leave its loop by an exception of its
callback.

When it is told to stop, Celery keeps what it has received and not begun until the running tasks have ended.
Here, that goes back at once, in this order:

1. A signal asks the worker to stop: the gate to the pool is shut (:mod:`~kombu_redisdelay.transport.tasks`).
   Nothing is sent to Redis in the handler of the signal.
2. Celery leaves its loop, and closes its consumer. The prefork pool forgets what no process was given.
3. What cannot begin any more goes back. What has begun stays held, and is acked as always.
4. Celery waits for the running tasks, and closes the channel. If Redis has refused before, the rest goes back
   then.

Nothing of this happens when a connection is lost, or when a queue is cancelled and the worker goes on. Soft
shutdown (``worker_soft_shutdown_timeout``) waits in the handler, before all of this.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from functools import wraps
from typing import Any

from kombu.common import ignore_errors
from kombu.exceptions import OperationalError
from kombu.transport import virtual
from redis.exceptions import ResponseError

from kombu_redisdelay.broker.server.connections import begin_end
from kombu_redisdelay.broker.server.wire import Refuses
from kombu_redisdelay.extending import extend
from kombu_redisdelay.refusals import Then, refusal_of
from kombu_redisdelay.rpc_results import let_results_expire
from kombu_redisdelay.transport.channel import Channel
from kombu_redisdelay.transport.patience import impatient
from kombu_redisdelay.transport.pools import forget_nothing, make_room, watch_pool
from kombu_redisdelay.transport.protocol import is_usual, task_with_odd_id, wrong_part
from kombu_redisdelay.transport.refused import NeverServed, UnknownError, as_worker, may_connect_again
from kombu_redisdelay.transport.tasks import Gate, has_crashed
from kombu_redisdelay.transport.unusable import UNUSABLE
from kombu_redisdelay.transport.upstream import dropping_events, emptying_timers, never_waiting
from kombu_redisdelay.transport.urls import options_of
from kombu_redisdelay.words import in_a_line

logger = logging.getLogger(__name__)

#: What a server has refused this worker while it connected, or in its loop.
_unknown = UnknownError()


def extend_worker() -> None:
    """Extend Celery's worker, if this process has one. Calling it again changes nothing."""
    # Another thread may be importing it.
    consumer: Any = getattr(sys.modules.get("celery.worker.consumer.consumer"), "Consumer", None)
    if consumer is None:
        return
    from celery.worker.heartbeat import Heart

    extend(consumer.Blueprint, "start", _start)
    extend(consumer, "connection_for_read", _connection_for_read)
    extend(consumer, "ensure_connected", _ensure_connected)
    extend(consumer, "update_strategies", _update_strategies)
    extend(consumer, "create_task_handler", _create_task_handler)
    extend(consumer, "on_connection_error_after_connected", dropping_events)
    extend(consumer, "on_close", emptying_timers)
    extend(Heart, "_send", never_waiting)
    let_results_expire()
    for name, ours in UNUSABLE.items():
        extend(consumer, name, ours)


class Stop:
    """What happens when a worker is told to stop. It lasts as long as Celery's *consumer*.

    Arguments:
        gate: of the same worker.
    """

    def __init__(self, consumer: Any, gate: Gate) -> None:
        from celery import signals

        self._consumer = consumer
        self._gate = gate
        # Celery calls it when the worker stops, and only then.
        self._on_close = consumer.blueprint.on_close
        consumer.blueprint.on_close = self._close
        # This reference is weak.
        signals.worker_shutting_down.connect(self._on_signal, sender=consumer.hostname)

    def _on_signal(self, **kwargs: Any) -> None:
        self._begin_nothing_more()

    def _begin_nothing_more(self) -> None:
        """Shut the gate, and end what the loop waits for. A signal handler calls this."""
        if self._gate.is_shut:
            return
        self._gate.is_shut = True
        begin_end()
        make_room(self._consumer.pool)
        if self._consumer.connection is not None:
            self._consumer.connection.transport.cycle.deliver_nothing_more()

    def _close(self) -> None:
        """In place of what Celery calls when it closes the consumer. There, the prefork pool forgets what no
        process was given."""
        self._begin_nothing_more()
        self._on_close()
        # After an error, all messages are judged together, when the channel is closed.
        if not has_crashed():
            self._give_back()

    def _give_back(self) -> None:
        tasks = self._consumer.task_consumer
        channel = getattr(tasks, "channel", None)
        if isinstance(channel, Channel) and not channel.closed and channel.do_restore:
            # Celery does this again, later.
            try:
                ignore_errors(self._consumer, tasks.cancel)
            except RuntimeError:
                # The handler of a second signal has cancelled it in the midst of this.
                ignore_errors(self._consumer, tasks.cancel)
            channel.stop_taking()
            channel.qos.give_back_unbegun()


def _mark(connection: Any) -> bool:
    """Note that a worker consumes over *connection*. Returns whether it is one of ours."""
    if not hasattr(connection.transport, "is_workers"):
        return False
    connection.transport.is_workers = True
    return True


def _connection_for_read(connect: Callable[..., Any], self: Any, *args: Any, **kwargs: Any) -> Any:
    """In place of Celery's ``Consumer.connection_for_read``. With greenlets, remote control has a connection
    of its own."""
    connection = connect(self, *args, **kwargs)
    _mark(connection)
    return connection


def _ensure_connected(connect: Callable[..., Any], self: Any, connection: Any, *args: Any) -> Any:
    """In place of Celery's ``Consumer.ensure_connected``, which waits by itself, and looks meanwhile whether
    the worker is to stop."""
    # This runs in a Celery worker only.
    from celery.worker.state import maybe_shutdown

    with impatient():
        if not (_mark(connection) and _connects_again(self)):
            return connect(self, connection, *args)
        longest_pause = options_of(connection).lease_policy.longest_pause
        with as_worker(maybe_shutdown, longest_pause):
            return connect(self, connection, *args)


def _connects_again(consumer: Any) -> bool:
    """Whether Celery is to connect again when that fails."""
    conf = consumer.app.conf
    at_start = conf.broker_connection_retry_on_startup
    is_start = consumer.first_connection_attempt and at_start is not None
    return bool(at_start if is_start else conf.broker_connection_retry)


def _start(start: Callable[..., Any], self: Any, consumer: Any) -> Any:
    """In place of the ``start`` of the blueprint of Celery's ``Consumer``, which connects, declares and runs
    the loop. What a server in trouble refuses there, and nobody waits for, counts as a lost connection."""
    # This runs in a Celery worker only.
    from celery.exceptions import WorkerShutdown

    try:
        return start(self, consumer)
    except (ResponseError, OperationalError) as exc:
        # kombu puts an error of its own around that of a publish.
        error = exc if isinstance(exc, ResponseError) else exc.__cause__
        transport = getattr(consumer.connection, "transport", None)
        broker = getattr(transport, "broker", None)
        if not isinstance(error, ResponseError) or broker is None:
            raise
        refusal = refusal_of(error)
        if refusal is not None and refusal.then is Then.RAISES:
            raise
        if refusal is None:
            if _unknown.has_lasted(error):
                raise
            raise Refuses(f"Redis refuses: {error}") from None
        if isinstance(error, NeverServed) or not may_connect_again(refusal, broker):
            said = in_a_line(error.__cause__ or error)
            logger.critical("Redis refuses this worker, which ends: %s (%s)", said, refusal.hint)
            raise WorkerShutdown(1) from exc
        raise Refuses(f"Redis refuses ({refusal.hint}): {error}", refusal) from None


def _update_strategies(update: Callable[..., Any], self: Any) -> None:
    """In place of Celery's ``Consumer.update_strategies``. Celery calls it each time that it has connected,
    before it takes messages. The first connection was made before there was :func:`_connection_for_read`."""
    # This runs in a Celery worker only.
    from kombu_redisdelay.transport.request import requests_of

    if not _mark(self.connection):
        update(self)
        return
    if not hasattr(self, "redisdelay_gate"):
        self.redisdelay_gate = Gate()
        Stop(self, self.redisdelay_gate)
    forget_nothing(self, self.redisdelay_gate)
    watch_pool(self.pool)
    with requests_of(self, self.redisdelay_gate, options_of(self.connection)):
        update(self)


def _create_task_handler(create: Callable[..., Any], self: Any, *args: Any, **kwargs: Any) -> Any:
    """In place of Celery's ``Consumer.create_task_handler``, which returns the callback of all messages."""
    # This runs in a Celery worker only.
    from celery.backends.base import DisabledBackend

    handler = create(self, *args, **kwargs)
    channel = getattr(self.task_consumer, "channel", None)
    if isinstance(channel, Channel):
        channel.intake.pool = self.pool
        if channel.options.unknown_task_wait is not None:
            channel.intake.consumed.known_tasks = self.strategies
    if not _mark(self.connection):
        return handler

    def keeps_result(name: str) -> bool:
        task = self.app.tasks.get(name)
        return not (task is None or task.ignore_result or isinstance(task.backend, DisabledBackend))

    @wraps(handler)
    def on_task_received(message: virtual.Message) -> Any:
        if is_usual(message):
            return handler(message)
        wrong = wrong_part(message)
        if wrong is None and (task := task_with_odd_id(message)) is not None and keeps_result(task):
            wrong = "id is empty or no text, and the result is kept under it"
        if wrong is None:
            return handler(message)
        message.channel.qos.make_dead(message, wrong)
        return None

    return on_task_received
