"""What Celery makes of a message: one that notes what becomes of it, and one that cannot be made."""

from __future__ import annotations

import os
import time
from typing import Any, NoReturn

from celery.worker.request import Request

from tests.chaos.environment import Environment
from tests.chaos.ledger import ACK, TAKE, Entry, Ledger
from tests.combinations.attempts import attempt
from tests.combinations.plan import CALLBACK_ERROR

_environment = Environment.of_this_process()
_ledger = Ledger(_environment.ledger)


class NotingRequest(Request):  # type: ignore[misc]  # celery has no types
    """Notes when Celery gets it, and when Celery acks it: from then on its loss is not the broker's."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._note(TAKE)

    def acknowledge(self) -> None:
        if not self.acknowledged:
            # Before, not after: when a worker is killed between the two, the ack may have been sent.
            self._note(ACK)
        super().acknowledge()

    def _note(self, event: str) -> None:
        task = attempt(self.id, self._request_dict.get("retries") or 0)
        redelivered = bool(self.delivery_info.get("redelivered"))
        _ledger.write(Entry(event, task, time.time(), None, _environment.worker, os.getpid(), redelivered))


class RaisingRequest(Request):  # type: ignore[misc]  # celery has no types
    """Raises in the worker's callback."""

    def __init__(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise RuntimeError(CALLBACK_ERROR)
