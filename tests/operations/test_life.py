"""The life of a message, by what is kept of it."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest
from celery import Celery

from kombu_redisdelay import Messages, Selection
from kombu_redisdelay.broker.message import to_ms
from kombu_redisdelay.operations.life import Event, life
from tests.operations.kit import hold, in_each_state, put, send
from tests.transport.kit import Site

ORIGIN = {"origin": "gen1@web-1"}


def one(messages: Messages, state: str) -> list[Event]:
    [message] = messages.select(Selection(state=state))
    return life(message)


def test_in_each_state(site: Site, app: Celery, messages: Messages) -> None:
    in_each_state(site, app)
    moments = {message.state: message.moment for message in messages.select()}
    for state, ends in {
        "scheduled": ["scheduled until"],
        "ready": ["ready"],
        "unacked": ["ready", "taken"],
        "failed": ["ready", "started", "failed"],
        "dead": ["came back from a worker", "ready", "given up"],
    }.items():
        first, *others = one(messages, state)
        assert (first.event, [each.event for each in others]) == ("published", ends)
        assert first.said.startswith("by gen")
        # A message does not say it.
        assert first.at is None
        assert others[-1].at == moments[state]
    *_, started, failed = one(messages, "failed")
    assert (started.said, failed.said) == ("at celery@w", "with KeyError, try 2")
    assert started.at is not None
    assert one(messages, "dead")[1].said == "once"


def test_one_that_is_tried_again(site: Site, app: Celery, messages: Messages) -> None:
    """It was said to have been published in the future: when it is due again."""
    put(site, app, "ready", "a", headers=ORIGIN)
    for _ in range(2):
        [message] = hold(site, "a", retry_wait=60)
        message.requeue()
    published, came_back, until = one(messages, "scheduled")
    assert published == Event("published", None, "by gen1@web-1")
    assert came_back == Event("came back from a worker", None, "2 times")
    assert (until.event, until.at) == ("scheduled until", next(iter(messages.select())).due)
    messages.reschedule(ids=["a"], countdown=0)
    assert [each.event for each in one(messages, "ready")] == [
        "published",
        "came back from a worker",
        "ready",
    ]


@pytest.mark.parametrize("options", [{"countdown": 600}, {"headers": {"x-delay": 600_000, **ORIGIN}}])
def test_one_that_was_delivered_at_once(
    site: Site, app: Celery, messages: Messages, options: dict[str, Any]
) -> None:
    """It was said to have been published then."""
    send(app, "a", **options)
    messages.deliver_now(ids=["a"])
    published, ready = one(messages, "ready")
    assert (published.at, ready.event) == (None, "ready")
    assert ready.said == "since it was published, became due, or was requeued last"


def test_one_that_was_delayed_and_retried(site: Site, app: Celery, messages: Messages) -> None:
    put(site, app, "ready", "a", retries=3, headers=ORIGIN)
    published, retried, ready = one(messages, "ready")
    assert (published.said, retried) == ("by gen1@web-1", Event("retried", None, "3 times"))
    [message] = messages.select()
    eta = "2026-11-22T10:00:00+00:00"
    delayed = replace(message, headers={**message.headers, "eta": eta})
    asked_for = Event(
        "asked for", datetime.fromisoformat(eta), "the time at which its publisher wants it to run"
    )
    assert life(delayed) == [published, retried, asked_for, ready]
    assert life(replace(message, headers={**message.headers, "eta": "?"})) == [published, retried, ready]


def test_one_that_was_requeued(site: Site, app: Celery, messages: Messages) -> None:
    put(site, app, "failed", "a", headers=ORIGIN)
    before = messages.store.now_ms()
    messages.requeue(ids=["a"])
    published, requeued, ready = one(messages, "ready")
    assert (published.event, published.at, requeued.event) == ("published", None, "requeued")
    assert (requeued.said, ready.event) == ("after it had failed", "ready")
    assert requeued.at is not None
    assert abs(to_ms(requeued.at) - before) < 3_600_000
    [message] = messages.select()
    # Celery carries it on when it retries the task.
    retried = replace(message, headers={**message.headers, "eta": "2026-11-22T10:00:00+00:00", "retries": 1})
    assert [each.event for each in life(retried)] == [
        "published",
        "requeued",
        "retried",
        "asked for",
        "ready",
    ]
    for foreign in ("?", 5, None, "9999-12-31T23:59:59-23:00"):
        odd = replace(message, headers={**message.headers, "x-requeued": foreign})
        assert (life(odd)[0].event, life(odd)[-1].event) == ("published", "ready")


def test_what_says_nothing(site: Site, messages: Messages) -> None:
    site.redis.lpush("celery", b"\xff garbage", b'{"redisdelay-due": 999999999999999, "headers": 1}')
    messages.store.remember("celery")
    lives = [[event.event for event in life(message)] for message in messages.select()]
    assert lives == [["published"], ["published", "ready"]]
