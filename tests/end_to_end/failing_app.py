"""The app of workers whose own code fails outside of tasks: where a task is received, where it is handed to
the pool, and in a consumer beside that of tasks."""

from __future__ import annotations

from typing import Any

from celery.bootsteps import ConsumerStep
from celery.worker.request import Request
from kombu.entity import Queue
from kombu.messaging import Consumer

from tests.end_to_end.app import Unheard, app, ledger
from tests.end_to_end.ledger import Entry

__all__ = ("app",)

#: A queue beside that of tasks.
BESIDE = "beside"

KINDS: dict[str, type[BaseException]] = {
    kind.__name__: kind for kind in (ConnectionError, OSError, KeyError, ValueError, Unheard)
}


def fail(kind: str) -> None:
    """What the application's own code does."""
    raise KINDS[kind]("the application's own")


class Received(Request):  # type: ignore[misc]
    """A request that fails when the task is received."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        fail(self.args[0])


class Handed(Request):  # type: ignore[misc]
    """A request that fails when the task is handed to the pool."""

    @property
    def time_limits(self) -> None:
        fail(self.args[0])

    @time_limits.setter
    def time_limits(self, value: Any) -> None:
        """The base class sets it."""


@app.task(name="fails_received", Request=Received, acks_late=True)
def fails_received(kind: str) -> None:
    """Never runs."""


@app.task(name="fails_handed", Request=Handed, acks_late=True)
def fails_handed(kind: str) -> None:
    """Never runs."""


class Beside(ConsumerStep):  # type: ignore[misc]
    """What Celery's documentation calls a custom message consumer."""

    def get_consumers(self, channel: Any) -> list[Consumer]:
        return [Consumer(channel, [Queue(BESIDE)], callbacks=[self.handle], accept=["json"])]

    def handle(self, body: Any, message: Any) -> None:
        if body["what"] in KINDS:
            fail(body["what"])
        ledger.write(Entry("beside", body["what"], 0, 0, None, False, None))
        message.ack()


app.steps["consumer"].add(Beside)
