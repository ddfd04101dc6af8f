"""`Messages.requeue` and `Messages.remove`, and what other programs write among the dead letters."""

from __future__ import annotations

import hashlib

import pytest
from celery import Celery

from kombu_redisdelay import Messages, Selection
from kombu_redisdelay.broker.failure import FOREIGN
from kombu_redisdelay.broker.paging import FIRST_PAGE
from kombu_redisdelay.operations import content
from kombu_redisdelay.operations import filters as module
from tests.broker.rig import payload
from tests.dead import bury
from tests.operations.kit import dead, give_up, ids
from tests.transport.kit import Inbox, Site, drain


def put_garbage(site: Site, data: bytes) -> str:
    """Bury what is no message. Returns its id."""
    site.redis.lpush("celery", data)
    assert site.channel().basic_get("celery") is None
    return hashlib.sha1(data).hexdigest()


def test_by_task_and_kind_of_reason(site: Site, messages: Messages) -> None:
    text = payload("id", headers={"lang": "py", "task": "a", "id": "id"})
    for queue, reason in [("q", "delivery limit of 5"), ("other", "delivery limit of 3"), ("q", "no body")]:
        bury(site.channel().store, queue, text, reason)
    bury(site.channel().store, "q", "{}", "rejected")
    [by_limit, unreadable] = messages.failures(dead(task="a"))
    assert (by_limit.task, by_limit.error, by_limit.count) == ("a", "delivery-limit", 2)
    assert (unreadable.error, unreadable.count) == ("unreadable", 1)
    of_limit = [each.since for each in messages.select(dead(reason="delivery limit*")) if each.since]
    assert (by_limit.first, by_limit.last) == (min(of_limit), max(of_limit))
    assert [(each.task, each.error, each.count) for each in messages.failures(dead())] == [
        *(("a", "delivery-limit", 2), ("-", "rejected", 1), ("a", "unreadable", 1)),
    ]
    assert messages.failures() == []


class TestRequeue:
    def test_is_delivered_again_as_new(self, site: Site, app: Celery, messages: Messages) -> None:
        channel = site.channel(delivery_limit=2)
        inbox = Inbox(channel, "celery", on_message=lambda message: message.requeue())
        app.send_task("work", task_id="a", priority=3)
        drain(channel.connection.client, lambda: messages.count(dead()) == 1)
        inbox.consumer.cancel()
        assert [letter.failures for letter in messages.select(dead())] == [2]
        assert messages.requeue(ids=["a"])
        assert messages.count(dead()) == 0
        channel = site.channel()
        inbox = Inbox(channel, "celery")
        drain(channel.connection.client, lambda: len(inbox) == 1)
        [again] = inbox
        assert again.headers["id"] == "a"
        assert "x-delivery-count" not in again.headers
        assert "redelivered" not in again.delivery_info
        assert not messages.requeue(ids=["a"])

    def test_to_the_queue_that_it_came_from(self, site: Site, app: Celery, messages: Messages) -> None:
        give_up(site, app, "a", "b", "a")
        give_up(site, app, "a", queue="other")
        assert messages.requeue(ids=["a", "unknown"]).by_id == {"a": 3, "unknown": 0}
        assert (site.ready("celery"), site.ready("other")) == (2, 1)
        assert ids(messages.select(dead())) == ["b"]

    def test_what_is_no_message_dies_again(self, site: Site, messages: Messages) -> None:
        id = put_garbage(site, b"garbage")
        assert messages.requeue(ids=[id])
        assert site.redis.lrange("celery", 0, -1) == [b"garbage"]
        assert site.channel().basic_get("celery") is None
        assert ids(messages.select(dead())) == [id]

    def test_none_is_passed_over_while_old_ones_go(
        self, site: Site, app: Celery, messages: Messages, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        names = [f"{number}" for number in range(3 * FIRST_PAGE)]
        give_up(site, app, *names, task="kept")
        give_up(site, app, "last", task="work")
        is_wanted, asked = content.is_task, []

        def while_old_ones_go(name: str | None, pattern: str | None) -> bool:
            asked.append(name)
            if len(asked) == 5:
                site.redis.zpopmin("redisdelay:{celery}:dead:index", FIRST_PAGE)
            return is_wanted(name, pattern)

        monkeypatch.setattr(module, "is_task", while_old_ones_go)
        assert messages.requeue(dead(task="work")).count == 1
        assert site.ready("celery") == 1

    def test_one_that_dies_again_meanwhile_is_requeued_once(
        self, site: Site, app: Celery, messages: Messages
    ) -> None:
        names = [f"{number}" for number in range(3 * FIRST_PAGE)]
        give_up(site, app, *names)
        channel = site.channel(dead_letter=True)

        def die_again(count: int) -> None:
            while (message := channel.basic_get("celery")) is not None:
                message.reject()

        assert messages.requeue(dead(task="*"), progress=die_again).count == len(names)
        die_again(0)
        assert sorted(ids(messages.select(dead()))) == sorted(names)


class TestRemove:
    def test_is_gone_for_good(self, site: Site, app: Celery, messages: Messages) -> None:
        give_up(site, app, "a", "b", task="digest")
        give_up(site, app, "c")
        garbage = put_garbage(site, b"garbage")
        assert messages.remove(ids=[garbage, "a"]).count == 2
        assert messages.remove(dead(task="digest")).count == 1
        assert messages.remove(dead()).count == 1
        assert messages.remove(dead()).count == 0
        assert site.dead("celery") == []
        assert site.ready("celery") == 0


@pytest.mark.parametrize(
    "entry",
    [b"foreign", b"", b"a b c d\nbody", b"1 2\nbody", b"1 2 3 no line", b"9" * 5000 + b" 1 0 why\nbody"],
    ids=["no line", "empty", "no numbers", "too few", "no end of a line", "a long number"],
)
class TestForeignEntry:
    """Another program has written into the list of the dead letters."""

    def test_is_shown(self, site: Site, app: Celery, messages: Messages, entry: bytes) -> None:
        give_up(site, app, "a")
        self._write(site, entry)
        assert [letter.reason for letter in messages.select(dead())] == [FOREIGN, "rejected"]
        foreign = messages.get(hashlib.sha1(entry).hexdigest())
        assert foreign is not None
        assert foreign.since is not None
        assert (foreign.payload, foreign.failures, foreign.since.year) == (entry, 0, 1970)

    def test_is_moved_and_removed_as_it_is(self, site: Site, messages: Messages, entry: bytes) -> None:
        self._write(site, entry)
        assert messages.requeue(dead()).count == 1
        assert site.redis.lrange("celery", 0, -1) == [entry]
        self._write(site, entry)
        assert messages.remove(Selection(state="dead")).count == 1

    def _write(self, site: Site, entry: bytes) -> None:
        channel = site.channel()
        channel.store.remember("celery")
        site.redis.lpush(channel.store.keys("celery").dead, entry)
