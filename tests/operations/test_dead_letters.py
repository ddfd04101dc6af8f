"""`DeadLetters`, on what workers gave up."""

from __future__ import annotations

import hashlib
from datetime import datetime, timezone
from typing import Any

import pytest
from celery import Celery

from harness.process import wait_until
from kombu_redisdelay import DeadLetter, DeadLetters, Queues
from kombu_redisdelay.broker.dead import FOREIGN, LETTERS_PER_CALL
from kombu_redisdelay.operations import content
from kombu_redisdelay.operations import dead_letters as module
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


@pytest.mark.parametrize(
    "entry",
    [b"foreign", b"", b"a b c d\nbody", b"1 2\nbody", b"1 2 3 no line", b"9" * 5000 + b" 1 0 why\nbody"],
    ids=["no line", "empty", "no numbers", "too few", "no end of a line", "a long number"],
)
class TestForeignEntry:
    """Another program has written into the list of the dead letters."""

    def test_is_shown(self, site: Site, app: Celery, dead: DeadLetters, entry: bytes) -> None:
        give_up(site, app, "a")
        self._write(site, entry)
        assert [letter.reason for letter in dead.iter()] == ["rejected", FOREIGN]
        foreign = dead.get(hashlib.sha1(entry).hexdigest())
        assert foreign is not None
        assert (foreign.payload, foreign.deliveries, foreign.when.year) == (entry, 0, 1970)
        with Queues(app) as queues:
            assert [message.reason for message in queues.iter(state="dead")] == ["rejected", FOREIGN]

    def test_is_moved_and_removed_as_it_is(self, site: Site, dead: DeadLetters, entry: bytes) -> None:
        self._write(site, entry)
        assert dead.requeue_all() == 1
        assert site.redis.lrange("celery", 0, -1) == [entry]
        self._write(site, entry)
        assert dead.purge() == 1

    def _write(self, site: Site, entry: bytes) -> None:
        channel = site.channel()
        channel.store.remember("celery")
        site.redis.lpush(channel.store.keys("celery").dead, entry)


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


class TestChoosing:
    def test_by_task_and_time(self, site: Site, app: Celery, dead: DeadLetters) -> None:
        give_up(site, app, "a", task="mail.send")
        give_up(site, app, "b", task="mail.sort", queue="other")
        between = server_time(site)
        give_up(site, app, "c", "d", task="mail.send")
        give_up(site, app, "e")
        assert ids(dead.iter(task="mail.*")) == ["a", "c", "d", "b"]
        assert ids(dead.iter(task="mail.*", before=between)) == ["a", "b"]
        assert ids(dead.iter("celery", after=between)) == ["c", "d", "e"]
        assert ids(dead.iter(["other", "celery"], before=between.replace(tzinfo=None))) == ["b", "a"]
        assert dead.count(["other", "celery"]) == 5
        assert dead.requeue_all(task="mail.s?nd", after=between) == 2
        assert dead.purge(["celery"], before=between) == 1
        assert dead.purge("other", after=between) == 0
        assert ids(dead.iter()) == ["e", "b"]

    @pytest.mark.parametrize("name", ["before", "after"])
    def test_a_time_that_is_none_is_a_value_error(self, dead: DeadLetters, name: str) -> None:
        methods: list[Any] = [dead.iter, dead.requeue_all, dead.purge]
        for method in methods:
            with pytest.raises(ValueError, match=name):
                method(**{name: "2027-01-01"})

    def test_by_id(self, site: Site, app: Celery, dead: DeadLetters) -> None:
        give_up(site, app, "a", "b", "a", "c")
        give_up(site, app, "a", queue="other")
        assert [letter.queue for letter in dead.get_all("a")] == ["celery", "celery", "other"]
        assert dead.requeue_many(["a", "unknown"]) == {"a": 3, "unknown": 0}
        assert (site.ready("celery"), site.ready("other")) == (2, 1)
        assert dead.remove("b") == 1
        assert dead.remove_many(["b", "c"]) == {"b": 0, "c": 1}
        assert (dead.count(), site.ready("celery")) == (0, 2)

    def test_none_is_passed_over_while_old_ones_go(self, site: Site, app: Celery, dead: DeadLetters) -> None:
        names = [f"{number}" for number in range(3 * LETTERS_PER_CALL)]
        give_up(site, app, *names)
        letters = dead.iter()
        seen = [next(letters).id for _ in range(5)]
        # As when newer ones push them out.
        site.redis.ltrim("redisdelay:{celery}:dead", 0, -16)
        assert [*seen, *ids(letters)] == names

    def test_none_is_passed_over_by_a_requeue_while_old_ones_go(
        self, site: Site, app: Celery, dead: DeadLetters, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        names = [f"{number}" for number in range(3 * LETTERS_PER_CALL)]
        give_up(site, app, *names, task="kept")
        give_up(site, app, "last")
        is_wanted, asked = content.is_task, []

        def while_old_ones_go(name: str | None, pattern: str | None) -> bool:
            asked.append(name)
            if len(asked) == 5:
                site.redis.ltrim("redisdelay:{celery}:dead", 0, -16)
            return is_wanted(name, pattern)

        monkeypatch.setattr(module, "is_task", while_old_ones_go)
        assert dead.requeue_all(task="work") == 1
        assert site.ready("celery") == 1


def server_time(site: Site) -> datetime:
    """The server's clock, in a millisecond that is over for what has happened, and has not come for what
    will."""

    def now_ms() -> int:
        seconds, microseconds = site.redis.time()
        return int(seconds) * 1000 + int(microseconds) // 1000

    before = now_ms()
    wait_until(lambda: now_ms() > before, 30, "the next millisecond")
    return datetime.fromtimestamp((before + 1) / 1000, timezone.utc)
