"""Operations on many messages tell how far they are, and can be ended between two steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from celery import Celery

from kombu_redisdelay import DeadLetters, DelayedMessages, Queues, batch
from tests.transport.kit import Site, in_seconds

MESSAGES = 450

Operation = Callable[[Any, Callable[[int], None]], int]


class Enough(Exception):
    pass


def publish(site: Site, app: Celery, kind: Any, state: str) -> Any:
    """Put messages into a state. Returns what operates on them."""
    with batch(app):
        for number in range(MESSAGES):
            app.send_task("work", [number], countdown=600 if state == "scheduled" else None)
    if state == "dead":
        keys = site.keys("celery")
        while payload := site.redis.rpop(keys.ready):
            site.redis.lpush(keys.dead, b"1000 1 0 failed\n" + payload)
    return kind(app)


@pytest.fixture(
    params=[
        (DelayedMessages, "scheduled", lambda it, tell: it.reschedule_all(countdown=7200, progress=tell)),
        (DelayedMessages, "scheduled", lambda it, tell: it.deliver_now_all(progress=tell)),
        (DelayedMessages, "scheduled", lambda it, tell: it.purge(task="wor*", progress=tell)),
        (Queues, "scheduled", lambda it, tell: it.cancel_all(state="scheduled", progress=tell)),
        (Queues, "ready", lambda it, tell: it.cancel_all(state="ready", progress=tell)),
        (DeadLetters, "dead", lambda it, tell: it.requeue_all(progress=tell)),
        (DeadLetters, "dead", lambda it, tell: it.purge(task="work", progress=tell)),
    ],
    ids=["reschedule", "deliver", "purge", "cancel-scheduled", "cancel-ready", "requeue", "purge-dead"],
)
def case(request: pytest.FixtureRequest, site: Site, app: Celery) -> Iterator[tuple[Any, str, Operation]]:
    kind, state, operation = request.param
    with publish(site, app, kind, state) as access:
        yield access, state, operation


def test_it_tells_how_many_are_done(case: tuple[Any, str, Operation]) -> None:
    access, _, operation = case
    told: list[int] = []
    assert operation(access, told.append) == MESSAGES
    assert told == sorted(told)
    assert told[-1] == MESSAGES
    # More often than at the end.
    assert any(0 < count < MESSAGES for count in told)


def test_it_ends_between_two_steps(case: tuple[Any, str, Operation], app: Celery) -> None:
    access, state, operation = case
    last = 0

    def tell(count: int) -> None:
        nonlocal last
        last = count
        if count >= 150:
            raise Enough

    with pytest.raises(Enough):
        operation(access, tell)
    assert 150 <= last < MESSAGES
    # What was told is exactly what was done.
    with Queues(app) as queues, DelayedMessages(app) as delayed:
        soon = in_seconds(3600)
        left = delayed.count(due_before=soon) if state == "scheduled" else queues.count(state=state)
        assert MESSAGES - left == last


def test_a_task_that_is_searched_for_can_be_ended_before_it_is_found(site: Site, app: Celery) -> None:
    def tell(count: int) -> None:
        assert count == 0
        raise Enough

    with publish(site, app, DelayedMessages, "scheduled") as delayed:
        with pytest.raises(Enough):
            delayed.purge(task="other", progress=tell)
        assert delayed.count() == MESSAGES


@pytest.mark.parametrize("mark_revoked", [False, True])
def test_only_what_is_related(app: Celery, mark_revoked: bool) -> None:
    app.send_task("work", task_id="a", group_id="g")
    app.send_task("work", task_id="b", root_id="g")
    app.send_task("work", task_id="c", root_id="x")
    with Queues(app) as queues:
        assert {each.id for each in queues.iter()} == {"a", "b", "c"}
        assert queues.cancel_all(state="ready", related="g", mark_revoked=mark_revoked) == 2
        assert [each.id for each in queues.iter()] == ["c"]
        assert queues.cancel_all(related="c", mark_revoked=mark_revoked) == 1
    revoked = {id for id in "abc" if app.AsyncResult(id).state == "REVOKED"}
    assert revoked == (set("abc") if mark_revoked else set())
