"""`Messages.reschedule` and `Messages.deliver_now`."""

from __future__ import annotations

import json
from base64 import b64decode
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from celery import Celery

from kombu_redisdelay import Messages, Selection, batch
from tests.broker.rig import with_count
from tests.operations.kit import ids, scheduled, send
from tests.transport.kit import Inbox, Site, drain, in_seconds, publish

MINUTE = timedelta(minutes=1)


def stored(site: Site, id: str, queue: str = "celery") -> dict[str, Any]:
    data = site.redis.hget(f"redisdelay:{{{queue}}}:messages", id)
    return dict(json.loads(data.partition(b":")[2]))


class TestReschedule:
    @pytest.mark.parametrize("by", ["countdown", "eta", "text", "text of a time", "timedelta"])
    def test_changes_the_time_and_what_the_message_says(
        self, site: Site, app: Celery, messages: Messages, by: str
    ) -> None:
        send(app, "a", countdown=600, priority=3)
        before = stored(site, "a")
        times: dict[str, dict[str, Any]] = {
            "countdown": {"countdown": 60},
            "eta": {"eta": in_seconds(60)},
            "text": {"countdown": "1m"},
            "text of a time": {"eta": in_seconds(60).isoformat()},
            "timedelta": {"countdown": MINUTE},
        }
        assert messages.reschedule(ids=["a"], **times[by])
        message, after = messages.get("a"), stored(site, "a")
        assert message is not None
        assert message.due is not None
        assert timedelta(seconds=50) < message.due - in_seconds(0) < timedelta(seconds=61)
        assert datetime.fromisoformat(after["headers"].pop("eta")) == message.due
        assert after.pop("redisdelay-due") == pytest.approx(message.due.timestamp() * 1000, abs=1)
        before["headers"].pop("eta")
        before.pop("redisdelay-due")
        assert after == before
        assert b64decode(after["body"]) == b64decode(before["body"])

    @pytest.mark.parametrize("seconds", [0.3, 0.6])
    def test_is_delivered_at_the_new_time(
        self, site: Site, app: Celery, messages: Messages, seconds: float
    ) -> None:
        channel = site.channel()
        inbox = Inbox(channel, "celery")
        send(app, "a", countdown=0.4 if seconds > 0.4 else 600)
        due_at = in_seconds(seconds)
        assert messages.reschedule(ids=["a"], countdown=seconds)
        drain(channel.connection.client, lambda: len(inbox) == 1)
        assert due_at <= in_seconds(0)
        assert site.scheduled("celery") == 0

    def test_x_delay(self, site: Site, messages: Messages) -> None:
        publish(site.channel(), "a", headers={"x-delay": 600_000, "list": []}, message_id="a")
        assert messages.reschedule(ids=["a"], countdown=60)
        assert stored(site, "a", "q")["headers"] == {"x-delay": 60_000, "list": []}

    def test_the_count_of_failures_stays(self, site: Site, messages: Messages) -> None:
        site.redis.zadd("redisdelay:known-queues", {"q": 0})
        headers = {"task": "t", "id": "a", "eta": in_seconds(600).isoformat()}
        properties = {"body_encoding": "base64", "big": 12345678901234567890}
        text = with_count(json.dumps({"body": "YQ==", "headers": headers, "properties": properties}), 2)
        site.redis.hset("redisdelay:{q}:messages", "a", f"0:{text}")
        site.redis.zadd("redisdelay:{q}:schedule", {"a": 1e13})
        assert messages.reschedule(ids=["a"], countdown=0.1)
        channel = site.channel()
        inbox = Inbox(channel)
        drain(channel.connection.client, lambda: len(inbox) == 1)
        assert inbox.messages[0].headers["x-delivery-count"] == 2
        assert inbox.messages[0].properties["big"] == 12345678901234567890

    def test_an_earlier_one_wakes_who_waits(self, site: Site, app: Celery, messages: Messages) -> None:
        channel = site.channel()
        inbox = Inbox(channel, "celery")
        send(app, "a", countdown=600)
        drain(channel.connection.client, lambda: not site.redis.exists("redisdelay:{celery}:wake"))
        assert messages.reschedule(ids=["a"], countdown=0.05)
        drain(channel.connection.client, lambda: len(inbox) == 1)

    @pytest.mark.parametrize(
        "when",
        [
            {},
            {"countdown": 1, "eta": in_seconds(60)},
            *(
                {"countdown": wrong}
                for wrong in (-1, "-1h", True, float("nan"), float("inf"), 10**400, -MINUTE)
            ),
            {"by": 1, "countdown": 1},
            {"by": 1, "eta": in_seconds(60)},
            {"by": 1, "over": 1},
            {"over": 0, "countdown": 1},
            *({"by": wrong} for wrong in (True, float("nan"), float("inf"), 10**400, "soon", "--2h", b"2h")),
            *({"over": wrong} for wrong in (-1, "-1h", "", True, float("nan"), 10**400)),
            *(
                {"eta": wrong}
                for wrong in (in_seconds(-60), datetime(2020, 1, 1), "2027-01-01", "soon", 5, True)
            ),
        ],
    )
    def test_no_sense_is_a_value_error_and_changes_nothing(
        self, app: Celery, messages: Messages, when: dict[str, Any]
    ) -> None:
        send(app, "a", countdown=600)
        before = messages.get("a")
        for which in (Selection(ids=["a"]), Selection(every=True), Selection(task="nothing.*")):
            for dry_run in (False, True):
                with pytest.raises(ValueError, match=r"countdown|eta|by|over|length of time|offset|ISO 8601"):
                    messages.reschedule(which, dry_run=dry_run, **when)
        assert messages.get("a") == before

    def test_the_year_9999(self, app: Celery, messages: Messages) -> None:
        send(app, "a", countdown=600)
        last = datetime(9999, 12, 31, 23, 59, 59, 999_000, tzinfo=timezone.utc)
        assert messages.reschedule(ids=["a"], eta=last)
        assert [message.due for message in messages.select()] == [last]

    @pytest.mark.parametrize("seconds", [30, 600.5, 700.25, 10_000])
    def test_each_is_moved_once(self, app: Celery, messages: Messages, seconds: float) -> None:
        """Wherever the new time is: before the others, among them, behind them."""
        with batch(app):
            for number in range(500):
                send(app, f"{number}", countdown=600 + number, queue="ab"[number % 2])
        before, eta = in_seconds(0), in_seconds(seconds)
        assert messages.reschedule(Selection(every=True), eta=eta).count == 500
        assert {message.due for message in messages.select()} == {eta}
        assert messages.count() == 500
        # They are due then already.
        assert messages.reschedule(scheduled(queue=["a", "b"]), eta=eta).count == 500
        assert messages.reschedule(scheduled(queue="a", before=eta), eta=in_seconds(50)).count == 0
        assert messages.reschedule(scheduled(queue="a", after=eta), countdown=20_000).count == 250
        assert messages.count(scheduled(after=before + timedelta(seconds=20_000))) == 250

    @pytest.mark.parametrize("shift", ["1s", 1.0, timedelta(seconds=1), "1000s", "-30m"])
    @pytest.mark.once
    def test_each_is_shifted_once(self, app: Celery, messages: Messages, shift: Any) -> None:
        """Wherever it is then: behind others that are still to be shifted, or before those that were."""
        with batch(app):
            for number in range(400):
                send(app, f"{number}", countdown=2000 + number, queue="ab"[number % 2])
        by = {"1s": 1, "1000s": 1000, "-1s": -1, "-30m": -1800, "3d": 3 * 86_400}.get(shift, 1)
        expected = {each.id: each.due + timedelta(seconds=by) for each in messages.select() if each.due}
        done = messages.reschedule(Selection(every=True), by=shift)
        assert (done.count, done.due) == (400, None)
        found = {message.id: message.due for message in messages.select()}
        assert found.keys() == expected.keys()
        for id, due in expected.items():
            assert found[id] == pytest.approx(due, abs=timedelta(milliseconds=1))

    def test_what_is_shifted_to_the_past_is_delivered(self, app: Celery, messages: Messages) -> None:
        send(app, "a", countdown=600)
        send(app, "b", countdown=700)
        assert messages.reschedule(ids=["a", "b"], by=-650).by_id == {"a": 1, "b": 1}
        assert {message.id: message.state for message in messages.select()} == {
            "a": "ready",
            "b": "scheduled",
        }

    @pytest.mark.parametrize("chosen", [Selection(every=True), Selection(task="t*"), Selection(after="25m")])
    @pytest.mark.parametrize("start", [0, 1500])
    @pytest.mark.once
    def test_they_are_spread(self, app: Celery, messages: Messages, chosen: Selection, start: int) -> None:
        """Evenly, in their order, in each queue: also those that are in that time already."""
        chosen = replace(chosen, state="scheduled")
        with batch(app):
            for number in range(300):
                send(app, f"{number:03}", countdown=1000 + 10 * number, queue="ab"[number % 3 // 2], task="t")
        wanted = {queue: ids(messages.select(replace(chosen, queue=queue))) for queue in "ab"}
        begin = in_seconds(start + 1)
        done = messages.reschedule(chosen, eta=begin, over="1h")
        assert (done.count, done.due) == (sum(map(len, wanted.values())), None)
        for queue, its in wanted.items():
            found = messages.select(scheduled(queue=queue))
            due = {each.id: each.due for each in found if each.due and each.id in its}
            assert sorted(its, key=due.__getitem__) == its
            for rank, id in enumerate(its):
                expected = begin + timedelta(hours=1) * rank / len(its)
                assert due[id] == pytest.approx(expected, abs=timedelta(milliseconds=1))

    def test_a_limit_counts_each_once(self, app: Celery, messages: Messages) -> None:
        with batch(app):
            for number in range(300):
                send(app, f"{number:03}", countdown=1000 + number)
        before = {each.id: each.due for each in messages.select()}
        assert messages.reschedule(Selection(every=True), by=0.5, limit=250).count == 250
        moved = [each.id for each in messages.select() if each.due != before[each.id]]
        assert moved == [f"{number:03}" for number in range(250)]
        done = messages.reschedule(Selection(every=True), over=60, limit=10, countdown=10)
        assert done.count == 10
        last = [each.due for each in messages.select(limit=10)][-1]
        assert last == pytest.approx(in_seconds(10 + 54), abs=timedelta(seconds=5))

    def test_they_are_spread_by_ids(self, app: Celery, messages: Messages) -> None:
        for number in range(4):
            send(app, f"{number}", countdown=1000 - number)
        messages.reschedule(ids=["0", "2", "3"], countdown=90, over=30)
        found = {each.id: each.due for each in messages.select()}
        for id, seconds in (("3", 90), ("2", 100), ("0", 110), ("1", 999)):
            assert found[id] == pytest.approx(in_seconds(seconds), abs=timedelta(seconds=5))

    def test_progress_is_told_while_they_are_counted(self, app: Celery, messages: Messages) -> None:
        with batch(app):
            for number in range(150):
                send(app, f"{number:03}", countdown=1000 + number, task="t")
        told: list[int] = []
        messages.reschedule(Selection(task="t"), over="1h", progress=told.append)
        assert (told[0], told[-1]) == (0, 150)

    def test_those_of_a_task_and_time(self, app: Celery, messages: Messages) -> None:
        for id, task in (("a", "mail.send"), ("b", "mail.sort"), ("c", "work")):
            send(app, id, countdown=600, task=task)
        send(app, "c", countdown=700, task="mail.send")
        chosen = Selection(task="mail.*", before=in_seconds(650))
        assert messages.reschedule(chosen, countdown=60).count == 2
        assert ids(messages.select(scheduled(before=in_seconds(100)))) == ["a", "b"]

    def test_hundreds_by_id(self, app: Celery, messages: Messages) -> None:
        with batch(app):
            for number in range(250):
                send(app, f"{number}", queue="ab"[number % 2], countdown=600)
            send(app, "7", queue="a", countdown=600)
        wanted = [f"{number}" for number in range(240)]
        done = messages.reschedule(ids=[*wanted, "unknown"], countdown=1000)
        assert done.by_id == {**dict.fromkeys(wanted, 1), "7": 2, "unknown": 0}
        assert messages.count(scheduled(after=in_seconds(900))) == done.count == 241

    def test_more_of_an_id_than_are_read_at_once(self, app: Celery, messages: Messages) -> None:
        send(app, *["same"] * 5, "other", countdown=600)
        assert messages.reschedule(ids=["same", "other"], countdown=1000).by_id == {"same": 5, "other": 1}
        assert messages.deliver_now(ids=["same", "other"]).by_id == {"same": 5, "other": 1}


class TestDeliverNow:
    def test_celery(self, site: Site, app: Celery, messages: Messages) -> None:
        channel = site.channel()
        inbox = Inbox(channel, "celery")
        send(app, "a", countdown=600, priority=6)
        assert messages.deliver_now(ids=["a"])
        drain(channel.connection.client, lambda: len(inbox) == 1)
        assert inbox.messages[0].headers["eta"] is None
        assert not messages.deliver_now(ids=["a"])

    def test_is_ready_when_nobody_consumes(self, site: Site, app: Celery, messages: Messages) -> None:
        send(app, "a", countdown=600)
        assert messages.deliver_now(ids=["a"])
        assert (site.ready("celery"), site.scheduled("celery")) == (1, 0)

    def test_plain_kombu(self, site: Site, messages: Messages) -> None:
        channel = site.channel()
        publish(channel, "a", headers={"x-delay": 600_000}, message_id="a")
        assert messages.deliver_now(ids=["a"])
        assert channel.basic_get("q").payload == "a"

    def test_in_the_order_in_which_they_were_due(self, site: Site, app: Celery, messages: Messages) -> None:
        with batch(app):
            for number in range(450):
                send(app, f"{number}", countdown=5000 - 10 * number)
        assert messages.deliver_now(ids=[f"{number}" for number in range(100)]).count == 100
        assert messages.deliver_now(scheduled(queue="celery", after=in_seconds(1000))).count == 300
        entries = [json.loads(entry) for entry in site.redis.lrange("celery", 0, -1)]
        delivered = [int(entry["headers"]["id"]) for entry in reversed(entries)]
        assert delivered == [*range(99, -1, -1), *range(399, 99, -1)]
        assert {entry["headers"]["eta"] for entry in entries} == {None}
        assert messages.count(scheduled()) == 50


@pytest.mark.parametrize("chosen", [{"ids": ["next"]}, {"selection": Selection(state="scheduled")}])
def test_what_has_to_wait_for_its_unique_key_is_left_as_it_is(
    site: Site, messages: Messages, chosen: dict[str, Any]
) -> None:
    """Nothing is said to be moved, and nothing is."""
    channel = site.channel()
    inbox = Inbox(channel)
    headers = {"x-unique": "a", "x-unique-while": "latest"}
    publish(channel, "first", headers=headers)
    drain(channel.connection.client, lambda: inbox.bodies)
    publish(channel, "next", headers={**headers, "x-delay": 300_000}, message_id="next")
    before = messages.get("next")
    assert before is not None
    assert before.due is not None
    assert not messages.deliver_now(**chosen)
    assert not messages.reschedule(**chosen, by=timedelta(hours=-1))
    assert messages.get("next") == before
    inbox.messages[0].ack()
    assert messages.deliver_now(**chosen)
    drain(channel.connection.client, lambda: inbox.bodies == ["first", "next"])
