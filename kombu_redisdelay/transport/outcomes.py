"""Learns how each task of a Celery worker has ended: for the metrics of the worker, and for the list of
finished tasks.

The failures of tasks come to the same methods of Celery's ``Request`` as in
:mod:`~kombu_redisdelay.transport.failures`. A success comes to ``on_success`` of a class that Celery makes
for each task. That is wrapped when the class is made, and only if somebody wants to know: it is called for
every task.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import lru_cache, wraps
from time import monotonic, time
from typing import Any

from kombu_redisdelay import metrics
from kombu_redisdelay.broker.failure import name
from kombu_redisdelay.broker.finished import (
    EXPIRED,
    FAILED,
    IGNORED,
    REQUEUED,
    RETRIED,
    REVOKED,
    SUCCEEDED,
    TERMINATED,
    FinishedTask,
)
from kombu_redisdelay.broker.message import stored_id, which
from kombu_redisdelay.broker.options import Options
from kombu_redisdelay.transport.channel import Channel
from kombu_redisdelay.transport.failures import bare, error_name, open_channel, told, tries_of
from kombu_redisdelay.transport.receive import StoredAs
from kombu_redisdelay.transport.returned import lost_of
from kombu_redisdelay.transport.tasks import is_terminated, name_of

logger = logging.getLogger(__name__)

#: Names of tasks and workers repeat.
_name = lru_cache(maxsize=1000)(name)

_is_wanted = False


def want_outcomes(options: Options) -> None:
    """Note that a worker is about to make its classes of requests.

    Arguments:
        options: those of its broker.
    """
    global _is_wanted
    _is_wanted = _is_wanted or metrics.IS_INSTALLED or options.kept_finished is not None


def learn_outcomes(request_class: Any) -> None:
    """Learn them from all requests of this class, Celery's ``Request``."""
    request_class.on_failure = _learning_failure(request_class.on_failure)
    request_class.on_timeout = _learning_timeout(request_class.on_timeout)
    request_class._announce_revoked = _learning_revoked(request_class._announce_revoked)

    def derived(cls: Any, /, **kwargs: Any) -> None:
        super(request_class, cls).__init_subclass__(**kwargs)
        on_success = cls.__dict__.get("on_success")
        if _is_wanted and on_success is not None:
            cls.on_success = _learning_success(on_success)

    request_class.__init_subclass__ = classmethod(derived)


def note_unended(request: Any, error: BaseException) -> None:
    """Note that a task has failed that Celery could not end, because its own code raised *error* there."""
    _end(request, FAILED, error_name(error))


def _learning_success(on_success: Callable[..., Any]) -> Callable[..., Any]:
    """In place of ``on_success`` of the class that Celery makes for a task."""

    @wraps(on_success)
    def extended(self: Any, failed__retval__runtime: Any, **kwargs: Any) -> Any:
        result = on_success(self, failed__retval__runtime, **kwargs)
        failed, _, runtime = failed__retval__runtime
        if not failed:
            _end(self, SUCCEEDED, ran=runtime)
        return result

    return extended


def _learning_failure(on_failure: Callable[..., Any]) -> Callable[..., Any]:
    """In place of Celery's ``Request.on_failure``."""
    from celery.exceptions import Ignore, Reject, Retry, Terminated, WorkerLostError

    def outcome(request: Any, error: Any, was_acked: bool) -> str | None:
        if isinstance(error, Terminated):
            # Celery announces it, unless the message comes back.
            return None
        if isinstance(error, Retry):
            return RETRIED
        if isinstance(error, Ignore):
            return IGNORED
        if isinstance(error, Reject) and error.requeue and not was_acked:
            return REQUEUED
        if isinstance(error, (WorkerLostError, SystemExit, KeyboardInterrupt)) and told.id != request.id:
            # Celery tries it again, or has found that it had succeeded.
            return None
        return FAILED

    @wraps(on_failure)
    def extended(self: Any, exc_info: Any, *args: Any, **kwargs: Any) -> Any:
        was_acked, told.id = self.acknowledged, None
        result = on_failure(self, exc_info, *args, **kwargs)
        error = bare(exc_info.exception)
        has_returned = bool(lost_of(str(self.id), exc_info, error))
        ended = SUCCEEDED if has_returned else outcome(self, error, was_acked)
        if ended is not None:
            _end(self, ended, error_name(error) if ended == FAILED else "-")
        return result

    return extended


def _learning_timeout(on_timeout: Callable[..., Any]) -> Callable[..., Any]:
    """In place of Celery's ``Request.on_timeout``. With prefork, ``on_failure`` comes first."""
    from celery.exceptions import TimeLimitExceeded

    @wraps(on_timeout)
    def extended(self: Any, soft: bool, timeout: Any) -> Any:
        result = on_timeout(self, soft, timeout)
        if not soft and not is_terminated():
            _end(self, FAILED, TimeLimitExceeded.__name__)
        return result

    return extended


def _learning_revoked(announce: Callable[..., Any]) -> Callable[..., Any]:
    """In place of Celery's ``Request._announce_revoked``."""

    @wraps(announce)
    def extended(self: Any, reason: str, terminated: bool, signum: Any, expired: bool) -> Any:
        is_announced = False
        try:
            result = announce(self, reason, terminated, signum, expired)
            is_announced = True
            return result
        finally:
            # If the result backend does not take it, one that has not run comes back.
            if is_announced or terminated:
                _end(self, TERMINATED if terminated else EXPIRED if expired else REVOKED)

    return extended


def _end(request: Any, outcome: str, error: str = "-", ran: object = None) -> None:
    """Note that the task of a *request* has ended. Only the first time counts: of a hard time limit, two
    methods are told.

    Arguments:
        ran: for how many seconds it ran, if its process says so.
    """
    if not _is_wanted:
        return
    message = request.message
    stored = getattr(message, "stored_as", None)
    if not isinstance(stored, StoredAs) or not isinstance(message.channel, Channel):
        return
    if hasattr(request, "has_ended"):
        return
    request.has_ended = True
    try:
        task = _ended(request, stored, outcome, error, ran if isinstance(ran, float) else None)
        metrics.task_ended(task.task, outcome, error, task.waited, task.ran)
        finishing = open_channel(message).consumer.finishing
        if finishing is not None:
            finishing.add(stored.queue, task)
    except Exception:
        # The result of the task does not depend on it.
        logger.exception("Could not note the end of a task%s", which([name_of(message)], 1))


def _ended(request: Any, stored: StoredAs, outcome: str, error: str, ran: float | None) -> FinishedTask:
    finished_ms = stored.taken_ms + (monotonic() - stored.taken_at) * 1000
    if ran is None and request.time_start:
        ran = max(0.0, time() - request.time_start)
    ready_ms, waited = stored.members.due_ms, None
    if ready_ms is not None:
        waited = max(0.0, (finished_ms - ready_ms) / 1000 - (ran or 0.0))
    return FinishedTask(
        round(finished_ms),
        waited,
        ran,
        tries_of(request),
        outcome,
        error,
        _name(request.type),
        _name(str(request.hostname)),
        stored_id(str(request.id)),
    )
