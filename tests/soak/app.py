"""The Celery app of the worker whose memory is measured."""

from __future__ import annotations

import logging

from celery import Celery

# The broker is in the environment, where Celery finds it.
app = Celery("soak")
app.conf.task_ignore_result = True

# Two lines for each of a million tasks would be a large file, and half of the work.
for name in ("celery.worker.strategy", "celery.app.trace"):
    logging.getLogger(name).setLevel(logging.WARNING)


@app.task(name="nothing")
def nothing(label: str) -> None:
    """Do nothing."""
