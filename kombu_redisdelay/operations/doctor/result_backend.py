"""Says where the app keeps results, whether Celery can read them now, and whether it goes on trying to."""

from __future__ import annotations

from collections.abc import Iterator
from threading import Thread
from typing import Any
from uuid import uuid4

from kombu_redisdelay.operations.doctor.finding import Finding, ok, warning, wrong
from kombu_redisdelay.words import in_a_line

#: Between two tries, Celery waits 5 seconds on average, and less at first: so many take five minutes.
MAX_RETRIES = 70

#: Seconds in which a backend has to answer.
PATIENCE = 5.0


def check_result_backend(app: Any) -> Iterator[Finding]:
    """A result that does not exist is asked for.

    Arguments:
        app: the Celery app.
    """
    check = "result backend"
    try:
        where = app.backend.as_uri()
    except Exception as exc:
        yield wrong(check, f"Celery cannot use it: {exc}", "Correct the setting result_backend.")
        return
    is_disabled = where.partition("://")[0] == "disabled"
    why = "" if is_disabled else _silence(app.backend)
    if why:
        yield wrong(check, f"{where}: {why}", "Results are lost, or wait in the workers, until it answers.")
    else:
        yield ok(check, "none, results are not kept" if is_disabled else where)
    if not (is_disabled or app.conf.task_ignore_result or app.conf.result_backend_always_retry):
        yield from _check_retries(check, app.backend)


def _silence(backend: Any) -> str:
    """Why the backend does not say what is kept of a task; empty if it does, or there is nothing to ask, as
    with ``rpc://``."""
    ask = getattr(backend, "_get_task_meta_for", None)
    if ask is None:
        return ""
    why = [f"it does not answer within {PATIENCE:g} s"]

    def try_to_ask() -> None:
        try:
            ask(str(uuid4()))
            why[:] = [""]
        except Exception as exc:
            why[:] = [in_a_line(exc)]

    # Nobody waits for it any longer, whatever its own limits are.
    thread = Thread(target=try_to_ask, name="redisdelay-result-backend", daemon=True)
    thread.start()
    thread.join(PATIENCE)
    return why[0]


def _check_retries(check: str, backend: Any) -> Iterator[Finding]:
    from celery.backends.base import Backend

    # Others know no error after which they may try again.
    if type(backend).exception_safe_to_retry is not Backend.exception_safe_to_retry:
        yield warning(
            check,
            "a result is lost if it cannot be stored at once, though its task has returned",
            "Set result_backend_always_retry = True, so that Celery goes on trying, and "
            f"result_backend_max_retries = {MAX_RETRIES}, so that it does for about five minutes. So long, a "
            "place of the pool waits, and a warm shutdown, too.",
        )
