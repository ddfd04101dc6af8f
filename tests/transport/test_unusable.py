"""The methods of Celery's consumer that decide what becomes of a message that it cannot run."""

from __future__ import annotations

import inspect
from types import SimpleNamespace
from typing import Any

import pytest
from celery.exceptions import InvalidTaskError
from celery.worker.consumer.consumer import Consumer
from kombu.exceptions import ContentDisallowed, DecodeError
from kombu.message import Message

from kombu_redisdelay.broker.options import Options
from kombu_redisdelay.transport import unusable
from kombu_redisdelay.transport.channel import Channel
from kombu_redisdelay.transport.worker import extend_worker
from tests.transport.kit import Site

WRAPPED = {
    "on_unknown_task": ["self", "body", "message", "exc"],
    "on_decode_error": ["self", "message", "exc"],
    "on_invalid_task": ["self", "body", "message", "exc"],
    "on_unknown_message": ["self", "body", "message"],
    "create_task_handler": ["self", "promise"],
}


@pytest.mark.parametrize("name", WRAPPED)
def test_celery_has_it(name: str) -> None:
    assert [*inspect.signature(inspect.unwrap(getattr(Consumer, name))).parameters] == WRAPPED[name]


class Recorder(Consumer):  # type: ignore[misc]
    """Notes what it is called with, as an app does that overrides the methods."""

    def __init__(self) -> None:
        self.strategies: dict[str, Any] = {}
        self.calls: list[tuple[str, str]] = []
        self.task_consumer = SimpleNamespace(channel=None)
        self.connection = SimpleNamespace(transport=None)
        self.on_task_message: set[Any] = set()
        self._maximum_prefetch_restored, self.restart_count = True, 0
        self.call_soon = self.call_soon_ack = lambda *args: None

    def on_unknown_task(self, body: Any, message: Any, exc: Any) -> None:
        self.calls.append(("unknown task", exc.args[0]))

    def on_decode_error(self, message: Any, exc: Any) -> None:
        self.calls.append(("decode error", type(exc).__name__))

    def on_invalid_task(self, body: Any, message: Any, exc: Any) -> None:
        self.calls.append(("invalid task", type(exc).__name__))

    def on_unknown_message(self, body: Any, message: Any) -> None:
        self.calls.append(("unknown message", ""))


def test_celery_calls_them_and_an_override_decides() -> None:
    extend_worker()
    consumer = Recorder()

    def raising(error: type[Exception]) -> Any:
        def strategy(*args: Any) -> None:
            raise error("no")

        return strategy

    errors = (InvalidTaskError, ContentDisallowed, DecodeError)
    consumer.strategies = {error.__name__: raising(error) for error in errors}
    handler = consumer.create_task_handler()
    json = {"content_type": "application/json", "content_encoding": "utf-8", "accept": ["application/json"]}
    handler(Message(b"{}", headers={"task": "nobody.has.this"}))
    handler(Message(b"{}", **json))
    handler(Message(b"{", **json))
    for error in errors:
        handler(Message(b"{}", headers={"task": error.__name__}))
    assert consumer.calls == [
        ("unknown task", "nobody.has.this"),
        ("unknown message", ""),
        ("decode error", "DecodeError"),
        ("invalid task", "InvalidTaskError"),
        ("invalid task", "ContentDisallowed"),
        ("decode error", "DecodeError"),
    ]


def test_what_it_knows_is_told_where_its_tasks_come_from(site: Site) -> None:
    extend_worker()
    for wait, known in ((3600, {"a": None}), (None, None)):
        channel = site.channel(unknown_task_wait=wait)
        consumer = Recorder()
        consumer.strategies, consumer.task_consumer.channel = {"a": None}, channel
        consumer.create_task_handler()
        assert isinstance(channel, Channel)
        assert channel.intake.consumed.known_tasks == known


def test_another_broker_is_left_alone() -> None:
    extend_worker()
    assert unusable._qos(SimpleNamespace(channel=object(), delivery_tag="1")) is None
    assert Options().unknown_task_wait == 3600
