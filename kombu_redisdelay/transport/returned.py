"""Tells tasks that have returned, or are tried again, from tasks that have failed: Celery calls all of them
failed when it cannot store a result, send what is linked to a task, or when a hook such as ``on_success``
raises.

Only the process that runs the task can know. Celery's tracer sets its variable ``state`` to ``SUCCESS`` as
soon as the function has returned, and its frame is the first one of the traceback of whatever is raised after
that. Where in the tracer that was says what is lost. Nothing is called for a task that succeeds: two of the
functions that are extended here are those by which the tracer reports a failure, the third one reports a
retry.

``Task.retry()`` publishes before it raises ``Retry``. From then on the retry is the task: whatever is raised
while Celery reports it, its first message is done with. So that error ends in the report.
"""

from __future__ import annotations

import dis
import logging
import pickle
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from types import CodeType, TracebackType
from typing import Any

from kombu_redisdelay.broker.failure import CONTINUATION, HOOK, RESULT, RETURNED, text_of
from kombu_redisdelay.broker.message import which
from kombu_redisdelay.extending import extend
from kombu_redisdelay.words import cut, in_a_line

logger = logging.getLogger(__name__)

#: The attribute of what reports the end of a task: its id, and what was lost. The id, because an exception
#: may come to another task, too: one that calls this one, or waits for its result.
_MARK = "redisdelay_returned"

#: The method of a result backend that stores a result, and counts a part of a chord.
_STORES = "mark_as_done"

#: The one that stores that a task is tried again.
_STORES_RETRY = "mark_as_retry"


class EndLost(Exception):
    """In place of an exception that does not keep its attributes on its way to another process."""

    def __init__(self, name: str, text: str) -> None:
        super().__init__(name, text)
        self.exc_cls_name = name

    def __str__(self) -> str:
        return str(self.args[1])


def tell_what_has_not_failed() -> None:
    """Mark what reports the end of a task that has returned, and report each retry as one, in this process
    and those that it forks. Calling it again changes nothing."""
    trace: Any = sys.modules.get("celery.app.trace")
    if hasattr(trace, "setup_worker_optimizations"):
        extend(trace, "report_internal_error", _report_internal_error)
        extend(trace.TraceInfo, "handle_failure", _handle_failure)
        extend(trace.TraceInfo, "handle_retry", _handle_retry)


def lost_of(id: str, *reports: object) -> str:
    """What was lost of the task with this *id*, if it is known to have returned; else empty.

    Arguments:
        reports: by which Celery reports its end: an exception, or what is around one.
    """
    for report in reports:
        # Not getattr(): that may be code of the application.
        mark = getattr(report, "__dict__", {}).get(_MARK)
        if isinstance(mark, tuple) and mark in ((id, lost) for lost in RETURNED):
            return str(mark[1])
    return ""


def _mark() -> tuple[str, str] | None:
    """The mark for the report of the exception that the tracer handles now; ``None`` if its task has not
    returned."""
    from celery.exceptions import Ignore, Reject, Retry

    _, error, traceback = sys.exc_info()
    if traceback is None or not _is_tracer(traceback.tb_frame.f_code):
        return None
    if isinstance(error, (Ignore, Reject, Retry)):
        # By these, a hook asks for what happens.
        return None
    told = traceback.tb_frame.f_locals
    id = str(told.get("uuid"))
    # It may be the second error after the task has returned.
    before = lost_of(id, error, told.get("R"))
    if before:
        return id, before
    return (id, _lost(traceback, told.get("task_request"))) if told.get("state") == "SUCCESS" else None


def _is_tracer(code: CodeType) -> bool:
    return code.co_name == "trace_task" and _STORES in code.co_names


def _lost(traceback: TracebackType, request: Any) -> str:
    """What is lost by an error in the tracer: what comes after the place where it was raised."""
    if _STORES in _inside(traceback):
        # It counts a part of a chord at last.
        return CONTINUATION if getattr(request, "chord", None) else RESULT
    return CONTINUATION if traceback.tb_lasti < _where_it_stores(traceback.tb_frame.f_code) else HOOK


def _inside(traceback: TracebackType | None) -> Iterator[str]:
    """The names of the functions in which the tracer was, without those of another task that it runs."""
    inner = traceback and traceback.tb_next
    while inner is not None and not _is_tracer(inner.tb_frame.f_code):
        yield inner.tb_frame.f_code.co_name
        inner = inner.tb_next


@cache
def _where_it_stores(tracer: CodeType) -> int:
    return next(each.offset for each in dis.get_instructions(tracer) if each.argval == _STORES)


def _report_internal_error(report: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """In place of Celery's."""
    mark = _mark()
    info = report(*args, **kwargs)
    if mark is not None:
        setattr(info, _MARK, mark)
    return info


def _handle_failure(handle: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """In place of Celery's ``TraceInfo.handle_failure``. If the result backend does not take the failure
    either, it raises an error, which leaves the tracer."""
    mark = _mark()
    if mark is None:
        return handle(*args, **kwargs)
    try:
        info = handle(*args, **kwargs)
    except Exception as exc:
        raise _marked(exc, mark) from None
    setattr(info, _MARK, mark)
    return info


def _marked(error: Exception, mark: tuple[str, str]) -> Exception:
    """The *error* with this *mark*, which it has in another process, too; or another one in its place."""
    with suppress(Exception):
        setattr(error, _MARK, mark)
        if getattr(pickle.loads(pickle.dumps(error)), _MARK, None) == mark:
            return error
    lost = EndLost(type(error).__name__, text_of(error)).with_traceback(error.__traceback__)
    setattr(lost, _MARK, mark)
    return lost


def _handle_retry(
    handle: Callable[..., Any], self: Any, task: Any, req: Any, store_errors: bool = True, **kwargs: Any
) -> Any:
    """``unstored_retry``: in place of Celery's ``TraceInfo.handle_retry``, which stores the state ``RETRY``,
    calls ``on_retry`` of the task, and returns what reports a retry. Of an error there, Celery makes a
    failure of the task: it stores that, calls ``link_error``, and fails its chord."""
    from billiard.einfo import ExceptionInfo
    from celery.exceptions import Ignore, Reject, Retry

    try:
        return handle(self, task, req, store_errors=store_errors, **kwargs)
    except (Ignore, Reject, Retry, MemoryError):
        # By these, a hook asks for what happens. With the last, Celery ends a worker.
        raise
    except Exception as exc:
        if not _is_published(self.retval, task.app):
            raise
        is_stored = not store_errors or _STORES_RETRY not in _inside(exc.__traceback__)
        _say(exc, is_stored, which([cut(f"{task.name}[{req.id}]")], 1))
    # Not while that error is handled: both report the exception that is.
    if is_stored:
        return ExceptionInfo()
    return _handle_retry(handle, self, task, req, store_errors=False, **kwargs)


def _is_published(reason: Any, app: Any) -> bool:
    """Whether *reason*, a ``Retry``, comes from a ``Task.retry()`` that has published, in a worker of a
    broker of ours. An application may raise one by itself, and ``Task.retry()`` of a task that is called as a
    function raises one, too: nothing is published there."""
    is_ours = hasattr(app.connection_for_read().get_transport_cls(), "is_workers")
    # A class of the application may leave out what makes a `Retry`.
    return is_ours and getattr(reason, "sig", None) is not None and not reason.is_eager


def _say(error: Exception, is_stored: bool, task: str) -> None:
    if is_stored:
        logger.error("A task is tried again, and what it does then has failed%s", task, exc_info=error)
    else:
        logger.warning(
            "A task is tried again, but its state RETRY was not stored (%s)%s", in_a_line(error), task
        )
