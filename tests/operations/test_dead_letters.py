"""`DeadLetters`, on what workers gave up."""

from __future__ import annotations

import hashlib
from datetime import timezone
from typing import Any

import pytest
from celery import Celery

from kombu_redisdelay import DeadLetter, DeadLetters
from tests.transport.kit import Inbox, Site, drain, in_seconds


def give_up(
    site: Site, app: Celery, *ids: str, task: str = "work", queue: str = "celery", **options: Any
) -> None:
    """Publish tasks, and reject them."""
    channel = site.channel(dead_letter=True)
    inbox = Inbox(channel, queue, on_message=lambda message: message.reject())
    for id in ids:
        app.send_task(task, [id], task_id=id, queue=queue, **options)
    drain(channel.connection.client, lambda: len(inbox) == len(ids))
    inbox.consumer.cancel()


def put_garbage(site: Site, data: bytes) -> None:
    site.redis.lpush("celery", data)
    assert site.channel().basic_get("celery") is None


def ids(letters: Any) -> list[str]:
    return [letter.id for letter in letters]


class TestLooking:
    def test_a_letter(self, site: Site, app: Celery, dead: DeadLetters) -> None:
        before = in_seconds(-0.001)
        give_up(site, app, "order-42", headers={"customer": "Ada"})
        letter = dead.get("order-42")
        assert isinstance(letter, DeadLetter)
        assert (letter.id, letter.queue, letter.task) == ("order-42", "celery", "work")
        assert (letter.reason, letter.deliveries) == ("rejected", 1)
        assert (letter.args, letter.kwargs) == ("['order-42']", "{}")
        assert before <= letter.when <= in_seconds(0)
        assert letter.when.tzinfo is timezone.utc
        assert letter.headers["customer"] == "Ada"
        assert site.dead("celery")[0].endswith(b"\n" + letter.payload)

    def test_what_is_no_message(self, site: Site, dead: DeadLetters) -> None:
        data = b"\xff not\na message"
        put_garbage(site, data)
        [letter] = dead.iter()
        assert letter.id == hashlib.sha1(data).hexdigest()
        assert (letter.payload, letter.task, letter.headers) == (data, None, {})
        assert letter.reason.startswith("not JSON")
        assert dead.get(letter.id) == letter

    def test_iter_and_count(self, site: Site, app: Celery, dead: DeadLetters) -> None:
        give_up(site, app, "a", "b")
        give_up(site, app, "c", task="digest")
        give_up(site, app, "d", queue="other")
        put_garbage(site, b"garbage")
        garbage = hashlib.sha1(b"garbage").hexdigest()
        assert dead.queues() == ["celery", "other"]
        assert (dead.count(), dead.count("celery"), dead.count("other")) == (5, 4, 1)
        assert ids(dead.iter()) == ["a", "b", "c", garbage, "d"]
        assert ids(dead.iter("celery", limit=2)) == ["a", "b"]
        assert ids(dead.iter(task="work")) == ["a", "b", "d"]

    def test_what_is_not_there(self, dead: DeadLetters) -> None:
        assert dead.count("unknown") == dead.count() == 0
        assert list(dead.iter("unknown")) == []
        assert dead.get("unknown") is None
        assert dead.requeue("unknown") == 0
        assert dead.requeue_all("unknown") == 0
        assert dead.purge("unknown") == 0
        assert dead.purge("unknown", task="t") == 0

    @pytest.mark.parametrize("wrong", [-1, 1.5, "1", True])
    def test_a_limit_that_is_none_is_a_value_error(self, dead: DeadLetters, wrong: Any) -> None:
        with pytest.raises(ValueError, match="limit"):
            dead.iter(limit=wrong)


class TestRequeue:
    def test_is_delivered_again_as_new(self, site: Site, app: Celery, dead: DeadLetters) -> None:
        channel = site.channel(delivery_limit=2)
        inbox = Inbox(channel, "celery", on_message=lambda message: message.requeue())
        app.send_task("work", task_id="a", priority=3)
        drain(channel.connection.client, lambda: dead.count() == 1)
        inbox.consumer.cancel()
        assert [letter.deliveries for letter in dead.iter()] == [2]
        assert dead.requeue("a")
        assert dead.count() == 0
        [again] = drain_one(site)
        assert again.headers["id"] == "a"
        assert "x-delivery-count" not in again.headers
        assert "redelivered" not in again.delivery_info
        assert not dead.requeue("a")

    def test_all_with_an_id(self, site: Site, app: Celery, dead: DeadLetters) -> None:
        give_up(site, app, "a", "b", "a")
        assert dead.requeue("a") == 2
        assert ids(dead.iter()) == ["b"]
        assert site.ready("celery") == 2

    def test_all(self, site: Site, app: Celery, dead: DeadLetters) -> None:
        give_up(site, app, "a", "b")
        give_up(site, app, "c", queue="other", task="digest")
        assert dead.requeue_all(task="digest") == 1
        assert dead.requeue_all("celery") == 2
        assert dead.requeue_all() == 0
        assert (site.ready("celery"), site.ready("other")) == (2, 1)

    def test_what_is_no_message_dies_again(self, site: Site, dead: DeadLetters) -> None:
        put_garbage(site, b"garbage")
        [letter] = dead.iter()
        assert dead.requeue(letter.id)
        assert site.redis.lrange("celery", 0, -1) == [b"garbage"]
        assert site.channel().basic_get("celery") is None
        assert ids(dead.iter()) == [letter.id]


class TestPurge:
    def test_a_queue_a_task_or_all(self, site: Site, app: Celery, dead: DeadLetters) -> None:
        give_up(site, app, "a", "b")
        give_up(site, app, "c", task="digest")
        give_up(site, app, "d", "e", queue="other", task="digest")
        assert dead.purge("celery", task="digest") == 1
        assert dead.purge("celery") == 2
        assert dead.purge(task="digest") == 2
        assert dead.purge() == 0
        assert (site.ready("celery"), site.ready("other")) == (0, 0)


def drain_one(site: Site) -> Inbox:
    channel = site.channel()
    inbox = Inbox(channel, "celery")
    drain(channel.connection.client, lambda: len(inbox) == 1)
    return inbox
