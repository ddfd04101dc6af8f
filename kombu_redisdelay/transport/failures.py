"""Learns from a Celery worker which tasks have failed for good, and keeps these.

In every pool, the main process of the worker ends a task by a method of its request: ``on_success``,
``on_failure`` or ``on_timeout``. The class that a worker makes for each task inherits the last two. They are
wrapped on Celery's class, so nothing is called as long as no task fails or is tried again.

A task has failed for good if Celery has run it to an end without success. It has not if it is tried again
(``Retry``), ignores its message, comes back (``Reject(requeue=True)`` with late acks), or was terminated.
When the process of a task was lost, only Celery knows: it may try the task again, or find that it has
succeeded before. If it has failed, Celery sends ``task_failure`` here, in the main process. First it stores
the result: if that raises an error, the task has failed, too.

A task that is known to have returned (``returned.py``) has not failed, whatever Celery calls it. It is acked
and kept, and never comes back.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from functools import wraps
from traceback import format_exc
from typing import Any
from weakref import ref

from kombu_redisdelay.broker.failure import Failure, name, shortened_traceback, text_of, tries_after
from kombu_redisdelay.broker.message import stored_id, which
from kombu_redisdelay.transport.channel import Channel
from kombu_redisdelay.transport.receive import stored_again
from kombu_redisdelay.transport.returned import EndLost, lost_of
from kombu_redisdelay.transport.tasks import forget_task, is_terminated, name_of
from kombu_redisdelay.words import in_a_line

logger = logging.getLogger(__name__)


class Told(threading.local):
    """What Celery has said in this thread."""

    #: The id of the task of which it has last said that it has failed, or could not say so.
    id: object = None


told = Told()

#: The channel that the worker consumes over now.
_current: Callable[[], Channel | None] = lambda: None  # noqa: E731


def keep_failures(request_class: Any) -> None:
    """Keep the tasks that fail for good, for all requests of this class, Celery's ``Request``."""
    from celery import signals

    request_class.on_failure = _noting_failure(_settling(request_class.on_failure))
    # Celery 5.7.
    if hasattr(request_class, "_retry_worker_lost"):
        request_class._retry_worker_lost = _going_on(request_class._retry_worker_lost)
    request_class._announce_cancelled = _cancelling(request_class._announce_cancelled)
    request_class.on_timeout = _noting_timeout(_settling_timeout(request_class.on_timeout))
    signals.task_failure.connect(_on_task_failure, weak=False, dispatch_uid=__name__)


def consumes_over(channel: object) -> None:
    """Note that the worker consumes over this *channel* from now on."""
    global _current
    if isinstance(channel, Channel):
        _current = ref(channel)


def keep_unended(request: Any, error: BaseException) -> None:
    """Keep a task that Celery could not end, because its own code raised *error* there, such as its
    ``on_failure``. Its message was acked before, so it does not come back. To be called while the exception
    is handled."""
    logger.exception(
        "Celery could not end a task, which counts as failed%s. The worker goes on.",
        which([name_of(request.message)], 1),
    )
    forget_task(request.message)
    if _keeps(request) and not hasattr(request, "has_failed"):
        _keep_copy(request.message, _failure(request, error, error, format_exc()))


def end_returned(request: Any, error: BaseException) -> bool:
    """End a task that has returned, in a solo worker, where an exception that leaves Celery's tracer comes to
    nobody else. Returns whether it is known to have returned. To be called while the exception is
    handled."""
    from billiard.einfo import ExceptionInfo

    if not lost_of(str(request.id), error):
        return False
    request.on_failure(ExceptionInfo())
    return True


def open_channel(message: Any) -> Channel:
    """The channel of a *message*; if its connection was lost, the one that the worker consumes over now:
    nobody looks after the other any more."""
    channel: Channel = message.channel
    return channel if not channel.closed else _current() or channel


def bare(error: Any) -> Any:
    """The exception of a task, without what is around it if it comes from another process."""
    from billiard.einfo import ExceptionWithTraceback

    return error.exc if isinstance(error, ExceptionWithTraceback) else error


def error_name(error: Any) -> str:
    """The name of the class of an exception. One that could not be pickled comes as another one, which has
    the name."""
    from celery.utils.serialization import UnpickleableExceptionWrapper

    is_wrapped = isinstance(error, (UnpickleableExceptionWrapper, EndLost))
    return name(error.exc_cls_name if is_wrapped else type(error).__name__)


def tries_of(request: Any) -> int:
    """How often a task was tried, with this time."""
    return tries_after(request.request_dict.get("retries"))


def _on_task_failure(task_id: object = None, **kwargs: Any) -> None:
    told.id = task_id


def _settling(on_failure: Callable[..., Any]) -> Callable[..., Any]:
    """In place of Celery's ``Request.on_failure``, which raises an error if the result backend does not take
    the failure. By then Celery has acked the message, or is about to settle it. A pool would only log the
    error; and before Celery 5.7, the JSON of a result has no ``SystemExit``."""
    from celery.exceptions import Reject, Terminated

    @wraps(on_failure)
    def extended(self: Any, exc_info: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return on_failure(self, exc_info, *args, **kwargs)
        except Exception as exc:
            message, error = self.message, bare(exc_info.exception)
            # With MemoryError, Celery ends a worker.
            if isinstance(exc, MemoryError) or not isinstance(getattr(message, "channel", None), Channel):
                raise
            # Of these, the result is stored first.
            if isinstance(error, Reject):
                self.reject(requeue=error.requeue)
            elif isinstance(error, Terminated):
                self.acknowledge()
            elif not self.acknowledged:
                raise
            told.id = self.id
            logger.exception("Celery could not end a task%s", which([name_of(message)], 1))
            return None

    return extended


def _settling_timeout(on_timeout: Callable[..., Any]) -> Callable[..., Any]:
    """The same in place of Celery's ``Request.on_timeout``."""

    @wraps(on_timeout)
    def extended(self: Any, soft: bool, timeout: Any) -> Any:
        try:
            return on_timeout(self, soft, timeout)
        except Exception:
            message, task = self.message, self.task
            # Before Celery 5.7, there is only the second one.
            is_acked = getattr(task, "acks_on_timeout", task.acks_on_failure_or_timeout)
            if not isinstance(getattr(message, "channel", None), Channel) or not is_acked:
                raise
            self.acknowledge()
            logger.exception("Celery could not end a task%s", which([name_of(message)], 1))
            return None

    return extended


def _going_on(retry: Callable[..., Any]) -> Callable[..., Any]:
    """In place of Celery's ``Request._retry_worker_lost``. If it raises an error, because the result backend
    does not take the retry, or because ``on_retry`` of the task has a fault, it has published the task."""

    @wraps(retry)
    def extended(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return retry(self, *args, **kwargs)
        except Exception:
            if not isinstance(getattr(self.message, "channel", None), Channel):
                raise
            logger.exception(
                "Celery could not end a task, which is tried again%s", which([name_of(self.message)], 1)
            )
            if self.task.acks_late:
                self.acknowledge()
            return True

    return extended


def _cancelling(announce: Callable[..., Any]) -> Callable[..., Any]:
    """In place of Celery's ``Request._announce_cancelled``, which stores a retry, and then notes that Celery
    has ended the task itself, as it does when the connection is lost. Without the note, Celery takes its end
    for a revocation, and acks the message that has to come back."""

    @wraps(announce)
    def extended(request: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return announce(request, *args, **kwargs)
        except Exception as exc:
            if not isinstance(getattr(request.message, "channel", None), Channel):
                raise
            request._already_cancelled = True
            named = which([name_of(request.message)], 1)
            logger.warning("Celery could not say that it has cancelled a task (%s)%s", in_a_line(exc), named)
            return None

    return extended


def _noting_failure(on_failure: Callable[..., Any]) -> Callable[..., Any]:
    """In place of Celery's ``Request.on_failure``."""
    from celery.exceptions import Ignore, Reject, Retry, Terminated, WorkerLostError

    @wraps(on_failure)
    def extended(self: Any, exc_info: Any, *args: Any, **kwargs: Any) -> Any:
        error = bare(exc_info.exception)
        if lost := lost_of(str(self.id), exc_info, error):
            # Celery has tried to store the failure. Here, that would keep the worker waiting.
            kwargs["return_ok"] = True
            if not _keeps(self):
                self.acknowledge()
                return on_failure(self, exc_info, *args, **kwargs)
            failure = _failure(self, error, error, exc_info.traceback)._replace(returned=lost)
            return _ending(self, failure, False, on_failure, exc_info, *args, **kwargs)
        comes_back = isinstance(error, Reject) and error.requeue and not self.acknowledged
        if comes_back or isinstance(error, (Retry, Ignore, Terminated)) or not _keeps(self):
            return on_failure(self, exc_info, *args, **kwargs)
        is_open = isinstance(error, (WorkerLostError, SystemExit, KeyboardInterrupt))
        said = error.reason if isinstance(error, Reject) else error
        failure = _failure(self, error, said, exc_info.traceback)
        return _ending(self, failure, is_open, on_failure, exc_info, *args, **kwargs)

    return extended


def _noting_timeout(on_timeout: Callable[..., Any]) -> Callable[..., Any]:
    """In place of Celery's ``Request.on_timeout``. With prefork, ``on_failure`` comes first."""
    from celery.exceptions import TimeLimitExceeded

    @wraps(on_timeout)
    def extended(self: Any, soft: bool, timeout: Any) -> Any:
        if soft or is_terminated() or hasattr(self, "has_failed") or not _keeps(self):
            return on_timeout(self, soft, timeout)
        error = TimeLimitExceeded(timeout)
        failure = _failure(self, error, error, "")
        return _ending(self, failure, False, on_timeout, soft, timeout)

    return extended


def _keeps(request: Any) -> bool:
    """Whether what fails is kept: the message is from a channel of ours, and has come out of a queue."""
    message = request.message
    channel = getattr(message, "channel", None)
    return (
        isinstance(channel, Channel)
        and hasattr(message, "stored_as")
        and channel.options.kept_failed is not None
    )


def _ending(
    request: Any, failure: Failure, is_open: bool, method: Callable[..., Any], *args: Any, **kwargs: Any
) -> Any:
    """Have Celery end a request by *method*, and keep the task.

    Arguments:
        is_open: whether Celery decides in *method* if it has failed.
    """
    message, tag, was_acked = request.message, request.message.delivery_tag, request.acknowledged
    qos = message.channel.qos
    request.has_failed = True
    if not was_acked and not is_open:
        # Celery acks or rejects it in the method, or a little later: then it is kept.
        qos.failures[tag] = failure
    if failure.returned:
        # Whatever Celery does with such an error.
        request.acknowledge()
    told.id = None
    # What is acked meanwhile may be a success, or a task that was published again.
    message.postponed = [] if is_open else None
    try:
        return method(request, *args, **kwargs)
    finally:
        is_final = not is_open or told.id == request.id
        if is_final and was_acked:
            _keep_copy(message, failure)
        elif is_final and is_open:
            qos.failures[tag] = failure
        settle_all, message.postponed = message.postponed or (), None
        for settle in settle_all:
            settle()


def _keep_copy(message: Any, failure: Failure) -> None:
    """Keep a task whose message was acked before it ran."""
    try:
        open_channel(message).consumer.keep_failed(
            message.stored_as.queue, str(message.delivery_tag), failure, stored_again(message)
        )
    except Exception:
        # The result of the task does not depend on it.
        logger.exception("Could not keep a failed task%s", which([name_of(message)], 1))


def _failure(request: Any, error: Any, said: object, traceback: object) -> Failure:
    """
    Arguments:
        said: what says why it has failed.
    """
    return Failure(
        id=stored_id(str(request.id)),
        task=name(request.type),
        error=error_name(error),
        text=text_of(said),
        traceback=shortened_traceback(traceback),
        worker=str(request.hostname),
        tries=tries_of(request),
        started=request.time_start,
    )
