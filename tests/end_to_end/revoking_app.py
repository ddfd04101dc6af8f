"""The app of the workers that are told to revoke tasks: it notes what Celery says was revoked."""

from __future__ import annotations

import os
import time
from typing import Any

from celery.signals import task_revoked

from tests.end_to_end.app import app, ledger
from tests.end_to_end.ledger import Entry

__all__ = ("app",)


@task_revoked.connect
def note_revoked(request: Any, **kwargs: Any) -> None:
    ledger.write(Entry("revoked", request.id, time.time(), os.getpid(), request.eta, False, None))
