"""An app whose worker says how many places of its pool were idle while it waited for more room."""

from __future__ import annotations

from typing import Any

from celery import signals
from celery.worker import state

from kombu_redisdelay.transport.intake import Intake
from tests.end_to_end.app import app

__all__ = ["app"]

#: For each look at which the worker went on waiting, the places that had nothing to do.
_idle: list[int] = []

_is_patient = Intake.is_patient


def _counted(self: Intake, fetcher: Any) -> bool:
    is_patient = _is_patient(self, fetcher)
    if is_patient:
        _idle.append(max(0, self.pool.num_processes - len(state.reserved_requests)))
    return is_patient


Intake.is_patient = _counted  # type: ignore[method-assign]


@signals.worker_shutdown.connect
def _say(**kwargs: Any) -> None:
    print(f"waited {len(_idle) > 0}, idle places {max(_idle, default=0)}")
