"""The request that a Celery worker of ours makes of each message: it says how the task begins and ends.

Celery makes it of the class that ``Task.Request`` names, which is public. While a worker makes its
strategies, each task has one of ours there, which is derived from its own. So nothing of Celery is replaced,
a worker with another broker has nothing of ours, and a task that succeeds pays for nothing that it does not
use.

From its base, Celery derives one more class for each task, with an ``execute_using_pool`` and an
``on_success`` of its own, which call no others. These two are extended when that class is made.

What the end of a task means is decided in one place (:mod:`~kombu_redisdelay.transport.ending`), and goes
to: the ack, or what gives the message back (:mod:`~kombu_redisdelay.transport.settling`); what keeps
it among the failed ones; and the metrics and the list of finished tasks.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial, wraps
from traceback import format_exc
from typing import Any, ClassVar

from billiard.einfo import ExceptionInfo
from celery import signals
from celery.exceptions import TaskRevokedError, TimeLimitExceeded
from celery.worker import request as of_celery
from kombu.utils.imports import symbol_by_name

from kombu_redisdelay import metrics
from kombu_redisdelay.broker.finished import EXPIRED, FAILED, REVOKED, SUCCEEDED, TERMINATED
from kombu_redisdelay.broker.message import which
from kombu_redisdelay.broker.options import Options
from kombu_redisdelay.broker.unique import UNIQUE_HEADER
from kombu_redisdelay.transport.channel import Channel
from kombu_redisdelay.transport.ending import Ending, ending_of, error_name, failure_of, keep_copy, tell
from kombu_redisdelay.transport.returned import lost_of
from kombu_redisdelay.transport.settings import warn_of_early_ack
from kombu_redisdelay.transport.settling import settle_where_called
from kombu_redisdelay.transport.tasks import (
    Gate,
    forget_task,
    is_exit,
    is_terminated,
    name_of,
)
from kombu_redisdelay.transport.upstream import MendedRequest, note_end_of_the_loop, requeue_unpublished

logger = logging.getLogger(__name__)


class _Told(threading.local):
    """What Celery has said in this thread."""

    #: The id of the task of which it has last said that it has failed.
    id: object = None


_told = _Told()


@signals.task_failure.connect(weak=False, dispatch_uid=__name__)  # type: ignore[untyped-decorator]
def _on_task_failure(task_id: object = None, **kwargs: Any) -> None:
    _told.id = task_id


def _begins(begin: Callable[..., Any]) -> Callable[..., Any]:
    """Extend Celery's ``execute_using_pool``, which hands a task to the pool. Celery calls it in the callback
    of the message, but also by a timer, or when there is room in the pool."""

    @wraps(begin)
    def execute_using_pool(self: Any, pool: Any, **kwargs: Any) -> Any:
        # Not its property: each task comes here. First the mark, in whatever thread this is: who shuts the
        # gate sees the mark, or this sees that it is shut.
        self._message.is_let_in = True
        if self.gate.is_shut:
            self._message.is_let_in = False
            return None
        try:
            return begin(self, pool, **kwargs)
        except BaseException as exc:
            if isinstance(exc, TaskRevokedError) or is_exit(exc) or note_end_of_the_loop(exc):
                raise
            self.outlive(exc)
            return None

    return execute_using_pool


def _succeeds(on_success: Callable[..., Any]) -> Callable[..., Any]:
    """Extend Celery's ``on_success``."""

    @wraps(on_success)
    def extended(self: Any, failed__retval__runtime: Any, **kwargs: Any) -> Any:
        result = on_success(self, failed__retval__runtime, **kwargs)
        failed, _, runtime = failed__retval__runtime
        if not failed:
            self.tell(SUCCEEDED, ran=runtime)
        return result

    return extended


class Request(MendedRequest, of_celery.Request):  # type: ignore[misc]  # celery has no types
    """The request of a task whose message came over a channel of ours.

    Attributes:
        consumer: that of Celery.
        gate: of the same worker.
        tells: whether anybody wants to know how tasks end.
        lists_ends: whether there is a list of finished tasks.
        is_kept: whether it was noted among the failed ones.
        is_told: whether it was told how it has ended.
    """

    consumer: ClassVar[Any]
    gate: ClassVar[Gate]
    tells: ClassVar[bool]
    lists_ends: ClassVar[bool]
    is_kept = False
    is_told = False
    tell = tell
    _on_ack: Any
    _on_reject: Any

    def __init__(self, message: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(message, *args, **kwargs)
        # Not the request: it refers to the message.
        message.received_as = self._task
        settle_where_called(self, message, self.consumer)
        if UNIQUE_HEADER in message.headers:
            warn_of_early_ack(self._task, message.headers)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        made: Any = cls
        if begin := vars(cls).get("execute_using_pool"):
            made.execute_using_pool = _begins(begin)
        if cls.tells and (on_success := vars(cls).get("on_success")):
            made.on_success = _succeeds(on_success)

    # -- the beginning -----------------------------------------------------------------------------------

    @_begins
    def execute_using_pool(self, pool: Any, **kwargs: Any) -> Any:
        return super().execute_using_pool(pool, **kwargs)

    def outlive(self, error: BaseException) -> None:
        """Go on, though the pool has not got the task, or has run it and could not end it, because of this
        *error*: its own code has raised it, such as its ``on_failure``. To be called while it is handled."""
        semaphore = self.consumer.controller.semaphore
        if semaphore is not None:
            # Its place in the worker would never be free again.
            semaphore.release()
        if lost_of(str(self.id), error):
            # In a solo worker, where an exception that leaves Celery's tracer comes to nobody else.
            self.on_failure(ExceptionInfo())
        elif self.acknowledged:
            # It does not come back.
            logger.exception(
                "Celery could not end a task, which counts as failed%s. The worker goes on.",
                which([name_of(self.message)], 1),
            )
            forget_task(self.message)
            failure = failure_of(self, Ending(FAILED, error, format_exc()))
            if failure is not None and not self.is_kept:
                keep_copy(self, failure)
            self.tell(FAILED, error_name(error))
        else:
            self.message.channel.qos.has_failed(self.message)

    # -- the end -----------------------------------------------------------------------------------------

    def on_failure(self, exc_info: Any, send_failed_event: bool = True, return_ok: bool = False) -> Any:
        requeue_unpublished(self, exc_info)
        ending = ending_of(self, exc_info)
        # Of a task that has returned, Celery has tried to store the failure. Here, that would keep the worker
        # waiting.
        return_ok = return_ok or ending.returned != ""
        return self._end(ending, super().on_failure, exc_info, send_failed_event, return_ok)

    def on_timeout(self, soft: bool, timeout: Any) -> Any:
        """With prefork, ``on_failure`` comes first."""
        if soft or is_terminated():
            return super().on_timeout(soft, timeout)
        return self._end(Ending(FAILED, TimeLimitExceeded(timeout)), super().on_timeout, soft, timeout)

    def _announce_revoked(self, reason: str, terminated: bool, signum: Any, expired: bool) -> None:
        is_announced = False
        try:
            super()._announce_revoked(reason, terminated, signum, expired)
            is_announced = True
        finally:
            # If the result backend does not take it, one that has not run comes back.
            if is_announced or terminated:
                self.tell(TERMINATED if terminated else EXPIRED if expired else REVOKED)

    def _end(self, ending: Ending, end: Callable[..., Any], *args: Any) -> Any:
        """Have Celery *end* the task, and tell whom it concerns."""
        message, was_acked = self.message, self.acknowledged
        failure = None if self.is_kept else failure_of(self, ending)
        later: list[Callable[[], Any]] = []
        settles = self._on_ack, self._on_reject
        if failure is not None:
            self.is_kept = True
            if not ending.is_final:
                # What is acked meanwhile may be a success, or a task that was published again.
                self._on_ack, self._on_reject = (
                    lambda *args, settle=settle: later.append(partial(settle, *args)) for settle in settles
                )
            elif not was_acked:
                # Celery acks or rejects it at its end, or a little later: then it is kept.
                message.channel.qos.failures[message.delivery_tag] = failure
        if ending.returned:
            # Whatever Celery does with such an error.
            self.acknowledge()
        _told.id = None
        try:
            result = end(*args)
        finally:
            is_final = ending.is_final or self.could_not_end or _told.id == self.id
            if failure is not None and is_final:
                if was_acked:
                    keep_copy(self, failure)
                elif not ending.is_final:
                    message.channel.qos.failures[message.delivery_tag] = failure
            self._on_ack, self._on_reject = settles
            for settle in later:
                settle()
        if is_final and ending.outcome:
            self.tell(ending.outcome, error_name(ending.error) if ending.outcome == FAILED else "-")
        return result

    @property
    def open_channel(self) -> Channel:
        """The channel of the message; if its connection was lost, the one that the worker consumes over now:
        nobody looks after the other any more."""
        channel: Channel = self._message.channel
        if channel.closed:
            now = getattr(self.consumer.task_consumer, "channel", None)
            return now if isinstance(now, Channel) else channel
        return channel


@contextmanager
def requests_of(consumer: Any, gate: Gate, options: Options) -> Iterator[None]:
    """Have Celery's *consumer* make requests of ours of the tasks for which it makes its strategies in this
    block.

    Arguments:
        gate: of the same worker.
        options: those of its broker.
    """
    lists_ends = options.kept_finished is not None
    tells = metrics.IS_INSTALLED or lists_ends
    of_worker = {"consumer": consumer, "gate": gate, "tells": tells, "lists_ends": lists_ends}
    given = [(task, vars(task).copy()) for task in consumer.app.tasks.values()]
    classes: dict[type, type] = {}
    try:
        for task, _ in given:
            base = symbol_by_name(task.Request)
            if issubclass(base, of_celery.Request):
                made = classes.get(base) or type(base.__name__, (Request, base), of_worker)
                task.Request = classes[base] = made
        yield
    finally:
        for task, own in given:
            # That of its class again, or its own.
            vars(task).pop("Request", None)
            vars(task).update({name: own[name] for name in own.keys() & {"Request"}})
