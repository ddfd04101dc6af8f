"""`DelayedMessages`, on what Celery and kombu publish."""

from __future__ import annotations

import json
import pickle
from base64 import b64decode
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from celery import Celery, group

from kombu_redisdelay import DelayedMessage, DelayedMessages, NotMarkedRevokedError, batch
from tests.broker.rig import with_count
from tests.transport.kit import Inbox, Site, drain, in_seconds, publish

MINUTE = timedelta(minutes=1)


def send(app: Celery, id: str, countdown: float = 600, *, task: str = "shop.close", **options: Any) -> None:
    app.send_task(task, [id], {"really": True}, countdown=countdown, task_id=id, **options)


def ids(messages: Any) -> list[str]:
    return [message.id for message in messages]


def stored(site: Site, id: str, queue: str = "celery") -> dict[str, Any]:
    data = site.redis.hget(f"redisdelay:{{{queue}}}:messages", id)
    return dict(json.loads(data.partition(b":")[2]))


class TestLooking:
    def test_a_message(self, site: Site, app: Celery, delayed: DelayedMessages) -> None:
        before = in_seconds(60)
        send(app, "order-42", 60, priority=5, headers={"customer": "Ada"})
        message = delayed.get("order-42")
        assert isinstance(message, DelayedMessage)
        assert (message.id, message.queue, message.task) == ("order-42", "celery", "shop.close")
        assert (message.args, message.kwargs, message.priority) == ("['order-42']", "{'really': True}", 5)
        assert before <= message.due <= in_seconds(60)
        assert message.due.tzinfo is timezone.utc
        assert message.headers["customer"] == "Ada"
        assert message.size == site.redis.hstrlen("redisdelay:{celery}:messages", "order-42") - len("3:")

    def test_one_that_is_moved_back_meanwhile_comes_once(self, app: Celery, delayed: DelayedMessages) -> None:
        for number in range(100):
            send(app, f"{number}", 600 + number)
        found = delayed.iter()
        first = [next(found).id for _ in range(3)]
        delayed.reschedule_many(first, countdown=3600)
        assert sorted([*first, *ids(found)]) == sorted(str(number) for number in range(100))

    def test_it_is_due_at_its_eta_to_the_microsecond(self, app: Celery, delayed: DelayedMessages) -> None:
        eta = in_seconds(60).replace(microsecond=123_457)
        app.send_task("shop.close", eta=eta, task_id="a")
        message = delayed.get("a")
        assert message is not None
        assert message.due == delayed.next_due() == eta
        assert [found.due for found in delayed.iter(due_after=eta)] == [eta]
        assert (delayed.count(due_after=eta), delayed.count(due_before=eta)) == (1, 0)

    @pytest.mark.parametrize("name", ["message_id", "correlation_id"])
    def test_one_of_plain_kombu(self, site: Site, delayed: DelayedMessages, name: str) -> None:
        publish(site.channel(), "later", headers={"x-delay": 60_000}, **{name: "mine"})
        message = delayed.get("mine")
        assert message is not None
        assert (message.task, message.args, message.kwargs, message.priority) == (None, "", "", 0)

    def test_count_and_next_due(self, app: Celery, delayed: DelayedMessages) -> None:
        assert (delayed.count(), delayed.count("celery"), delayed.next_due()) == (0, 0, None)
        send(app, "a", 600)
        send(app, "b", 60)
        send(app, "c", 30, queue="other")
        assert (delayed.count(), delayed.count("celery"), delayed.count("other")) == (3, 2, 1)
        a, c = delayed.get("a"), delayed.get("c")
        assert a is not None
        assert c is not None
        assert delayed.next_due() == delayed.next_due("other") == c.due
        assert delayed.count(due_before=a.due) == 2
        assert delayed.count(due_after=a.due) == 1
        assert delayed.count("celery", due_after=c.due, due_before=a.due) == 1
        assert delayed.queues() == ["celery", "other"]

    def test_iter(self, app: Celery, delayed: DelayedMessages) -> None:
        for number, id in enumerate("abcdef"):
            task = "digest" if id in "be" else "shop.close"
            send(app, id, 600 - 60 * number, queue="even" if number % 2 else "odd", task=task)
        every = list(delayed.iter())
        assert ids(every) == list("fedcba")
        assert ids(delayed.iter("odd")) == list("eca")
        assert ids(delayed.iter(task="digest")) == ["e", "b"]
        assert ids(delayed.iter(task="shop.*", limit=2)) == ["f", "d"]
        assert ids(delayed.iter(limit=2)) == ["f", "e"]
        assert ids(delayed.iter(limit=0)) == []
        assert ids(delayed.iter(task="digest", limit=1)) == ["e"]
        assert ids(delayed.iter(due_before=every[2].due)) == ["f", "e"]
        assert ids(delayed.iter(due_after=every[2].due, due_before=every[4].due)) == ["d", "c"]
        naive = every[4].due.replace(tzinfo=None)
        assert ids(delayed.iter(due_after=naive)) == ["b", "a"]
        elsewhere = every[4].due.astimezone(timezone(timedelta(hours=5)))
        assert ids(delayed.iter(due_after=elsewhere)) == ["b", "a"]

    def test_what_is_not_there(self, delayed: DelayedMessages) -> None:
        assert delayed.get("unknown") is None
        assert delayed.get_all("unknown") == []
        assert delayed.count("unknown") == 0
        assert delayed.next_due("unknown") is None
        assert list(delayed.iter("unknown")) == []
        assert delayed.cancel("unknown") == 0
        assert delayed.cancel_many(["unknown", "too"]) == {"unknown": 0, "too": 0}
        assert delayed.cancel_many([]) == {}
        assert delayed.cancel_group("unknown") == {}
        assert delayed.reschedule("unknown", countdown=1) == 0
        assert delayed.deliver_now("unknown") == 0
        assert delayed.purge("unknown") == 0

    def test_what_is_no_message_is_shown_as_it_is(self, site: Site, delayed: DelayedMessages) -> None:
        site.redis.zadd("redisdelay:known-queues", {"q": 0})
        for id, data in {"a": b"0:\xff", "b": b"[]", "c": b'0:{"headers": 1}', "d": b""}.items():
            site.redis.hset("redisdelay:{q}:messages", id, data)
            site.redis.zadd("redisdelay:{q}:schedule", {id: 1e18})
        assert ids(delayed.iter()) == list("abcd")
        assert {message.task for message in delayed.iter()} == {None}
        # The time that is nearest to a due time that no datetime can hold.
        assert delayed.next_due() == datetime.max.replace(microsecond=999_000, tzinfo=timezone.utc)
        assert delayed.deliver_now("a")
        assert delayed.reschedule("c", countdown=60)
        assert delayed.cancel_many(list("abcd")) == {"a": 0, "b": 1, "c": 1, "d": 1}

    @pytest.mark.parametrize("wrong", ["2027-01-01", 5, True])
    def test_a_time_that_is_none_is_a_value_error(self, delayed: DelayedMessages, wrong: Any) -> None:
        for name in ("due_before", "due_after"):
            with pytest.raises(ValueError, match=name):
                delayed.iter(**{name: wrong})
            with pytest.raises(ValueError, match=name):
                delayed.count(**{name: wrong})
        with pytest.raises(ValueError, match="due_before"):
            delayed.purge(due_before=wrong)

    @pytest.mark.parametrize("wrong", [-1, 1.5, "1", True])
    def test_a_limit_that_is_none_is_a_value_error(self, delayed: DelayedMessages, wrong: Any) -> None:
        with pytest.raises(ValueError, match="limit"):
            delayed.iter(limit=wrong)


class TestOneIdTwice:
    def test_both_are_found_and_cancelled(self, app: Celery, delayed: DelayedMessages) -> None:
        send(app, "same", 600)
        send(app, "same", 60)
        send(app, "same", 300, queue="other")
        found = delayed.get_all("same")
        assert [(message.id, message.queue) for message in found] == [
            ("same", "celery"),
            ("same", "other"),
            ("same", "celery"),
        ]
        assert delayed.get("same") == found[0]
        assert ids(delayed.iter()) == ["same"] * 3
        assert delayed.cancel("same")
        assert delayed.count() == 0
        assert not delayed.cancel("same")

    def test_both_are_moved(self, site: Site, app: Celery, delayed: DelayedMessages) -> None:
        send(app, "same", 600)
        send(app, "same", 60)
        assert delayed.reschedule("same", countdown=1200) == 2
        assert all(message.due > in_seconds(1190) for message in delayed.get_all("same"))
        assert delayed.deliver_now("same") == 2
        assert (delayed.count(), site.ready("celery")) == (0, 2)


class TestCancel:
    def test_is_not_delivered(self, site: Site, delayed: DelayedMessages) -> None:
        channel = site.channel()
        inbox = Inbox(channel)
        publish(channel, "no", headers={"x-delay": 300}, message_id="no")
        publish(channel, "yes", headers={"x-delay": 400}, message_id="yes")
        assert delayed.cancel("no")
        drain(channel.connection.client, lambda: inbox.bodies)
        assert inbox.bodies == ["yes"]

    def test_what_was_delivered_is_not_cancelled(self, site: Site, delayed: DelayedMessages) -> None:
        channel = site.channel()
        inbox = Inbox(channel)
        publish(channel, "a", headers={"x-delay": 50}, message_id="a")
        drain(channel.connection.client, lambda: inbox.bodies)
        assert not delayed.cancel("a")

    def test_many(self, app: Celery, delayed: DelayedMessages) -> None:
        for number in range(250):
            send(app, f"id-{number}", queue="even" if number % 2 else "odd")
        wanted = [f"id-{number}" for number in range(240)]
        assert delayed.cancel_many([*wanted, "unknown", *wanted]) == {
            **dict.fromkeys(wanted, 1),
            "unknown": 0,
        }
        assert delayed.count() == 10
        assert delayed.cancel_many(iter(["id-249"])) == {"id-249": 1}

    def test_a_group(self, app: Celery, delayed: DelayedMessages) -> None:
        tasks = [app.signature("work", args=[n], countdown=60, immutable=True) for n in range(5)]
        result = group(tasks, app=app).apply_async()
        send(app, "other")
        assert sorted(delayed.cancel_group(result.id)) == sorted(child.id for child in result.children)
        assert ids(delayed.iter()) == ["other"]

    def test_says_so_to_the_result_backend_when_asked(self, app: Celery, delayed: DelayedMessages) -> None:
        for id in "abcd":
            send(app, id, group_id="group")
        assert delayed.cancel("a")
        assert delayed.cancel("b", mark_revoked=True)
        assert delayed.cancel_many(["c", "unknown"], mark_revoked=True) == {"c": 1, "unknown": 0}
        assert delayed.cancel_group("group", mark_revoked=True) == {"d": 1}
        states = {id: app.AsyncResult(id).state for id in ("a", "b", "c", "d", "unknown")}
        assert {id for id, state in states.items() if state == "REVOKED"} == {"b", "c", "d"}

    def test_without_an_app_there_is_no_result_backend(self, site: Site, app: Celery) -> None:
        send(app, "a", group_id="group")
        with DelayedMessages(site.url) as delayed:
            for call in (delayed.cancel, delayed.cancel_group):
                with pytest.raises(TypeError, match="mark_revoked"):
                    call("a", mark_revoked=True)
            with pytest.raises(TypeError, match="mark_revoked"):
                delayed.cancel_many(["a"], mark_revoked=True)
            assert delayed.count() == 1


class TestReschedule:
    @pytest.mark.parametrize("by", ["countdown", "eta"])
    def test_changes_the_time_and_what_the_message_says(
        self, site: Site, app: Celery, delayed: DelayedMessages, by: str
    ) -> None:
        send(app, "a", priority=3)
        before = stored(site, "a")
        if by == "eta":
            assert delayed.reschedule("a", eta=in_seconds(60))
        else:
            assert delayed.reschedule("a", countdown=60)
        message, after = delayed.get("a"), stored(site, "a")
        assert message is not None
        assert timedelta(seconds=50) < message.due - in_seconds(0) < timedelta(seconds=61)
        assert datetime.fromisoformat(after["headers"].pop("eta")) == message.due
        assert after.pop("redisdelay-due") == pytest.approx(message.due.timestamp() * 1000, abs=1)
        before["headers"].pop("eta")
        before.pop("redisdelay-due")
        assert after == before
        assert b64decode(after["body"]) == b64decode(before["body"])

    @pytest.mark.parametrize("seconds", [0.3, 0.6])
    def test_is_delivered_at_the_new_time(
        self, site: Site, app: Celery, delayed: DelayedMessages, seconds: float
    ) -> None:
        channel = site.channel()
        inbox = Inbox(channel, "celery")
        send(app, "a", 0.4 if seconds > 0.4 else 600)
        due_at = in_seconds(seconds)
        assert delayed.reschedule("a", countdown=seconds)
        drain(channel.connection.client, lambda: len(inbox) == 1)
        assert due_at <= in_seconds(0)
        assert site.scheduled("celery") == 0

    def test_x_delay(self, site: Site, delayed: DelayedMessages) -> None:
        publish(site.channel(), "a", headers={"x-delay": 600_000, "list": []}, message_id="a")
        assert delayed.reschedule("a", countdown=60)
        headers = stored(site, "a", "q")["headers"]
        assert headers == {"x-delay": 60_000, "list": []}

    def test_the_count_of_deliveries_stays(self, site: Site, delayed: DelayedMessages) -> None:
        site.redis.zadd("redisdelay:known-queues", {"q": 0})
        headers = {"task": "t", "id": "a", "eta": in_seconds(600).isoformat()}
        properties = {"body_encoding": "base64", "big": 12345678901234567890}
        text = with_count(json.dumps({"body": "YQ==", "headers": headers, "properties": properties}), 2)
        site.redis.hset("redisdelay:{q}:messages", "a", f"0:{text}")
        site.redis.zadd("redisdelay:{q}:schedule", {"a": 1e13})
        assert delayed.reschedule("a", countdown=0.1)
        channel = site.channel()
        inbox = Inbox(channel)
        drain(channel.connection.client, lambda: len(inbox) == 1)
        assert inbox.messages[0].headers["x-delivery-count"] == 2
        assert inbox.messages[0].properties["big"] == 12345678901234567890

    def test_an_earlier_one_wakes_who_waits(self, site: Site, app: Celery, delayed: DelayedMessages) -> None:
        channel = site.channel()
        inbox = Inbox(channel, "celery")
        send(app, "a", 600)
        drain(channel.connection.client, lambda: not site.redis.exists("redisdelay:{celery}:wake"))
        assert delayed.reschedule("a", countdown=0.05)
        drain(channel.connection.client, lambda: len(inbox) == 1)

    @pytest.mark.parametrize(
        "when",
        [
            {},
            {"countdown": 1, "eta": in_seconds(60)},
            *({"countdown": wrong} for wrong in (-1, "1", True, float("nan"), float("inf"), 10**400, MINUTE)),
            *({"eta": wrong} for wrong in (in_seconds(-60), datetime(2020, 1, 1), "2027-01-01", 5, True)),
        ],
    )
    def test_no_sense_is_a_value_error_and_changes_nothing(
        self, app: Celery, delayed: DelayedMessages, when: dict[str, Any]
    ) -> None:
        send(app, "a")
        before = delayed.get("a")
        with pytest.raises(ValueError, match=r"countdown|eta"):
            delayed.reschedule("a", **when)
        assert delayed.get("a") == before

    def test_the_year_9999(self, app: Celery, delayed: DelayedMessages) -> None:
        send(app, "a")
        last = datetime(9999, 12, 31, 23, 59, 59, 999_000, tzinfo=timezone.utc)
        assert delayed.reschedule("a", eta=last)
        assert delayed.next_due() == last


class TestDeliverNow:
    def test_celery(self, site: Site, app: Celery, delayed: DelayedMessages) -> None:
        channel = site.channel()
        inbox = Inbox(channel, "celery")
        send(app, "a", priority=6)
        assert delayed.deliver_now("a")
        drain(channel.connection.client, lambda: len(inbox) == 1)
        assert inbox.messages[0].headers["eta"] is None
        assert not delayed.deliver_now("a")

    def test_is_ready_when_nobody_consumes(self, site: Site, app: Celery, delayed: DelayedMessages) -> None:
        send(app, "a")
        assert delayed.deliver_now("a")
        assert (site.ready("celery"), site.scheduled("celery")) == (1, 0)

    def test_plain_kombu(self, site: Site, delayed: DelayedMessages) -> None:
        channel = site.channel()
        publish(channel, "a", headers={"x-delay": 600_000}, message_id="a")
        assert delayed.deliver_now("a")
        assert channel.basic_get("q").payload == "a"


class TestPurge:
    def fill(self, site: Site, app: Celery) -> None:
        send(app, "a", 60, task="digest")
        send(app, "b", 120)
        send(app, "c", 180, task="digest")
        send(app, "d", 60, queue="other")
        publish(site.channel(), "ready", queue="celery")

    def test_a_queue(self, site: Site, app: Celery, delayed: DelayedMessages) -> None:
        self.fill(site, app)
        assert delayed.purge("celery") == 3
        assert ids(delayed.iter()) == ["d"]
        assert site.ready("celery") == 1

    def test_all(self, site: Site, app: Celery, delayed: DelayedMessages) -> None:
        self.fill(site, app)
        assert delayed.purge() == 4
        assert site.redis.keys("redisdelay:*:schedule") == []
        assert site.redis.keys("redisdelay:*:messages") == []

    def test_a_task(self, site: Site, app: Celery, delayed: DelayedMessages) -> None:
        self.fill(site, app)
        assert delayed.purge(task="digest") == 2
        assert sorted(ids(delayed.iter())) == ["b", "d"]

    def test_until_a_time(self, site: Site, app: Celery, delayed: DelayedMessages) -> None:
        self.fill(site, app)
        assert delayed.purge(due_before=in_seconds(150)) == 3
        assert ids(delayed.iter()) == ["c"]
        assert delayed.purge("celery", task="digest", due_before=in_seconds(200)) == 1

    def test_several_queues_wildcards_and_a_span(
        self, site: Site, app: Celery, delayed: DelayedMessages
    ) -> None:
        self.fill(site, app)
        assert delayed.purge(["celery", "other"], task="dig*", due_after=in_seconds(100)) == 1
        assert sorted(ids(delayed.iter())) == ["a", "b", "d"]
        assert delayed.purge(iter(["other", "unknown"])) == 1
        assert delayed.purge([]) == 0
        assert sorted(ids(delayed.iter())) == ["a", "b"]


class TestMany:
    def test_several_queues_are_merged_in_due_order(self, app: Celery, delayed: DelayedMessages) -> None:
        for number in range(30):
            send(app, f"{number}", 600 + number, queue="abc"[number % 3])
        assert ids(delayed.iter(["a", "c", "a"])) == [f"{number}" for number in range(30) if number % 3 != 1]
        assert delayed.count(("a", "b")) == 20
        assert delayed.count("abc") == delayed.count([]) == 0
        first = delayed.get("1")
        assert first is not None
        assert delayed.next_due(["b", "c"]) == first.due

    @pytest.mark.parametrize("seconds", [30, 600.5, 700.25, 10_000])
    def test_each_is_rescheduled_once(self, app: Celery, delayed: DelayedMessages, seconds: float) -> None:
        """Wherever the new time is: before the others, among them, behind them."""
        with batch(app):
            for number in range(500):
                send(app, f"{number}", 600 + number, queue="ab"[number % 2])
        before, eta = in_seconds(0), in_seconds(seconds)
        assert delayed.reschedule_all(eta=eta) == 500
        assert {message.due for message in delayed.iter()} == {eta}
        assert delayed.count() == 500
        # They are due then already.
        assert delayed.reschedule_all(["a", "b"], eta=eta) == 500
        assert delayed.reschedule_all("a", due_before=eta, eta=in_seconds(50)) == 0
        assert delayed.reschedule_all("a", due_after=eta, countdown=20_000) == 250
        assert delayed.count(due_after=before + timedelta(seconds=20_000)) == 250

    def test_those_of_a_task(self, app: Celery, delayed: DelayedMessages) -> None:
        for id, task in (("a", "mail.send"), ("b", "mail.sort"), ("c", "work")):
            send(app, id, 600, task=task)
        send(app, "c", 700, task="mail.send")
        assert delayed.reschedule_all(task="mail.*", due_before=in_seconds(650), countdown=60) == 2
        assert ids(delayed.iter(due_before=in_seconds(100))) == ["a", "b"]

    def test_by_id(self, app: Celery, delayed: DelayedMessages) -> None:
        for number in range(250):
            send(app, f"{number}", queue="ab"[number % 2])
        send(app, "7", queue="a")
        wanted = [f"{number}" for number in range(240)]
        counts = delayed.reschedule_many([*wanted, "unknown"], countdown=1000)
        assert counts == {**dict.fromkeys(wanted, 1), "7": 2, "unknown": 0}
        assert delayed.count(due_after=in_seconds(900)) == 241
        assert delayed.reschedule_many([], countdown=1) == delayed.deliver_now_many([]) == {}

    def test_more_of_an_id_than_are_read_at_once(self, app: Celery, delayed: DelayedMessages) -> None:
        for _ in range(5):
            send(app, "same")
        send(app, "other")
        assert delayed.reschedule_many(["same", "other"], countdown=1000) == {"same": 5, "other": 1}
        assert delayed.deliver_now_many(["same", "other"]) == {"same": 5, "other": 1}

    def test_they_are_delivered_in_the_order_in_which_they_were_due(
        self, site: Site, app: Celery, delayed: DelayedMessages
    ) -> None:
        with batch(app):
            for number in range(450):
                send(app, f"{number}", 5000 - 10 * number)
        assert delayed.deliver_now_many([f"{number}" for number in range(0, 100)])["7"] == 1
        assert delayed.deliver_now_all("celery", due_after=in_seconds(1000)) == 300
        entries = [json.loads(entry) for entry in site.redis.lrange("celery", 0, -1)]
        delivered = [int(entry["headers"]["id"]) for entry in reversed(entries)]
        assert delivered == [*range(99, -1, -1), *range(399, 99, -1)]
        assert {entry["headers"]["eta"] for entry in entries} == {None}
        assert delayed.count() == 50

    def test_a_time_that_makes_no_sense_changes_nothing(self, app: Celery, delayed: DelayedMessages) -> None:
        send(app, "a")
        before = delayed.get("a")
        for wrong in ({}, {"countdown": -1}, {"eta": in_seconds(-60)}, {"countdown": 1, "due_before": 5}):
            with pytest.raises(ValueError, match=r"countdown|eta|due_before"):
                delayed.reschedule_all(**wrong)
        assert delayed.get("a") == before


def test_what_was_cancelled_is_known_if_the_backend_is_not_told(site: Site) -> None:
    # Nothing listens there.
    app = Celery("api", broker=site.url, backend="redis://127.0.0.1:1/0", set_as_current=False)
    with DelayedMessages(app) as delayed:
        publish(site.channel(), "a", headers={"x-delay": 60_000}, message_id="a")
        with pytest.raises(NotMarkedRevokedError, match=r"127\.0\.0\.1:1") as raised:
            delayed.cancel_many(["unknown", "a"], mark_revoked=True)
        assert delayed.count() == 0
    again = pickle.loads(pickle.dumps(raised.value))
    assert raised.value.cancelled == again.cancelled == {"unknown": 0, "a": 1}
    assert str(again) == str(raised.value)
    app.close()
