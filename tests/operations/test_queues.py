"""`Queues`, on messages in each state."""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from socket import gethostname
from threading import Thread
from typing import Any

import pytest
from celery import Celery, group

from harness.process import wait_until
from kombu_redisdelay import DeadLetters, DelayedMessages, QueueControl, QueuedMessage, Queues, batch, requeue
from kombu_redisdelay.broker.keys import known_queues
from kombu_redisdelay.broker.recorder import record
from kombu_redisdelay.operations.queued import STATES
from kombu_redisdelay.operations.queues import MOST_TEXTS
from tests.transport.kit import Inbox, Site, drain, in_seconds, publish

GARBAGE = b"\xff not\na message"
GARBAGE_ID = hashlib.sha1(GARBAGE).hexdigest()


@pytest.fixture
def queues(app: Celery) -> Iterator[Queues]:
    with Queues(app) as queues:
        yield queues


def send(app: Celery, *ids: str, task: str = "shop.close", **options: Any) -> None:
    for id in ids:
        app.send_task(task, [id], task_id=id, **options)


def hold(site: Site, *ids: str, **options: Any) -> list[Any]:
    """Have a worker take the messages that are ready, and keep them. They are these."""
    channel = site.channel(**options)
    inbox = Inbox(channel, "celery")
    drain(channel.connection.client, lambda: len(inbox) == len(ids))
    assert sorted(message.headers["id"] for message in inbox) == sorted(ids)
    return list(inbox)


def in_each_state(site: Site, app: Celery) -> None:
    send(app, "dead", "held")
    dead, _ = sorted(hold(site, "dead", "held", dead_letter=True), key=lambda message: message.headers["id"])
    dead.reject()
    send(app, "ready")
    send(app, "scheduled", countdown=600)


def ids(messages: Any) -> list[str]:
    return [message.id for message in messages]


class TestLooking:
    def test_a_message_in_each_state(self, site: Site, app: Celery, queues: Queues) -> None:
        before = in_seconds(-0.001)
        in_each_state(site, app)
        found = list(queues.iter())
        assert ids(found) == [message.state for message in found] == list(STATES)
        assert [queues.get(id) for id in STATES] == found
        assert [queues.get_all(id) for id in STATES] == [[message] for message in found]
        assert [ids(queues.iter("celery", state=state)) for state in STATES] == [[id] for id in STATES]
        assert [queues.count(state=state) for state in STATES] == [1, 1, 1, 1]
        assert queues.count() == queues.count("celery") == 4
        for message in found:
            assert isinstance(message, QueuedMessage)
            assert (message.queue, message.task, message.kwargs) == ("celery", "shop.close", "{}")
            assert message.args == f"[{message.id!r}]"
            assert message.headers["id"] == message.id
            assert message.size == len(message.payload)
            assert message.id.encode() in message.payload
        scheduled, ready, held, dead = found
        assert scheduled.due is not None
        assert in_seconds(590) <= scheduled.due <= in_seconds(600)
        assert ready.place == 0
        assert ready.waiting_since is not None
        assert before <= ready.waiting_since <= in_seconds(0)
        assert (held.host, held.pid, held.lease_has_ended) == (gethostname(), os.getpid(), False)
        assert held.held_since is not None
        assert before <= held.held_since <= in_seconds(0)
        assert dead.died is not None
        assert before <= dead.died <= in_seconds(0)
        assert (dead.reason, dead.deliveries) == ("rejected", 1)
        of_state = ("due", "place", "waiting_since", "host", "pid", "held_since", "died")
        has = [{name for name in of_state if getattr(message, name) is not None} for message in found]
        assert has == [{"due"}, {"place", "waiting_since"}, {"host", "pid", "held_since"}, {"died"}]

    def test_ready_ones_in_the_order_in_which_they_are_taken(self, app: Celery, queues: Queues) -> None:
        for priority in (9, 0, 3):
            send(app, f"{priority}a", f"{priority}b", priority=priority, queue="q")
        found = list(queues.iter("q"))
        assert ids(found) == ["0a", "0b", "3a", "3b", "9a", "9b"]
        assert [message.place for message in found] == [*range(6)]
        assert [message.priority for message in found] == [0, 0, 3, 3, 9, 9]

    def test_what_came_back_is_counted(self, site: Site, app: Celery, queues: Queues) -> None:
        send(app, "a")
        channel = site.channel()
        message = channel.basic_get("celery")
        message.requeue()
        [found] = queues.iter("celery", state="ready")
        assert (found.id, found.deliveries) == ("a", 1)

    def test_a_worker_whose_lease_has_ended(self, site: Site, app: Celery, queues: Queues) -> None:
        send(app, "a")
        _ = hold(site, "a")

        def has_ended() -> bool:
            site.end_leases("celery")
            [message] = queues.iter("celery", state="held")
            return message.lease_has_ended

        # Its heartbeat may renew it just now, and then not for a third of the lease.
        wait_until(has_ended, 30, "the lease lasts")

    def test_what_is_no_message(self, site: Site, app: Celery, queues: Queues) -> None:
        send(app, "a", countdown=600)
        site.redis.rpush("celery", GARBAGE, b"other", GARBAGE)
        first, other, second = queues.iter(state="ready")
        assert first.id == second.id == GARBAGE_ID
        assert (first.payload, first.task, first.headers, first.place) == (GARBAGE, None, {}, 0)
        assert other.payload == b"other"
        assert ids(queues.get_all(GARBAGE_ID)) == [GARBAGE_ID] * 2
        assert queues.cancel(GARBAGE_ID)
        assert ids(queues.iter(state="ready")) == [other.id]

    def test_tasks_and_limit(self, app: Celery, queues: Queues) -> None:
        send(app, "a", "b", task="shop.close", countdown=60)
        send(app, "c", task="mail.send")
        assert ids(queues.iter(task="shop.*")) == ["a", "b"]
        assert ids(queues.iter(task="mail.send")) == ["c"]
        assert ids(queues.iter(task="mail")) == []
        assert ids(queues.iter(limit=1)) == ["a"]
        assert ids(queues.iter(state="ready", limit=0)) == []

    def test_counts(self, site: Site, app: Celery, queues: Queues) -> None:
        send(app, "a", "b", priority=3)
        send(app, "c", task="mail.send", countdown=60)
        site.redis.lpush("celery", GARBAGE)
        assert queues.tally() == Counter({("shop.close", 3): 2, ("mail.send", 0): 1, (None, 0): 1})
        assert queues.count_by_task() == {"shop.close": 2, "mail.send": 1, None: 1}
        assert queues.count_by_priority() == {0: 2, 3: 2}
        assert queues.count_by_task(state="scheduled") == {"mail.send": 1}
        assert queues.count_by_priority("celery", state="ready") == {0: 1, 3: 2}

    def test_several_under_one_id(self, site: Site, app: Celery, queues: Queues) -> None:
        send(app, "a")
        _ = hold(site, "a")
        send(app, "a", "a", queue="other")
        send(app, "a", countdown=60)
        send(app, "a", countdown=30, queue="other")
        found = queues.get_all("a")
        states = [(message.state, message.queue) for message in found]
        assert states == [
            ("scheduled", "other"),
            ("scheduled", "celery"),
            ("ready", "other"),
            ("ready", "other"),
            ("held", "celery"),
        ]
        assert queues.get("a") == found[0]

    @pytest.mark.parametrize(
        "id", ['quote "', "back\\slash", "Füße", "заказ", "line\nbreak", "a b", "42", "/"]
    )
    @pytest.mark.parametrize("countdown", [None, 60])
    def test_ids_of_any_kind(self, app: Celery, queues: Queues, id: str, countdown: float | None) -> None:
        send(app, "other")
        send(app, id, queue="q", countdown=countdown)
        # A queue of which nobody has made a note.
        send(app, "note", queue="q", countdown=60)
        assert [message.id for message in queues.get_all(id)] == [id]
        assert queues.cancel(id)
        assert queues.get(id) is None

    def test_an_id_that_is_a_number(self, site: Site, queues: Queues) -> None:
        publish(site.channel(), "x", message_id=42)
        publish(site.channel(), "x", headers={"x-delay": 60_000})
        message = queues.get("42")
        assert message is not None
        assert message.state == "ready"

    def test_what_is_not_there(self, queues: Queues) -> None:
        assert list(queues.iter()) == list(queues.iter("unknown")) == queues.get_all("unknown") == []
        assert queues.get("unknown") is None
        assert queues.count() == queues.count("unknown") == 0
        assert queues.cancel("unknown") == 0
        assert queues.cancel_many([]) == {}
        assert queues.count_by_task("unknown") == {}
        assert queues.count_by_priority("unknown") == {}

    @pytest.mark.parametrize("wrong", ["", "Ready", "unacked", 1])
    def test_a_state_that_is_none_is_a_value_error(self, queues: Queues, wrong: Any) -> None:
        for method in (queues.iter, queues.count, queues.count_by_task, queues.count_by_priority):
            with pytest.raises(ValueError, match="one of scheduled, ready, held, dead"):
                method(state=wrong)

    def test_a_limit_that_is_none_is_a_value_error(self, queues: Queues) -> None:
        with pytest.raises(ValueError, match="limit"):
            queues.iter(limit=-1)


class TestWhileTheQueueMoves:
    def test_what_comes_back_to_the_head_is_not_shown_again(
        self, site: Site, app: Celery, queues: Queues
    ) -> None:
        names = [f"{number:03}" for number in range(300)]
        send(app, *names)
        send(app, "later", countdown=60)
        reader = queues.iter(state="ready")
        shown = [next(reader).id for _ in range(200)]
        channel = site.channel()
        inbox = Inbox(channel, "celery", prefetch=250)
        drain(channel.connection.client, lambda: len(inbox) == 250)
        inbox.messages[249].ack()
        channel.close()
        send(app, "new")
        shown += ids(reader)
        assert shown == [name for name in names if name != "249"]

    def test_a_scheduled_one_that_goes_back_is_shown_once(
        self, site: Site, app: Celery, queues: Queues
    ) -> None:
        send(app, *map(str, range(100)), countdown=600)
        found = queues.iter("celery", state="scheduled")
        first = next(found).id
        with DelayedMessages(site.url) as delayed:
            assert delayed.deliver_now(first)
        [message] = hold(site, first)
        requeue(message, 3600)
        assert sorted([first, *ids(found)]) == sorted(map(str, range(100)))

    def test_one_that_moves_on_is_shown_once(self, site: Site, app: Celery, queues: Queues) -> None:
        in_each_state(site, app)
        reader = queues.iter()
        assert next(reader).id == "scheduled"
        with DelayedMessages(app) as delayed:
            assert delayed.deliver_now("scheduled")
        assert ids(reader) == ["ready", "held", "dead"]


class TestTimes:
    def test_of_each_state(self, site: Site, app: Celery, queues: Queues) -> None:
        in_each_state(site, app)
        for message in list(queues.iter()):
            moment = message.due or message.waiting_since or message.held_since or message.died
            assert moment is not None
            just_after = moment + timedelta(milliseconds=1)

            def found(message: QueuedMessage = message, **times: Any) -> list[str]:
                return ids(queues.iter(state=message.state, **times))

            assert found(after=moment) == found(before=just_after) == [message.id]
            assert found(before=moment) == found(after=just_after) == []
            assert found(after=moment.replace(tzinfo=None), before=just_after) == [message.id]
        assert ids(queues.iter(after=in_seconds(300))) == ["scheduled"]
        assert ids(queues.iter(before=in_seconds(300))) == ["ready", "held", "dead"]

    def test_a_message_whose_time_is_unknown_is_left_out(self, site: Site, queues: Queues) -> None:
        site.redis.lpush("celery", GARBAGE)
        assert ids(queues.iter("celery")) == [GARBAGE_ID]
        assert ids(queues.iter("celery", before=in_seconds(10_000))) == []
        assert ids(queues.iter("celery", after=in_seconds(-10_000))) == []

    @pytest.mark.parametrize("name", ["before", "after"])
    def test_what_is_no_time_is_a_value_error(self, queues: Queues, name: str) -> None:
        with pytest.raises(ValueError, match=name):
            queues.iter(**{name: 5})  # type: ignore[arg-type]


def test_several_queues(app: Celery, queues: Queues) -> None:
    for number in range(9):
        send(app, f"{number}", queue="abc"[number % 3], countdown=60 + number if number < 6 else None)
    assert ids(queues.iter(["c", "a"])) == ["0", "2", "3", "5", "8", "6"]
    assert ids(queues.iter(iter(["a", "a", "b"]), state="ready")) == ["6", "7"]
    assert queues.count(("a", "b")) == 6
    assert queues.count([]) == 0
    assert queues.count_by_task(["a", "unknown"]) == {"shop.close": 3}


def test_queues_in_which_nothing_is_ready_held_or_dead_are_not_gone_through(
    site: Site, app: Celery, queues: Queues
) -> None:
    names = [f"q{number}" for number in range(30)]
    for name in names:
        send(app, f"of {name}", queue=name, countdown=600)
    send(app, "ready", queue="q7")

    def scripts() -> int:
        return int(site.redis.info("commandstats")["cmdstat_evalsha"]["calls"])

    # The server does not know the scripts yet.
    queues.get("unknown")
    before = scripts()
    assert queues.get("unknown") is None
    assert scripts() - before <= len(names) + 2
    assert sorted(ids(queues.iter())) == sorted(["ready", *(f"of {name}" for name in names)])


class TestCancel:
    def test_a_group(self, site: Site, app: Celery, queues: Queues) -> None:
        def start(**options: Any) -> tuple[str, list[str]]:
            tasks = [app.signature("work", immutable=True, **options) for _ in range(2)]
            result = group(tasks, app=app).apply_async(task_id="a-group")
            return result.id, [child.id for child in result.children]

        id, held = start()
        _ = hold(site, *held)
        (again, ready), (_, scheduled) = start(), start(countdown=60)
        assert again == id
        send(app, "other", countdown=60)
        send(app, "ready", kwargs={"group": id})
        assert queues.cancel_group(id, mark_revoked=True) == dict.fromkeys([*scheduled, *ready], 1)
        assert {app.AsyncResult(each).state for each in (*ready, *scheduled)} == {"REVOKED"}
        assert sorted(ids(queues.iter())) == sorted([*held, "other", "ready"])
        assert queues.cancel_group(id) == {}

    def test_scheduled_and_ready_ones(self, site: Site, app: Celery, queues: Queues) -> None:
        in_each_state(site, app)
        counts = queues.cancel_many([*STATES, "unknown"])
        assert counts == {"scheduled": 1, "ready": 1, "held": 0, "dead": 0, "unknown": 0}
        assert ids(queues.iter()) == ["held", "dead"]
        assert not queues.cancel("ready")

    def test_all_with_an_id(self, app: Celery, queues: Queues) -> None:
        send(app, "a", "b", "a", priority=3)
        send(app, "a", countdown=60)
        send(app, "a", queue="other")
        send(app, "c", queue="other", countdown=60)
        assert queues.cancel("a") == 4
        assert ids(queues.iter()) == ["c", "b"]

    def test_more_ids_than_are_looked_for_in_redis(self, app: Celery, queues: Queues) -> None:
        names = [f"id{number}" for number in range(3 * MOST_TEXTS)]
        send(app, *names, "stays")
        send(app, "later", countdown=60)
        assert queues.cancel_many([*reversed(names), *names]) == dict.fromkeys(names, 1)
        assert ids(queues.iter()) == ["later", "stays"]

    def test_only_ids_count(self, app: Celery, queues: Queues) -> None:
        """An id that is written somewhere else in a message is not its id."""
        send(app, "later", countdown=60)
        app.send_task("work", ["a"], {"id": "a"}, task_id="b", root_id="a", headers={"x": {"id": "a"}})
        assert not queues.cancel("a")
        assert queues.get("a") is None
        assert queues.cancel("b")

    def test_mark_revoked(self, app: Celery, queues: Queues) -> None:
        send(app, "a", "b")
        send(app, "c", countdown=60)
        assert queues.cancel("a", mark_revoked=True)
        assert queues.cancel_many(["b", "c", "d"]) == {"b": 1, "c": 1, "d": 0}
        states = [app.AsyncResult(id).state for id in "abcd"]
        assert states == ["REVOKED", "PENDING", "PENDING", "PENDING"]

    @pytest.mark.parametrize(
        ("chosen", "left"),
        [
            ({}, set()),
            ({"queue": "celery"}, {"far", "other"}),
            ({"state": "ready"}, {"soon", "late", "far"}),
            ({"state": "scheduled"}, {"a", "b", "mail", "other"}),
            ({"task": "mail.*"}, {"a", "b", "soon", "late", "far", "other"}),
            (
                {"task": "shop.*", "queue": ["celery"], "state": "ready"},
                {"mail", "soon", "late", "far", "other"},
            ),
            ({"state": "scheduled", "before": 1200}, {"a", "b", "mail", "late", "far", "other"}),
            ({"state": "scheduled", "after": 1200, "task": "*"}, {"a", "b", "mail", "soon", "other"}),
            ({"state": "ready", "after": -60}, {"soon", "late", "far"}),
            ({"state": "ready", "before": -60}, {"a", "b", "mail", "soon", "late", "far", "other"}),
            ({"queue": "unknown"}, {"a", "b", "mail", "soon", "late", "far", "other"}),
        ],
    )
    @pytest.mark.parametrize("mark_revoked", [False, True])
    def test_all_that_are_chosen(
        self, app: Celery, queues: Queues, chosen: dict[str, Any], left: set[str], mark_revoked: bool
    ) -> None:
        send(app, "a", "b", priority=9)
        send(app, "mail", task="mail.send")
        send(app, "soon", countdown=600)
        send(app, "late", countdown=6000)
        send(app, "far", countdown=6000, queue="q")
        send(app, "other", queue="q")
        every = set(ids(queues.iter()))
        for name in {"before", "after"}.intersection(chosen):
            chosen = {**chosen, name: in_seconds(chosen[name])}
        assert queues.cancel_all(**chosen, mark_revoked=mark_revoked) == len(every) - len(left)
        assert set(ids(queues.iter())) == left
        revoked = {id for id in every if app.AsyncResult(id).state == "REVOKED"}
        assert revoked == (every - left if mark_revoked else set())

    @pytest.mark.parametrize(
        "wrong", [{"state": "held"}, {"before": in_seconds(0)}, {"after": in_seconds(0)}, {"before": 5}]
    )
    def test_a_choice_that_makes_no_sense_is_a_value_error(
        self, app: Celery, queues: Queues, wrong: dict[str, Any]
    ) -> None:
        send(app, "a")
        with pytest.raises(ValueError, match=r"state|datetime"):
            queues.cancel_all(**wrong)
        assert queues.count() == 1

    def test_every_second_one_of_thousands(self, app: Celery, queues: Queues) -> None:
        with batch(app):
            for number in range(1500):
                send(app, f"{number}", task=("odd", "even")[number % 2 == 0])
        assert queues.cancel_all(state="ready", task="odd") == 750
        assert ids(queues.iter()) == [f"{number}" for number in range(0, 1500, 2)]
        assert queues.cancel_all(state="ready") == 750

    @pytest.mark.parametrize("kind", [Queues, DelayedMessages, DeadLetters])
    def test_ids_of_a_wrong_type_are_a_type_error(self, site: Site, app: Celery, kind: Any) -> None:
        names = {"cancel", "reschedule", "deliver_now", "requeue", "remove"}
        with kind(site.url) as access:
            methods = [name for name in names if hasattr(access, name)]
            for name in methods:
                time = {"countdown": 60} if name == "reschedule" else {}
                with pytest.raises(TypeError, match="an id must be a str, not 5"):
                    getattr(access, name)(5, **time)
                with pytest.raises(TypeError, match="ids must be several, not the str 'abc'"):
                    getattr(access, f"{name}_many")("abc", **time)
            assert methods

    def test_mark_revoked_needs_the_app(self, site: Site) -> None:
        with Queues(site.url) as queues, pytest.raises(TypeError, match="mark_revoked"):
            queues.cancel("a", mark_revoked=True)

    def test_each_message_is_cancelled_or_delivered_once(
        self, site: Site, app: Celery, queues: Queues
    ) -> None:
        names = [f"id{number}" for number in range(2000)]
        send(app, "note", countdown=600)
        send(app, *names)
        delivered: list[str] = []
        channel = site.channel()

        def deliver(message: Any) -> None:
            delivered.append(message.headers["id"])
            message.ack()

        inbox = Inbox(channel, "celery", prefetch=2, on_message=deliver)
        cancelled: list[str] = []
        # From the end that is taken last: they meet in the middle.
        chosen = names[::-3]
        thread = Thread(target=lambda: cancelled.extend(id for id in chosen if queues.cancel(id)))
        thread.start()
        drain(channel.connection.client, lambda: not thread.is_alive() and not site.ready("celery"))
        thread.join()
        inbox.consumer.cancel()
        assert cancelled
        assert set(chosen) - set(cancelled), "a worker was faster once"
        assert Counter(cancelled) + Counter(delivered) == Counter(names)

    def test_of_all_that_are_chosen_each_is_cancelled_or_delivered_once(
        self, site: Site, app: Celery, queues: Queues
    ) -> None:
        names = [f"id{number}" for number in range(2000)]
        with batch(app):
            for number, name in enumerate(names):
                send(app, name, task=("odd", "even")[number % 2 == 0])
        delivered: list[str] = []
        channel = site.channel()

        def deliver(message: Any) -> None:
            delivered.append(message.headers["id"])
            message.ack()

        inbox = Inbox(channel, "celery", prefetch=2, on_message=deliver)
        counts: list[int] = []
        thread = Thread(target=lambda: counts.append(queues.cancel_all(state="ready", task="odd")))
        thread.start()
        drain(channel.connection.client, lambda: not thread.is_alive() and not queues.count("celery"))
        thread.join()
        inbox.consumer.cancel()
        assert counts[0] > 0
        assert len(delivered) == len(set(delivered)) == len(names) - counts[0]
        assert set(names[::2]) <= set(delivered)


def test_partitions_are_one_queue(site: Site) -> None:
    partitions: dict[str, Any] = {"partitions": {"q": 3}}
    channel = site.channel(**partitions)
    names = [f"id{number}" for number in range(30)]
    for name in names:
        publish(channel, "x", message_id=name)
        publish(channel, "x", message_id=f"later-{name}", headers={"x-delay": 60_000})
    assert site.redis.llen("q#1") > 0
    with Queues(site.connect(**partitions)) as queues:
        found = list(queues.iter("q", state="ready"))
        assert sorted(ids(found)) == sorted(names)
        assert {message.queue for message in found} == {"q"}
        assert queues.count("q") == queues.count() == 60
        assert queues.get("id7") in found
        assert queues.cancel_many(["id7", "later-id8"]) == {"id7": 1, "later-id8": 1}
        assert queues.count("q") == 58


def test_a_pause_of_several_queues(queues: Queues) -> None:
    queues.pause(["a", "b"])
    assert [queues.control(name).is_paused for name in "ab"] == [True, True]
    queues.resume(name for name in "ab")
    assert [queues.control(name).is_paused for name in "ab"] == [False, False]
    queues.pause("ab")
    assert [queues.control(name).is_paused for name in ("a", "ab")] == [False, True]


def test_pauses_and_limits(queues: Queues) -> None:
    assert queues.control("q") == QueueControl()
    queues.pause("q")
    queues.limit("q", rate="100/m", burst=10, concurrency=20)
    found = queues.control("q")
    assert found.is_paused
    assert (found.rate, found.burst, found.concurrency) == ("100/m", 10, 20)
    queues.resume("q")
    queues.limit("q")
    assert queues.control("q") == QueueControl()


def test_what_is_cancelled_was_published(site: Site, queues: Queues) -> None:
    """The history derives from the length of a queue what was published to it."""
    publish(site.channel(), "a", "b", "c", queue="q")
    queues.store.remember("q")
    assert site.channel().basic_get("q") is not None
    record(queues.store, ["q"])
    assert queues.history("q").totals.published == 3
    for message in queues.iter("q", state="ready"):
        assert queues.cancel(message.id)
    record(queues.store, ["q"])
    assert queues.history("q").totals.published == 3


def test_a_queue_of_the_app_that_nobody_has_consumed_from(app: Celery, queues: Queues) -> None:
    send(app, "a", queue=app.conf.task_default_queue)
    # As if a stock producer had published it.
    queues.store.server.call("DEL", known_queues(""))
    assert queues.queues() == []
    assert [message.id for message in queues.iter()] == ["a"]
    assert queues.cancel("a")
