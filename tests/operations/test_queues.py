"""`Queues`: pauses and limits, and what there is to know of a queue."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from celery import Celery

from kombu_redisdelay import Messages, QueueLimits, Queues
from tests.operations.kit import send
from tests.transport.kit import in_seconds


@pytest.fixture
def queues(app: Celery) -> Iterator[Queues]:
    with Queues(app) as queues:
        yield queues


def test_a_pause_of_several_queues(queues: Queues) -> None:
    queues.pause(["a", "b"])
    assert [queues.limits(name).is_paused for name in "ab"] == [True, True]
    queues.resume(name for name in "ab")
    assert [queues.limits(name).is_paused for name in "ab"] == [False, False]
    queues.pause("ab")
    assert [queues.limits(name).is_paused for name in ("a", "ab")] == [False, True]


def test_pauses_and_limits(queues: Queues) -> None:
    assert queues.limits("q") == QueueLimits()
    queues.pause("q")
    queues.limit("q", rate="100/m", burst=10, concurrency=20)
    found = queues.limits("q")
    assert found.is_paused
    assert (found.rate, found.burst, found.concurrency) == ("100/m", 10, 20)
    queues.resume("q")
    queues.limit("q", rate=None, concurrency=None)
    assert queues.limits("q") == QueueLimits()


def test_stats_and_timeline(app: Celery, queues: Queues) -> None:
    send(app, "a", "b")
    send(app, "c", countdown=90)
    stats = queues.stats("celery")
    assert (stats.ready, stats.scheduled, stats.unacked, stats.dead) == (2, 1, 0, 0)
    assert stats.next_due is not None
    assert in_seconds(80) < stats.next_due <= in_seconds(90)
    assert sum(part.messages for part in queues.timeline("celery")) == 1
    assert queues.stats("unknown").ready == 0


def test_a_connection_is_shared(app: Celery) -> None:
    with Messages(app) as messages:
        with Queues(messages) as queues:
            assert queues.app is app
            send(app, "a")
            assert queues.stats("celery").ready == 1
        # It was not the owner.
        assert messages.count() == 1
    with pytest.raises(ValueError, match="this Messages is closed"):
        queues.stats("celery")
