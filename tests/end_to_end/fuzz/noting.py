"""Imported by the workers of the fuzz, and by nobody else: notes what Celery does with each message.

Celery's log does not show what a message was in all cases. What it tells the broker shows it in all of them.
"""

from __future__ import annotations

import os
import time
from functools import cache
from typing import Any

import billiard.pool
from kombu.transport import virtual

from kombu_redisdelay.transport.channel import Channel
from tests.end_to_end.environment import Environment
from tests.end_to_end.fuzz.events import ACKED, REJECTED
from tests.end_to_end.ledger import Entry, Ledger


@cache
def _ledger() -> Ledger:
    return Ledger(Environment.of_this_process().ledger)


class NotingMessage(virtual.Message):
    """A message that notes when Celery is done with it."""

    def ack(self, *args: Any, **kwargs: Any) -> None:
        super().ack(*args, **kwargs)
        self.note(ACKED)

    def reject(self, requeue: bool = False) -> None:
        super().reject(requeue=requeue)
        if not requeue:
            self.note(REJECTED)

    def note(self, event: str) -> None:
        """Write that it happened to this message."""
        # Not so for what tasks publish.
        label = self._raw.get("case")
        if label is not None:
            _ledger().write(Entry(event, label, time.time(), os.getpid(), None, False, None))


Channel.Message = NotingMessage

# A prefork worker that goes down reads no more results, and its children wait for 30 seconds until it has
# read them, with `redis://` too. Here, a second is enough.
billiard.pool.GUARANTEE_MESSAGE_CONSUMPTION_RETRY_LIMIT = 10
