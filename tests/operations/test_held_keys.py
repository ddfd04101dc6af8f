"""What verbs leave as it is, because another message holds its unique key, and how they say so."""

from __future__ import annotations

from typing import Any

import pytest
from celery import Celery

from kombu_redisdelay import Messages, Selection
from kombu_redisdelay.operations.acting import MOST_HOLDERS
from tests.operations.kit import dead, give_up, ids, scheduled, send
from tests.transport.kit import Site

LATEST = {"x-unique": "account:42", "x-unique-while": "latest"}


def waiting(app: Celery, *keys: str, queue: str = "celery") -> None:
    """Publish two messages of each key: the second one is blocked by the first."""
    for key in keys:
        headers = {**LATEST, "x-unique": key}
        send(app, f"{key}-holder", f"{key}-next", headers=headers, queue=queue)


MOVES: dict[str, dict[str, Any]] = {
    "deliver_now": {},
    "reschedule": {"countdown": 3600},
}


class TestMoving:
    @pytest.mark.parametrize("verb", MOVES)
    @pytest.mark.parametrize("dry_run", [False, True])
    @pytest.mark.parametrize(
        ("selection", "by_id"),
        [
            (Selection(every=True), {}),
            (scheduled(task="shop.*"), {}),
            (Selection(ids=["later", "a-next"]), {"later": 1, "a-next": 0}),
        ],
        ids=["all", "a filter", "ids"],
    )
    def test_what_is_blocked_is_told(
        self,
        app: Celery,
        messages: Messages,
        verb: str,
        dry_run: bool,
        selection: Selection,
        by_id: dict[str, int],
    ) -> None:
        waiting(app, "a")
        send(app, "later", countdown=600)
        done = getattr(messages, verb)(selection, dry_run=dry_run, **MOVES[verb])
        assert (done.count, done.blocked, done.holders) == (1, 1, {"a-next": "a-holder"})
        assert done.by_id == by_id

    @pytest.mark.parametrize("asked", [{"by": 60}, {"over": 60}], ids=str)
    def test_each_way_to_move(self, app: Celery, messages: Messages, asked: dict[str, Any]) -> None:
        waiting(app, "a")
        send(app, "later", countdown=600)
        done = messages.reschedule(scheduled(), **asked)
        assert (done.count, done.blocked, done.holders) == (1, 1, {"a-next": "a-holder"})

    def test_a_span_has_none_that_are_blocked(self, app: Celery, messages: Messages) -> None:
        waiting(app, "a")
        send(app, "later", countdown=600)
        for dry_run in (True, False):
            done = messages.deliver_now(scheduled(after="1m"), dry_run=dry_run)
            assert (done.count, done.blocked) == (1, 0)

    @pytest.mark.parametrize("ids", [None, ["b", "free"]], ids=["all", "by id"])
    @pytest.mark.parametrize("by", [None, "-1h"], ids=["now", "earlier"])
    def test_one_that_is_blocked_by_being_delivered(
        self, site: Site, app: Celery, messages: Messages, ids: list[str] | None, by: str | None
    ) -> None:
        send(app, "a", headers=LATEST)
        send(app, "b", headers=LATEST, countdown=600)
        send(app, "free", headers={**LATEST, "x-unique": "free"}, countdown=600)
        which = scheduled() if ids is None else Selection(ids=ids)
        for dry_run in (True, False):
            if by is None:
                done = messages.deliver_now(which, dry_run=dry_run)
            else:
                done = messages.reschedule(which, by=by, dry_run=dry_run)
            assert (done.count, done.blocked, done.holders) == (1, 1, {"b": "a"})

    def test_only_some_holders_are_named(self, app: Celery, messages: Messages) -> None:
        waiting(app, *(f"key-{number:02}" for number in range(MOST_HOLDERS + 2)))
        done = messages.deliver_now(scheduled())
        assert (done.blocked, len(done.holders)) == (MOST_HOLDERS + 2, MOST_HOLDERS)

    def test_cancelling_leaves_none(self, app: Celery, messages: Messages) -> None:
        waiting(app, "a")
        assert messages.cancel(scheduled(), dry_run=True).count == 1
        done = messages.cancel(scheduled())
        assert (done.count, done.blocked) == (1, 0)


class TestRequeueing:
    @pytest.mark.parametrize("dry_run", [False, True])
    @pytest.mark.parametrize(
        ("selection", "by_id"),
        [
            (dead(), {}),
            (dead(task="shop.*"), {}),
            (Selection(ids=["held", "free"]), {"held": 0, "free": 1}),
        ],
        ids=["all", "a filter", "ids"],
    )
    def test_a_letter_whose_key_is_held_is_told(
        self,
        site: Site,
        app: Celery,
        messages: Messages,
        dry_run: bool,
        selection: Selection,
        by_id: dict[str, int],
    ) -> None:
        give_up(site, app, "held", headers=LATEST)
        give_up(site, app, "free")
        send(app, "holder", headers=LATEST)
        done = messages.requeue(selection, dry_run=dry_run)
        assert (done.count, done.blocked, done.holders) == (1, 1, {"held": "holder"})
        assert done.by_id == by_id
        assert ids(messages.select(dead())) == (["held", "free"] if dry_run else ["held"])

    def test_of_two_letters_with_a_key_the_first_one_takes_it(
        self, site: Site, app: Celery, messages: Messages
    ) -> None:
        give_up(site, app, "1", headers=LATEST)
        give_up(site, app, "2", headers=LATEST)
        give_up(site, app, "3", headers=LATEST, queue="other")
        for dry_run in (True, False):
            done = messages.requeue(dead(), dry_run=dry_run)
            assert (done.count, done.blocked, done.holders) == (2, 1, {"2": "1"})

    def test_a_limit_counts_what_was_requeued(self, site: Site, app: Celery, messages: Messages) -> None:
        for id in ("held-1", "held-2"):
            give_up(site, app, id, headers=LATEST)
        give_up(site, app, "free-1")
        give_up(site, app, "held-3", headers=LATEST)
        for id in ("free-2", "free-3"):
            give_up(site, app, id)
        send(app, "holder", headers=LATEST)
        for dry_run in (True, False):
            assert messages.requeue(dead(), limit=2, dry_run=dry_run).count == 2
        assert ids(messages.select(dead())) == ["held-1", "held-2", "held-3", "free-3"]
        done = messages.requeue(dead(), limit=2)
        assert (done.count, done.blocked) == (1, 3)

    def test_a_holder_that_is_gone_holds_nothing(self, site: Site, app: Celery, messages: Messages) -> None:
        give_up(site, app, "1", headers=LATEST)
        send(app, "holder", headers=LATEST)
        site.redis.delete("celery")
        for dry_run in (True, False):
            done = messages.requeue(dead(), dry_run=dry_run)
            assert (done.count, done.blocked) == (1, 0)

    def test_removing_leaves_none(self, site: Site, app: Celery, messages: Messages) -> None:
        give_up(site, app, "1", headers=LATEST)
        send(app, "holder", headers=LATEST)
        assert messages.remove(dead()).count == 1
