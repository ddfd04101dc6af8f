"""Celery's side of an ack, noted in the ledger."""

from __future__ import annotations

import os
import time

from celery.worker.request import Request

from tests.chaos.environment import Environment
from tests.chaos.ledger import ACK, Entry, Ledger

_environment = Environment.of_this_process()
_ledger = Ledger(_environment.ledger)


class NotingRequest(Request):  # type: ignore[misc]  # celery has no types
    """A request that notes when Celery acks it: from then on its loss is not the broker's."""

    def acknowledge(self) -> None:
        if not self.acknowledged:
            redelivered = bool(self.delivery_info.get("redelivered"))
            worker = _environment.worker
            # Before, not after: when a worker is killed between the two, the ack may have been sent.
            _ledger.write(Entry(ACK, self.id, time.time(), None, worker, os.getpid(), redelivered))
        super().acknowledge()
