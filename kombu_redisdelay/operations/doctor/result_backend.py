"""Says where the app keeps results, whether Celery can use that, and whether it goes on trying to."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from kombu_redisdelay.operations.doctor.finding import Finding, ok, warning, wrong

#: Between two tries, Celery waits 5 seconds on average, and less at first: so many take five minutes.
MAX_RETRIES = 70


def check_result_backend(app: Any) -> Iterator[Finding]:
    """Nothing is sent to it.

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
    yield ok(check, "none, results are not kept" if is_disabled else where)
    if not (is_disabled or app.conf.task_ignore_result or app.conf.result_backend_always_retry):
        yield from _check_retries(check, app.backend)


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
