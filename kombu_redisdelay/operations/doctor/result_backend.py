"""Says where the app keeps results, and whether Celery can use that."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from kombu_redisdelay.operations.doctor.finding import Finding, ok, wrong


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
