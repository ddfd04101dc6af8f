"""A Celery worker that is told to stop."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from kombu.entity import Queue
from kombu.messaging import Consumer

from kombu_redisdelay.transport.worker import Stop
from tests.transport.kit import Site


def test_a_second_signal_comes_while_it_cancels(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Celery cancels in the handler of that signal, too."""
    channel = site.channel()
    tasks = Consumer(channel, [Queue("a"), Queue("b")])
    tasks.consume()
    cancel, cancelled = channel.basic_cancel, []

    def signalled(tag: str) -> Any:
        monkeypatch.setattr(channel, "basic_cancel", lambda tag: cancelled.append(tag))
        tasks.cancel()
        return cancel(tag)

    monkeypatch.setattr(channel, "basic_cancel", signalled)
    worker = SimpleNamespace(
        blueprint=SimpleNamespace(on_close=lambda: None),
        hostname="worker",
        connection=None,
        task_consumer=tasks,
        connection_errors=(),
        channel_errors=(),
    )
    _stop = Stop(worker, SimpleNamespace(is_shut=True))  # type: ignore[arg-type]
    worker.blueprint.on_close()
    assert len(cancelled) == 2
