"""How a task has ended: the one place that says so, and what is made of it.

In every pool, the main process of a Celery worker hears of the end of a task by a method of its request
(:mod:`~kombu_redisdelay.transport.request`). What it hears there is decided here, once. Who wants to know is
told: a task that has failed for good is kept, and each end is told to the metrics of the worker, and to the
list of finished tasks.

A task has failed for good if Celery has run it to an end without success. It has not if it is tried again
(``Retry``), ignores its message, comes back (``Reject(requeue=True)`` with late acks), or was terminated. A
task that is known to have returned (:mod:`~kombu_redisdelay.transport.returned`) has not failed, whatever
Celery calls it. It is acked and kept, and never comes back.
"""

from __future__ import annotations

import logging
from functools import lru_cache
from time import monotonic, time
from typing import Any, NamedTuple

from kombu_redisdelay import metrics
from kombu_redisdelay.broker.failure import Failure, name, shortened_traceback, text_of, tries_after
from kombu_redisdelay.broker.finished import FAILED, IGNORED, REQUEUED, RETRIED, SUCCEEDED, FinishedTask
from kombu_redisdelay.broker.message import stored_id, which
from kombu_redisdelay.transport.receive import stored_again
from kombu_redisdelay.transport.returned import EndLost, lost_of
from kombu_redisdelay.transport.tasks import name_of

logger = logging.getLogger(__name__)

#: Names of tasks and workers repeat.
_name = lru_cache(maxsize=1000)(name)


class Ending(NamedTuple):
    """What has happened to a task that did not simply succeed.

    Attributes:
        outcome: one of :data:`~kombu_redisdelay.broker.finished.OUTCOMES`; empty if Celery is about to
            announce it.
        error: what Celery was told, without what is around it.
        traceback: where it was raised; empty if that is unknown.
        returned: what was lost if the task is known to have returned; else empty.
        is_final: whether this is the end. When the process of a task was lost, only Celery knows: it may try
            the task again, or find that it has succeeded before.
    """

    outcome: str
    error: BaseException
    traceback: object = ""
    returned: str = ""
    is_final: bool = True

    @property
    def is_kept(self) -> bool:
        """Whether the task is kept among the failed ones."""
        return self.outcome == FAILED or self.returned != ""


def ending_of(request: Any, exc_info: Any) -> Ending:
    """What has happened to the task of a *request* that Celery calls failed.

    Arguments:
        exc_info: by which its process reports that.
    """
    # This runs in a Celery worker only.
    from celery.exceptions import Ignore, Reject, Retry, Terminated, WorkerLostError

    error, traceback = bare(exc_info.exception), exc_info.traceback
    if lost := lost_of(str(request.id), exc_info, error):
        return Ending(SUCCEEDED, error, traceback, lost)
    if isinstance(error, Terminated):
        # Unless the message comes back.
        return Ending("", error)
    if isinstance(error, Retry):
        return Ending(RETRIED, error)
    if isinstance(error, Ignore):
        return Ending(IGNORED, error)
    if isinstance(error, Reject) and error.requeue and not request.acknowledged:
        return Ending(REQUEUED, error)
    is_lost = isinstance(error, (WorkerLostError, SystemExit, KeyboardInterrupt))
    return Ending(FAILED, error, traceback, is_final=not is_lost)


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


# -- kept ------------------------------------------------------------------------------------------------


def failure_of(request: Any, ending: Ending) -> Failure | None:
    """What is kept of a task that has ended like this; ``None`` if nothing is: it has not failed, or its
    message is not one that has come out of a queue, or the option is off."""
    from celery.exceptions import Reject

    message, error = request.message, ending.error
    if not (ending.is_kept and hasattr(message, "stored_as")):
        return None
    if message.channel.options.kept_failed is None:
        return None
    return Failure(
        id=stored_id(str(request.id)),
        task=name(request.type),
        error=error_name(error),
        text=text_of(error.reason if isinstance(error, Reject) else error),
        traceback=shortened_traceback(ending.traceback),
        worker=str(request.hostname),
        tries=tries_after(request.request_dict.get("retries")),
        started=request.time_start,
        returned=ending.returned,
    )


def keep_copy(request: Any, failure: Failure) -> None:
    """Keep a task whose message was acked before it ran."""
    message = request.message
    try:
        queue, tag = message.stored_as.queue, str(message.delivery_tag)
        request.open_channel.consumer.keep_failed(queue, tag, failure, stored_again(message))
    except Exception:
        # The result of the task does not depend on it.
        logger.exception("Could not keep a failed task%s", which([name_of(message)], 1))


# -- finished --------------------------------------------------------------------------------------------


def tell(request: Any, outcome: str, error: str = "-", ran: object = None) -> None:
    """Tell the metrics of this worker, and the list of finished tasks, how the task of a *request* has ended.
    Only the first time counts: of a hard time limit, two methods are told.

    Arguments:
        ran: for how many seconds it ran, if its process says so.
    """
    # Not its property: each task comes here.
    message = request._message
    if not request.tells or request.is_told or not hasattr(message, "stored_as"):
        return
    request.is_told, stored = True, message.stored_as
    try:
        finished_ms = stored.taken_ms + (monotonic() - stored.taken_at) * 1000
        if not isinstance(ran, float):
            ran = max(0.0, time() - request.time_start) if request.time_start else None
        ready_ms, waited = stored.members.due_ms, None
        if ready_ms is not None:
            waited = max(0.0, (finished_ms - ready_ms) / 1000 - (ran or 0.0))
        task = _name(request.type)
        metrics.task_ended(task, outcome, error, waited, ran)
        if request.lists_ends:
            finished = FinishedTask(
                round(finished_ms),
                waited,
                ran,
                tries_after(request.request_dict.get("retries")),
                outcome,
                error,
                task,
                _name(str(request.hostname)),
                stored_id(str(request.id)),
            )
            request.open_channel.consumer.finishing.add(stored.queue, finished)
    except Exception:
        # The result of the task does not depend on it.
        logger.exception("Could not note the end of a task%s", which([name_of(message)], 1))
