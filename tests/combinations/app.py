"""The Celery app of the workers and of the producers."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

from celery import Celery
from celery.exceptions import Reject
from dateutil.parser import isoparse

from tests.chaos.environment import Environment
from tests.chaos.ledger import END, START, Entry, Ledger
from tests.combinations import stacks
from tests.combinations.attempts import UNPUBLISHED, attempt
from tests.combinations.plan import RETRY_AFTER

stacks.tell_when_asked()
environment = Environment.of_this_process()
ledger = Ledger(environment.ledger)
app = Celery("combinations", broker=environment.broker)
app.conf.update(environment.settings)

_REQUESTS = "tests.combinations.requests"


def _note(event: str, request: Any) -> None:
    due = isoparse(request.eta).timestamp() if request.eta else None
    redelivered = bool((request.delivery_info or {}).get("redelivered"))
    task = attempt(request.id, request.retries)
    ledger.write(Entry(event, task, time.time(), due, environment.worker, os.getpid(), redelivered))


@app.task(name="healthy", bind=True, Request=f"{_REQUESTS}:NotingRequest")
def healthy(self: Any, seconds: float, again: bool) -> str:
    """Works, and tries once more if it is told to."""
    _note(START, self.request)
    time.sleep(seconds)
    if again and not self.request.retries:
        try:
            retry = self.retry(countdown=RETRY_AFTER, throw=False)
        except Reject:
            _note(UNPUBLISHED, self.request)
            raise
        _note(END, self.request)
        raise retry
    _note(END, self.request)
    return "done"


@app.task(name="unwanted", bind=True)
def unwanted(self: Any) -> None:
    """Expired or revoked."""
    _note(START, self.request)


@app.task(name="rejects", acks_late=True)
def rejects() -> None:
    """Never gets on."""
    raise Reject("not now", requeue=True)


@app.task(name="kills", acks_late=True, reject_on_worker_lost=True)
def kills() -> None:
    """What the kernel does to a task that eats the memory."""
    os.kill(os.getpid(), signal.SIGKILL)


@app.task(name="fails")
def fails() -> None:
    """Fails for good."""
    raise KeyError("as it was told to")


@app.task(name="raises", acks_late=True, Request=f"{_REQUESTS}:RaisingRequest")
def raises() -> None:
    """Never begins: what Celery makes of its message raises."""
