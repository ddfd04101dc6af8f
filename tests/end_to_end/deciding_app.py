"""An app that decides itself what becomes of a task that it does not know."""

from __future__ import annotations

from typing import Any

from celery.worker.consumer.consumer import Consumer

from tests.end_to_end.app import app


class Deciding(Consumer):  # type: ignore[misc]
    def on_unknown_task(self, body: Any, message: Any, exc: Exception) -> None:
        print("decided by the app")
        message.ack()


app.conf.worker_consumer = "tests.end_to_end.deciding_app:Deciding"
