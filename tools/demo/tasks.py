"""The Celery app. All that it needs of this product is the scheme of its broker's URL."""

from __future__ import annotations

import os
import time
from typing import Any

from celery import Celery

from tools.demo.ledger import Ledger, Run

# The URL is in CELERY_BROKER_URL, which Celery reads by itself.
app = Celery("demo")
app.conf.update(
    task_ignore_result=True,
    # Acked when they have ended, not when they start: that is how one says that a task which was
    # running in a killed worker shall run again.
    task_acks_late=True,
)


@app.task(bind=True)
def remind(self: Any, due: float, seconds: float) -> None:
    """Note the start in the ledger, then be busy for some *seconds*."""
    started = time.time()
    # The parent of a process of the pool is the worker.
    Ledger.from_environment().add(Run(self.request.id, due, started, worker=os.getppid()))
    time.sleep(seconds)
