"""The Celery app of the worker whose prefetch count is watched."""

from __future__ import annotations

import os
import time

from celery import Celery, Task

# The broker is in the environment, where Celery finds it.
app = Celery("soak")
app.conf.update(
    task_ignore_result=True,
    task_acks_late=True,
    worker_prefetch_multiplier=4,
    worker_enable_prefetch_count_reduction=os.environ.get("REDUCTION") == "1",
    broker_connection_retry_on_startup=True,
)


@app.task(name="slow")
def slow() -> None:
    """Take some time."""
    time.sleep(0.05)


@app.task(name="flaky", bind=True, max_retries=2)
def flaky(self: Task) -> None:
    """Try again twice."""
    if self.request.retries < 2:
        raise self.retry(countdown=1)


@app.task(name="limited", rate_limit="20/s")
def limited() -> None:
    """Wait in the worker for its rate."""
