"""A Celery worker of ours: it goes on whatever a message makes it raise, and stops in good order.

Nothing changes without a worker: a program that consumes with kombu may leave its loop by an exception of its
callback.

When it is told to stop, Celery keeps what it has received and not begun until the running tasks have ended.
Here, that goes back at once, in this order:

1. A signal asks the worker to stop: the door to the pool is shut (:mod:`~kombu_redisdelay.transport.tasks`).
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
from redis.exceptions import RedisError, ResponseError

from kombu_redisdelay.broker.server.connections import begin_end
from kombu_redisdelay.broker.server.wire import Refuses
from kombu_redisdelay.refusals import Then, refusal_of
from kombu_redisdelay.rpc_results import let_results_expire
from kombu_redisdelay.transport.channel import Channel
from kombu_redisdelay.transport.failures import consumes_over, end_returned, keep_failures, keep_unended
from kombu_redisdelay.transport.outcomes import learn_outcomes, note_unended, want_outcomes
from kombu_redisdelay.transport.patience import impatient
from kombu_redisdelay.transport.pools import cancelling, forget_nothing, make_room, watch_pool
from kombu_redisdelay.transport.protocol import task_with_odd_id, wrong_part
from kombu_redisdelay.transport.refused import NeverServed, UnknownError, as_worker, may_connect_again
from kombu_redisdelay.transport.tasks import Door, has_crashed, is_exit, note_end_of_the_loop
from kombu_redisdelay.transport.urls import options_of
from kombu_redisdelay.words import in_a_line

logger = logging.getLogger(__name__)

#: What a server has refused this worker while it connected, or in its loop.
_unknown = UnknownError()


def outlive_failures() -> None:
    """Extend Celery's consumer of tasks, if this process has a Celery worker. Calling it again changes
    nothing."""
    # Another thread may be importing it.
    consumer: Any = getattr(sys.modules.get("celery.worker.consumer.consumer"), "Consumer", None)
    if consumer is not None and not hasattr(consumer.update_strategies, "extends_celery"):
        consumer.update_strategies = _outliving(consumer.update_strategies)
        consumer.create_task_handler = _checking(consumer.create_task_handler)
        consumer.connection_for_read = _marking(consumer.connection_for_read)
        consumer.ensure_connected = _impatient(consumer.ensure_connected)
        consumer.Blueprint.start = _refused(consumer.Blueprint.start)
        lost = consumer.on_connection_error_after_connected
        consumer.on_connection_error_after_connected = _dropping_events(lost)
        consumer.on_close = _emptying_timers(consumer.on_close)
        from celery.worker.heartbeat import Heart
        from celery.worker.request import Request

        Heart._send = _never_waiting(Heart._send)

        keep_failures(Request)
        learn_outcomes(Request)
        let_results_expire()
        # Outside of that, because it decides what comes back.
        Request.on_failure = _requeuing(Request.on_failure)
        Request.cancel = cancelling(Request.cancel)


class Stop:
    """What happens when a worker is told to stop. It lasts as long as Celery's *consumer*.

    Arguments:
        door: of the same worker.
    """

    def __init__(self, consumer: Any, door: Door) -> None:
        from celery import signals

        self._consumer = consumer
        self._door = door
        # Celery calls it when the worker stops, and only then.
        self._on_close = consumer.blueprint.on_close
        consumer.blueprint.on_close = self._close
        # This reference is weak.
        signals.worker_shutting_down.connect(self._on_signal, sender=consumer.hostname)

    def _on_signal(self, **kwargs: Any) -> None:
        self._begin_nothing_more()

    def _begin_nothing_more(self) -> None:
        """Shut the door, and end what the loop waits for. A signal handler calls this."""
        if self._door.is_shut:
            return
        self._door.shut()
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


def _marking(connection_for_read: Callable[..., Any]) -> Callable[..., Any]:
    """In place of Celery's ``Consumer.connection_for_read``. With greenlets, remote control has a connection
    of its own."""

    @wraps(connection_for_read)
    def extended(self: Any, *args: Any, **kwargs: Any) -> Any:
        connection = connection_for_read(self, *args, **kwargs)
        _mark(connection)
        return connection

    return extended


def _impatient(ensure_connected: Callable[..., Any]) -> Callable[..., Any]:
    """In place of Celery's ``Consumer.ensure_connected``, which waits by itself, and looks meanwhile whether
    the worker is to stop."""

    # This runs in a Celery worker only.
    from celery.worker.state import maybe_shutdown

    @wraps(ensure_connected)
    def extended(self: Any, connection: Any, *args: Any, **kwargs: Any) -> Any:
        with impatient():
            if not (_mark(connection) and _connects_again(self)):
                return ensure_connected(self, connection, *args, **kwargs)
            longest_pause = options_of(connection).lease_policy.longest_pause
            with as_worker(maybe_shutdown, longest_pause):
                return ensure_connected(self, connection, *args, **kwargs)

    return extended


def _connects_again(consumer: Any) -> bool:
    """Whether Celery is to connect again when that fails."""
    conf = consumer.app.conf
    at_start = conf.broker_connection_retry_on_startup
    is_start = consumer.first_connection_attempt and at_start is not None
    return bool(at_start if is_start else conf.broker_connection_retry)


def _refused(start: Callable[..., Any]) -> Callable[..., Any]:
    """In place of the ``start`` of the blueprint of Celery's ``Consumer``, which connects, declares and runs
    the loop. What a server in trouble refuses there, and nobody waits for, counts as a lost connection."""
    # This runs in a Celery worker only.
    from celery.exceptions import WorkerShutdown

    @wraps(start)
    def extended(self: Any, consumer: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return start(self, consumer, *args, **kwargs)
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

    return extended


def _dropping_events(on_lost: Callable[..., Any]) -> Callable[..., Any]:
    """In place of Celery's ``Consumer.on_connection_error_after_connected``. Celery then sends the event
    ``worker-offline`` over another connection, which leads to the same server, and would wait for it. Events
    that cannot be sent are kept until Celery has connected again."""

    @wraps(on_lost)
    def extended(self: Any, *args: Any, **kwargs: Any) -> Any:
        connection = getattr(getattr(self, "event_dispatcher", None), "connection", None)
        if connection is not None and hasattr(connection.transport, "is_workers"):
            connection.collect()
        return on_lost(self, *args, **kwargs)

    return extended


def _emptying_timers(on_close: Callable[..., Any]) -> Callable[..., Any]:
    """In place of Celery's ``Consumer.on_close``, which forgets what was received over a lost connection, and
    cancels the timers of tasks with an ETA. Celery 5.7 has a list of all timers, with the cancelled ones,
    until the next connection is lost. A timer has the request of its task, and so the message, which would
    count as in use as long."""
    # This runs in a Celery worker only.
    from celery.worker import state

    @wraps(on_close)
    def extended(self: Any, *args: Any, **kwargs: Any) -> Any:
        # Without an event loop, timers have threads or greenlets of their own, and are in no list.
        scheduled = list(getattr(state, "scheduled_requests", ())) if self.hub is not None else []
        result = on_close(self, *args, **kwargs)
        for timer in (request._eta_timer_entry for request in scheduled):
            if timer is not None:
                timer.args = ()
        return result

    return extended


def _never_waiting(send: Callable[..., Any]) -> Callable[..., Any]:
    """In place of the ``_send`` of Celery's heartbeat, which waits for a connection in the loop of the
    worker. Who waits there does not hear of SIGTERM. An event that cannot be sent is kept until Celery has
    connected again."""

    @wraps(send)
    def extended(self: Any, event: str, retry: bool = True) -> Any:
        transport = getattr(self.eventer.connection, "transport", None)
        return send(self, event, retry and not hasattr(transport, "is_workers"))

    return extended


def _outliving(update_strategies: Callable[..., Any]) -> Callable[..., Any]:
    """In place of Celery's ``Consumer.update_strategies``. Celery calls it each time that it has connected,
    before it takes ``on_task_request`` from the consumer. The first connection was made before there was
    :func:`_marking`."""

    @wraps(update_strategies)
    def extended(self: Any, *args: Any, **kwargs: Any) -> Any:
        if _mark(self.connection):
            controller, process = self.controller, self.controller._process_task
            if not hasattr(process, "extends_celery"):
                door = Door(process)
                # If there is a semaphore, it calls this one when the pool has room.
                controller._process_task = _processing(process, controller, door)
                Stop(self, door)
            if self.on_task_request == process:
                self.on_task_request = controller._process_task
            forget_nothing(self, controller._process_task.door)
            want_outcomes(options_of(self.connection))
            watch_pool(self.pool)
        return update_strategies(self, *args, **kwargs)

    extended.extends_celery = True  # type: ignore[attr-defined]
    return extended


def _processing(process: Callable[..., Any], controller: Any, door: Door) -> Callable[..., Any]:
    """In place of a controller's ``_process_task``, which hands a task to the pool. It is called in the
    callback of the message, but also by a timer, or by the result of another task."""

    @wraps(process)
    def extended(request: Any) -> Any:
        # Not its property: each task comes here. First the mark, in whatever thread this is: who shuts the
        # door sees the mark, or this sees that it is shut.
        request._message.is_let_in = True
        try:
            return door.let_in(request)
        except BaseException as exc:
            channel = request.message.channel
            if is_exit(exc) or note_end_of_the_loop(exc) or not isinstance(channel, Channel):
                raise
            if controller.semaphore is not None:
                # The pool has not got it, so its place in the worker would never be free again.
                controller.semaphore.release()
            # In a solo worker, the task has run in there.
            if end_returned(request, exc):
                return None
            if request.acknowledged:
                keep_unended(request, exc)
                note_unended(request, exc)
            else:
                channel.qos.has_failed(request.message)
            return None

    extended.extends_celery = True  # type: ignore[attr-defined]
    extended.door = door  # type: ignore[attr-defined]
    return extended


def _requeuing(on_failure: Callable[..., Any]) -> Callable[..., Any]:
    """In place of Celery's ``Request.on_failure``. When ``Task.retry()`` cannot publish, Celery rejects the
    message of the task without requeue: it would be lost. Here, it comes back."""
    # This runs in a Celery worker only.
    from celery.exceptions import Reject

    @wraps(on_failure)
    def extended(self: Any, exc_info: Any, *args: Any, **kwargs: Any) -> Any:
        error = exc_info.exception
        # What Celery has put around it, if it comes from another process.
        error = getattr(error, "exc", error)
        if (
            isinstance(error, Reject)
            and isinstance(error.reason, (OperationalError, RedisError))
            and not self.acknowledged
            and isinstance(self.message.channel, Channel)
        ):
            error.requeue = True
        return on_failure(self, exc_info, *args, **kwargs)

    return extended


def _checking(create_task_handler: Callable[..., Any]) -> Callable[..., Any]:
    """In place of Celery's ``Consumer.create_task_handler``, which returns the callback of all messages."""

    from celery.backends.base import DisabledBackend

    @wraps(create_task_handler)
    def extended(self: Any, *args: Any, **kwargs: Any) -> Any:
        handler = create_task_handler(self, *args, **kwargs)
        if not _mark(self.connection):
            return handler
        consumes_over(getattr(self.task_consumer, "channel", None))

        def keeps_result(name: str) -> bool:
            task = self.app.tasks.get(name)
            return not (task is None or task.ignore_result or isinstance(task.backend, DisabledBackend))

        @wraps(handler)
        def on_task_received(message: virtual.Message) -> Any:
            wrong = wrong_part(message)
            if wrong is None and (task := task_with_odd_id(message)) is not None and keeps_result(task):
                wrong = "id is empty or no text, and the result is kept under it"
            if wrong is None:
                return handler(message)
            message.channel.qos.make_dead(message, wrong)
            return None

        return on_task_received

    return extended
