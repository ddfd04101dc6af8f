"""The recipe of examples/requeue_celery.py, with something that fails at first."""

from __future__ import annotations

import os
import time

from celery import current_task

import examples.requeue_celery as recipe
from tests.end_to_end.environment import Environment
from tests.end_to_end.ledger import Entry, Ledger

environment = Environment.of_this_process()
ledger = Ledger(environment.ledger)
app = recipe.app
app.conf.update(broker_url=environment.broker, **environment.settings)

#: Seconds.
recipe.DELAYS = (0.5, 1.0)  # type: ignore[assignment]


def take_money(order: int) -> None:
    """Fails as often as the number of the *order* says."""
    request = current_task.request
    failures = request.get("x-delivery-count") or 0
    event = "started" if failures < order else "ended"
    ledger.write(Entry(event, str(order), time.time(), os.getpid(), request.eta, failures > 0, failures))
    if failures < order:
        raise ConnectionError("the bank is closed")


recipe.take_money = take_money
