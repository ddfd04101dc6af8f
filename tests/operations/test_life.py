"""The life of a message, by what is kept of it."""

from __future__ import annotations

from dataclasses import replace

from celery import Celery

from kombu_redisdelay import Messages, Selection
from kombu_redisdelay.broker.times import to_ms
from kombu_redisdelay.operations.life import Event, life
from tests.operations.kit import in_each_state, put
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
        "ready": [],
        "unacked": ["taken"],
        "failed": ["started", "failed"],
        "dead": ["came back from a worker", "given up"],
    }.items():
        first, *others = one(messages, state)
        assert (first.event, [each.event for each in others]) == ("published", ends)
        assert first.said.startswith("by gen")
        assert (first.at is None) == (state == "scheduled")
        assert [first, *others][-1].at == moments[state]
    started, failed = one(messages, "failed")[1:]
    assert (started.said, failed.said) == ("at celery@w", "with KeyError, try 2")
    assert started.at is not None
    assert one(messages, "dead")[1].said == "once"


def test_one_that_was_delayed_and_retried(site: Site, app: Celery, messages: Messages) -> None:
    put(site, app, "ready", "a", retries=3, headers=ORIGIN)
    published, retried = one(messages, "ready")
    assert (published.said, retried) == ("by gen1@web-1", Event("retried", None, "3 times"))
    [message] = messages.select()
    for eta, at in (("2026-11-22T10:00:00+00:00", "2026-11-22T10:00:00+00:00"), ("?", published.at)):
        delayed = replace(message, headers={**message.headers, "eta": eta})
        first, until, _ = life(delayed)
        assert (first.at, until.event) == (None, "scheduled until")
        assert until.at == at or (until.at and until.at.isoformat() == at)


def test_one_that_was_requeued(site: Site, app: Celery, messages: Messages) -> None:
    put(site, app, "failed", "a", headers=ORIGIN)
    before = messages.store.now_ms()
    messages.requeue(ids=["a"])
    published, requeued = one(messages, "ready")
    assert (published.event, published.at, requeued.event) == ("published", None, "requeued")
    assert requeued.said == "after it had failed"
    assert requeued.at is not None
    assert abs(to_ms(requeued.at) - before) < 3_600_000
    [message] = messages.select()
    # Celery carries it on when it retries the task.
    retried = replace(message, headers={**message.headers, "eta": "2026-11-22T10:00:00+00:00", "retries": 1})
    assert [each.event for each in life(retried)] == ["published", "requeued", "scheduled until", "retried"]
    for foreign in ("?", 5, None, "9999-12-31T23:59:59-23:00"):
        odd = replace(message, headers={**message.headers, "x-requeued": foreign})
        assert life(odd)[0].event == "published"


def test_what_says_nothing(site: Site, messages: Messages) -> None:
    site.redis.lpush("celery", b"\xff garbage", b'{"redisdelay-due": 999999999999999, "headers": 1}')
    messages.store.remember("celery")
    lives = [[event.event for event in life(message)] for message in messages.select()]
    assert lives == [[], ["published"]]
