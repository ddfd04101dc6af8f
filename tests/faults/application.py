"""A program that consumes through plain kombu, as kombu's guide writes one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Thread
from typing import Any

from kombu.connection import Connection
from kombu.entity import Queue
from kombu.mixins import ConsumerMixin
from kombu.utils.limits import TokenBucket

from tests.transport.kit import PATIENCE
from tools.harness.process import wait_until


def _ack(message: Any) -> None:
    message.ack()


class Application(ConsumerMixin):
    """Acks every message in its callback, and connects again when the connection is lost.

    Attributes:
        received: what was in the messages, as often as they came.
    """

    # kombu's default has it start once a second at most.
    restart_limit = TokenBucket(100)

    def __init__(self, connection: Connection, handle: Callable[[Any], object]) -> None:
        self.connection = connection
        self.received: list[str] = []
        self._handle = handle

    def get_consumers(self, Consumer: Any, channel: Any) -> list[Any]:
        return [Consumer(Queue("q"), on_message=self._on_message)]

    def _on_message(self, message: Any) -> None:
        self.received.append(message.payload)
        self._handle(message)

    def wait_received(self, *bodies: str, timeout: float = PATIENCE) -> None:
        wait_until(lambda: set(bodies) <= set(self.received), timeout, f"{bodies}, there are {self.received}")


@contextmanager
def running(url: str, handle: Callable[[Any], object] = _ack, **options: Any) -> Iterator[Application]:
    """The application, in a thread."""
    application = Application(Connection(url, transport_options=options), handle)
    thread = Thread(target=application.run, kwargs={"safety_interval": 0.1}, daemon=True)
    thread.start()
    try:
        yield application
    finally:
        application.should_stop = True
        thread.join(PATIENCE)
        assert not thread.is_alive()
