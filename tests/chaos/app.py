"""The Celery app that the workers run."""

from __future__ import annotations

import importlib
import os
import time
from typing import Any

from celery import Celery
from dateutil.parser import isoparse

from tests.chaos.environment import Environment
from tests.chaos.keys import MODES, KeyLedger, Step, task_options
from tests.chaos.ledger import END, START, Entry, Ledger

environment = Environment.of_this_process()
ledger = Ledger(environment.ledger)
key_ledger = KeyLedger(environment.ledger)
if environment.imports:
    importlib.import_module(environment.imports)
app = Celery("chaos", broker=environment.broker)
app.conf.update(environment.settings)

_REQUEST = "tests.chaos.requests:NotingRequest"


def _work(request: Any, seconds: float, fails: bool) -> None:
    due = isoparse(request.eta).timestamp() if request.eta else None
    redelivered = bool(request.delivery_info["redelivered"])

    def note(event: str) -> None:
        worker = environment.worker
        ledger.write(Entry(event, request.id, time.time(), due, worker, os.getpid(), redelivered))

    note(START)
    time.sleep(seconds)
    note(END)
    if fails:
        raise KeyError("as planned")


def _keyed(task: Any, key: str, version: int, seconds: float, fails: bool) -> None:
    """A task of which one is enough for its key. The first time, it may publish itself again."""

    def note(event: str) -> None:
        worker = environment.worker
        key_ledger.write(Step(event, task.request.id, key, version, time.time(), worker, os.getpid()))

    note(START)
    time.sleep(seconds)
    note(END)
    if fails and not task.request.retries:
        raise task.retry(countdown=seconds)


for _mode in MODES:
    app.task(bind=True, **task_options(_mode))(_keyed)


@app.task(name="early", bind=True, Request=_REQUEST)
def early(self: Any, seconds: float, fails: bool = False) -> None:
    """Acked when it starts, which is Celery's default."""
    _work(self.request, seconds, fails)


@app.task(name="late", bind=True, acks_late=True, Request=_REQUEST)
def late(self: Any, seconds: float, fails: bool = False) -> None:
    """Acked when it has ended."""
    _work(self.request, seconds, fails)
