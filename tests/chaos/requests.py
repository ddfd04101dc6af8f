"""Celery's side of a delivery and of an ack, noted in the ledger."""

from __future__ import annotations

import os
import time
from typing import Any

from celery.worker.request import Request

from tests.chaos.environment import Environment
from tests.chaos.ledger import ACK, TAKE, Entry, Ledger

_environment = Environment.of_this_process()
_ledger = Ledger(_environment.ledger)


class NotingRequest(Request):  # type: ignore[misc]  # celery has no types
    """A request that notes when Celery gets it, and when Celery acks it: from then on its loss is not the
    broker's."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._note(TAKE)

    def acknowledge(self) -> None:
        if not self.acknowledged:
            # Before, not after: when a worker is killed between the two, the ack may have been sent.
            self._note(ACK)
        super().acknowledge()

    @property
    def noted(self) -> str:
        """What the ledger calls it."""
        return str(self.id)

    def _note(self, event: str) -> None:
        redelivered = bool(self.delivery_info.get("redelivered"))
        worker = _environment.worker
        _ledger.write(Entry(event, self.noted, time.time(), None, worker, os.getpid(), redelivered))
