"""The Celery app that the workers run."""

from __future__ import annotations

import importlib
import os
import time
from typing import Any

from celery import Celery
from dateutil.parser import isoparse

from tests.chaos.environment import Environment
from tests.chaos.ledger import END, START, Entry, Ledger

environment = Environment.of_this_process()
ledger = Ledger(environment.ledger)
if environment.imports:
    importlib.import_module(environment.imports)
app = Celery("chaos", broker=environment.broker)
app.conf.update(environment.settings)

_REQUEST = "tests.chaos.requests:NotingRequest"


def _work(request: Any, seconds: float) -> None:
    due = isoparse(request.eta).timestamp() if request.eta else None
    redelivered = bool(request.delivery_info["redelivered"])

    def note(event: str) -> None:
        worker = environment.worker
        ledger.write(Entry(event, request.id, time.time(), due, worker, os.getpid(), redelivered))

    note(START)
    time.sleep(seconds)
    note(END)


@app.task(name="early", bind=True, Request=_REQUEST)
def early(self: Any, seconds: float) -> None:
    """Acked when it starts, which is Celery's default."""
    _work(self.request, seconds)


@app.task(name="late", bind=True, acks_late=True, Request=_REQUEST)
def late(self: Any, seconds: float) -> None:
    """Acked when it has ended."""
    _work(self.request, seconds)
