"""`Messages`: counting and reading, in each state."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any, cast
from uuid import UUID

import pytest
from celery import Celery

from kombu_redisdelay import Messages, Selection, requeue
from kombu_redisdelay.broker.paging import FIRST_PAGE
from kombu_redisdelay.operations.filters import FILTERS
from kombu_redisdelay.operations.message import printed_worker
from kombu_redisdelay.operations.selection import MOST_TEXTS
from tests.broker.rig import payload
from tests.finished import OF_MESSAGES
from tests.operations.kit import (
    dead,
    give_up,
    hold,
    ids,
    in_each_state,
    put,
    ready,
    scheduled,
    send,
)
from tests.transport.kit import Inbox, Site, drain, publish


class TestSelecting:
    def test_nothing_that_is_unknown_is_an_error(self, messages: Messages) -> None:
        unknown = Selection(queue="unknown")
        assert list(messages.select(unknown)) == []
        assert messages.count(unknown) == messages.count() == 0
        assert messages.get("unknown") is None
        assert messages.tally(unknown) == {}

    def test_by_queue(self, app: Celery, messages: Messages) -> None:
        for number in range(9):
            countdown = 60 + number if number < 6 else None
            send(app, f"{number}", queue="abc"[number % 3], countdown=countdown)
        assert ids(messages.select(Selection(queue=["c", "a"]))) == ["0", "2", "3", "5", "8", "6"]
        assert ids(messages.select(ready(queue=iter(["a", "a", "b"])))) == ["6", "7"]
        assert messages.count(Selection(queue=("a", "b"))) == 6
        assert messages.count(Selection(queue=[])) == 0
        assert messages.tally(Selection(queue=["a", "unknown"])) == {"shop.close": 3}

    def test_by_several_states(self, site: Site, app: Celery, messages: Messages) -> None:
        in_each_state(site, app)
        chosen = Selection(state=["dead", "ready"])
        assert ids(messages.select(chosen)) == ["ready", "dead"]
        assert messages.count(chosen) == 2
        assert list(messages.select(Selection(state=()))) == []

    def test_scheduled_ones_of_all_queues_by_due_time(self, app: Celery, messages: Messages) -> None:
        for number in range(30):
            send(app, f"{number}", countdown=600 + number, queue="abc"[number % 3])
        found = ids(messages.select(scheduled(queue=["a", "c", "a"])))
        assert found == [f"{number}" for number in range(30) if number % 3 != 1]

    def test_ready_ones_in_the_order_in_which_they_are_taken(self, app: Celery, messages: Messages) -> None:
        for priority in (9, 0, 3):
            send(app, f"{priority}a", f"{priority}b", priority=priority, queue="q")
        found = list(messages.select(Selection(queue="q")))
        assert ids(found) == ["0a", "0b", "3a", "3b", "9a", "9b"]
        assert [message.position for message in found] == [*range(6)]
        assert [message.priority for message in found] == [0, 0, 3, 3, 9, 9]

    def test_dead_letters_queue_by_queue(self, site: Site, app: Celery, messages: Messages) -> None:
        give_up(site, app, "a", "b")
        give_up(site, app, "c", queue="other", task="digest")
        give_up(site, app, "d")
        assert ids(messages.select(dead())) == ["a", "b", "d", "c"]
        assert ids(messages.select(dead(task="shop.*", queue=["other", "celery"]), limit=2)) == ["a", "b"]
        assert (messages.count(dead()), messages.count(dead(queue="other"))) == (4, 1)

    def test_by_task(self, app: Celery, messages: Messages) -> None:
        send(app, "a", "b", countdown=60)
        send(app, "c", task="mail.send")
        assert ids(messages.select(Selection(task="shop.*"))) == ["a", "b"]
        assert ids(messages.select(Selection(task="mail.s?nd"))) == ["c"]
        assert ids(messages.select(Selection(task="mail"))) == []
        assert messages.count(Selection(task="shop.*")) == 2

    @pytest.mark.parametrize(
        ("args", "found"),
        [
            ("42", ["number", "named"]),
            ("order=42", ["named"]),
            ("order=*", ["named", "text"]),
            ("text", ["text"]),
            ("t?xt*", ["text"]),
            ("[1, 2]", ["list"]),
            ("747980a6-*", ["uuid"]),
            ("x" * 3000, ["long"]),
            ("None", ["none"]),
            ("a=b", ["equals"]),
            ("4", []),
            ("other=42", []),
            ("order", []),
            ("", []),
        ],
    )
    def test_by_an_argument(self, app: Celery, messages: Messages, args: str, found: list[str]) -> None:
        calls: dict[str, tuple[list[Any], dict[str, Any]]] = {
            "number": ([42], {}),
            "named": ([], {"order": 42}),
            "text": ([], {"order": "text"}),
            "list": ([[1, 2]], {}),
            "uuid": ([UUID("747980a6-f22b-4a79-b3e9-fc6cf7ed85c2")], {}),
            "long": (["x" * 3000], {}),
            "none": ([None], {}),
            "equals": (["a=b"], {}),
            "neither": ([], {}),
        }
        for id, call in calls.items():
            app.send_task("shop.close", *call, task_id=id, compression="gzip" if id == "long" else None)
        assert ids(messages.select(Selection(args=args))) == found

    def test_by_an_argument_that_cannot_be_decoded(self, app: Celery, messages: Messages) -> None:
        app.send_task("shop.close", [42], task_id="pickle", serializer="pickle")
        deep = f"[[42, {'[' * 100_000}{']' * 100_000}], {{}}, {{}}]"
        with app.connection_for_write() as connection, connection.Producer() as producer:
            for body in ([[42]], {"args": [42]}, "42", [42, {}, {}], [[42], 42, {}]):
                producer.publish(body, routing_key="celery", headers={"task": "shop.close", "id": "a"})
            producer.publish([[42], {}, {}], routing_key="celery", message_id="no task")
            producer.publish(
                deep,
                routing_key="celery",
                headers={"task": "shop.close", "id": "deep"},
                content_type="application/json",
                content_encoding="utf-8",
            )
        assert messages.count(ready()) == 8
        assert ids(messages.select(Selection(args="42"))) == []
        assert [message.arguments() for message in messages.select()] == [None] * 8

    @pytest.mark.parametrize("countdown", [None, 60])
    def test_by_what_it_is_related_to(self, app: Celery, messages: Messages, countdown: float | None) -> None:
        send(app, "root", "other", countdown=countdown)
        send(app, "of a group", group_id="group", countdown=countdown)
        send(app, "child", parent_id="root", root_id="root", countdown=countdown)
        # It is written there, and means nothing.
        send(app, "named", headers={"x": "root"}, kwargs={"group": "group"}, countdown=countdown)
        assert ids(messages.select(Selection(related="root"))) == ["root", "child"]
        assert ids(messages.select(Selection(related="group"))) == ["of a group"]
        assert ids(messages.select(Selection(related="unknown"))) == []

    def test_limit(self, app: Celery, messages: Messages) -> None:
        send(app, "a", "b", countdown=60)
        assert ids(messages.select(limit=1)) == ["a"]
        assert ids(messages.select(ready(), limit=0)) == []
        for wrong in (-1, 1.5, "1", True):
            with pytest.raises(ValueError, match="limit"):
                messages.select(limit=wrong)  # type: ignore[arg-type]

    @pytest.mark.parametrize("wrong", ["", "Ready", "held"])
    def test_a_state_that_is_none_is_a_value_error(self, wrong: Any) -> None:
        with pytest.raises(ValueError, match="one of scheduled, ready, unacked, failed, dead"):
            Selection(state=[wrong])

    def test_queues_in_which_nothing_is_ready_unacked_or_dead_are_not_gone_through(
        self, site: Site, app: Celery, messages: Messages
    ) -> None:
        names = [f"q{number}" for number in range(30)]
        for name in names:
            send(app, f"of {name}", queue=name, countdown=600)
        send(app, "ready", queue="q7")

        def scripts() -> int:
            return int(site.redis.info("commandstats")["cmdstat_evalsha"]["calls"])

        # The server does not know the scripts yet.
        messages.get("unknown")
        before = scripts()
        assert messages.get("unknown") is None
        assert scripts() - before <= len(names) + 2
        assert sorted(ids(messages.select())) == sorted(["ready", *(f"of {name}" for name in names)])

    def test_a_queue_of_the_app_that_nobody_has_consumed_from(self, app: Celery, messages: Messages) -> None:
        send(app, "a", queue=app.conf.task_default_queue)
        # As if a stock producer had published it.
        messages.store.server.call("DEL", "redisdelay:known-queues")
        assert messages.queues() == []
        assert ids(messages.select()) == ["a"]
        assert messages.cancel(ids=["a"])

    def test_partitions_are_one_queue(self, site: Site) -> None:
        partitions: dict[str, Any] = {"partitions": {"q": 3}}
        channel = site.channel(**partitions)
        names = [f"id{number}" for number in range(30)]
        for name in names:
            publish(channel, "x", message_id=name)
            publish(channel, "x", message_id=f"later-{name}", headers={"x-delay": 60_000})
        assert site.redis.llen("q#1") > 0
        with Messages(site.connect(**partitions)) as messages:
            found = list(messages.select(ready(queue="q")))
            assert sorted(ids(found)) == sorted(names)
            assert {message.queue for message in found} == {"q"}
            assert messages.count(Selection(queue="q")) == messages.count() == 60
            assert messages.get("id7") in found
            done = messages.cancel(ids=["id7", "later-id8"])
            assert done.by_id == {"id7": 1, "later-id8": 1}
            assert messages.count(Selection(queue="q")) == 58


class TestIds:
    @pytest.mark.parametrize(
        "id", ['quote "', "back\\slash", "Füße", "заказ", "line\nbreak", "a b", "42", "/"]
    )
    @pytest.mark.parametrize("countdown", [None, 60])
    def test_of_any_kind(self, app: Celery, messages: Messages, id: str, countdown: float | None) -> None:
        send(app, "other")
        send(app, id, queue="q", countdown=countdown)
        # A queue of which nobody has made a note.
        send(app, "note", queue="q", countdown=60)
        assert ids(messages.select(Selection(ids=[id]))) == [id]
        assert messages.cancel(ids=[id])
        assert messages.get(id) is None

    def test_that_is_a_number(self, site: Site, messages: Messages) -> None:
        publish(site.channel(), "x", message_id=42)
        publish(site.channel(), "x", headers={"x-delay": 60_000})
        message = messages.get("42")
        assert message is not None
        assert message.state == "ready"

    def test_several_messages_under_one(self, site: Site, app: Celery, messages: Messages) -> None:
        send(app, "a")
        _ = hold(site, "a")
        send(app, "a", "a", queue="other")
        send(app, "a", countdown=60)
        send(app, "a", countdown=30, queue="other")
        found = list(messages.select(Selection(ids=["a"])))
        assert [(message.state, message.queue) for message in found] == [
            ("scheduled", "other"),
            ("scheduled", "celery"),
            ("ready", "other"),
            ("ready", "other"),
            ("unacked", "celery"),
        ]
        assert messages.get("a") == found[0]
        assert messages.count(Selection(ids=["a", "b"])) == 5

    def test_more_than_redis_looks_for(self, app: Celery, messages: Messages) -> None:
        names = [f"id{number}" for number in range(3 * MOST_TEXTS)]
        send(app, *names, "stays")
        assert ids(messages.select(Selection(ids=names))) == names

    def test_only_the_id_counts(self, app: Celery, messages: Messages) -> None:
        """An id that is written somewhere else in a message is not its id."""
        send(app, "later", countdown=60)
        app.send_task("work", ["a"], {"id": "a"}, task_id="b", root_id="a", headers={"x": {"id": "a"}})
        assert messages.get("a") is None

    def test_none_of_them_is_not_all(self, app: Celery, messages: Messages) -> None:
        send(app, "a", countdown=60)
        assert messages.count(Selection(ids=[])) == 0
        assert list(messages.select(Selection(ids=()))) == []
        assert not messages.cancel(ids=[])
        assert messages.count() == 1

    def test_of_a_wrong_type(self) -> None:
        with pytest.raises(TypeError, match="ids must be several, not the str 'abc'"):
            Selection(ids="abc")
        with pytest.raises(TypeError, match="an id must be a str, not 5"):
            Selection(ids=[5])  # type: ignore[list-item]

    @pytest.mark.parametrize("other", [*((each.name, "x") for each in FILTERS), ("before", "10m")])
    def test_together_with_what_messages_have_in_common(self, other: tuple[str, str]) -> None:
        with pytest.raises(ValueError, match="either ids"):
            replace(Selection(ids=["a"]), **cast(Any, dict([other])))


class TestWhileTheQueueMoves:
    def test_what_comes_back_to_the_head_is_not_shown_again(
        self, site: Site, app: Celery, messages: Messages
    ) -> None:
        names = [f"{number:03}" for number in range(300)]
        send(app, *names)
        send(app, "later", countdown=60)
        reader = messages.select(ready())
        shown = [next(reader).id for _ in range(200)]
        channel = site.channel()
        inbox = Inbox(channel, "celery", prefetch=250)
        drain(channel.connection.client, lambda: len(inbox) == 250)
        inbox.messages[249].ack()
        channel.close()
        send(app, "new")
        shown += ids(reader)
        assert shown == [name for name in names if name != "249"]

    def test_one_that_is_moved_back_comes_once(self, app: Celery, messages: Messages) -> None:
        for number in range(100):
            send(app, f"{number}", countdown=600 + number)
        found = messages.select(scheduled())
        first = [next(found).id for _ in range(3)]
        messages.reschedule(ids=first, countdown=3600)
        assert sorted([*first, *ids(found)]) == sorted(str(number) for number in range(100))

    def test_a_scheduled_one_that_goes_back_is_shown_once(
        self, site: Site, app: Celery, messages: Messages
    ) -> None:
        send(app, *map(str, range(100)), countdown=600)
        found = messages.select(scheduled(queue="celery"))
        first = next(found).id
        assert messages.deliver_now(ids=[first])
        [message] = hold(site, first)
        requeue(message, 3600)
        assert sorted([first, *ids(found)]) == sorted(map(str, range(100)))

    def test_one_that_moves_on_is_shown_once(self, site: Site, app: Celery, messages: Messages) -> None:
        in_each_state(site, app)
        reader = messages.select()
        assert next(reader).id == "scheduled"
        assert messages.deliver_now(ids=["scheduled"])
        assert ids(reader) == [each for each in OF_MESSAGES if each != "scheduled"]

    def test_no_dead_letter_is_passed_over_while_old_ones_go(
        self, site: Site, app: Celery, messages: Messages
    ) -> None:
        names = [f"{number}" for number in range(60)]
        give_up(site, app, *names)
        letters = messages.select(dead())
        seen = [next(letters).id for _ in range(5)]
        # As when newer ones push them out.
        site.redis.zpopmin("redisdelay:{celery}:dead:index", FIRST_PAGE)
        assert [*seen, *ids(letters)] == names


@pytest.mark.parametrize("size", [0, -3])
def test_a_page_has_a_message_at_least(messages: Messages, size: int) -> None:
    with pytest.raises(ValueError, match=f"size must be at least 1, not {size}"):
        messages.page(Selection(state="dead"), size=size)


def test_wrong_types_are_named(messages: Messages) -> None:
    for name, value, said in (
        ("args", 42, "args must be a str, not 42"),
        ("task", ["a", "b"], "task must be a str, not ['a', 'b']"),
        ("queue", 5, "queue must be a str, or several, not 5"),
        ("queue", [5], "queue must be a str, or several, not 5"),
        ("state", 5, "state must be a str, or several, not 5"),
    ):
        with pytest.raises(TypeError, match=re.escape(said)):
            Selection(**{name: value})  # type: ignore[arg-type]
    for method in (messages.cancel, messages.requeue):
        with pytest.raises(TypeError, match=re.escape("this takes a Selection, or ids=[...], not 'id'")):
            method("id")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"before: '2027-01-01T09:00' has no offset, such as \+01:00, or Z"):
        Selection(before="2027-01-01T09:00")
    assert Selection(before="2027-01-01T09:00Z") == Selection(before="2027-01-01T09:00Z")


def test_by_worker_and_reason(site: Site, app: Celery, messages: Messages) -> None:
    in_each_state(site, app)
    [unacked] = messages.select(Selection(state="unacked"))
    [dead] = messages.select(Selection(state="dead", reason="rej*"))
    some = Selection(worker=f"{unacked.host}:{unacked.pid}", state=["unacked", "dead"])
    assert ids(messages.select(some)) == [unacked.id]
    assert ids(messages.select(Selection(worker="celery@w"))) == ["failed"]
    assert dead.id in ids(messages.select(Selection(reason=dead.reason)))
    assert ids(messages.select(Selection(reason=dead.reason, state=["dead", "ready"]))) == [dead.id]
    assert ids(messages.select(Selection(reason=f"{dead.reason[:3]}*", worker="nobody"))) == []


def test_only_where_they_can_match(site: Site, app: Celery, messages: Messages) -> None:
    in_each_state(site, app)
    for chosen, states in (
        (Selection(), [*OF_MESSAGES]),
        (Selection(task="*"), [*OF_MESSAGES]),
        (Selection(worker="*"), ["unacked", "failed"]),
        (Selection(error="*", task="*"), ["failed"]),
        (Selection(error="*", outcome="*"), ["finished"]),
        (Selection(slower="1s", worker="*"), ["finished"]),
        # What is named is looked at.
        (Selection(error="*", state=["dead", "failed"]), ["failed", "dead"]),
    ):
        assert [state.name for state in chosen.states()] == states
    # A time needs one state, and this is one.
    assert ids(messages.select(Selection(error="KeyError", after="1h"))) == ["failed"]
    assert messages.failures(Selection(outcome="failed")) == []


def test_the_unacked_of_one_worker_are_read_alone(site: Site, app: Celery, messages: Messages) -> None:
    put(site, app, "unacked", *"abc")
    consumers = site.keys("celery").consumers
    lease_ms = messages.store.now_ms() + 60_000
    for number in range(2):
        name = f"boot:1:1:1/celery@w{number}"
        site.redis.zadd(consumers, {name: lease_ms})
        site.redis.hset(site.keys("celery").unacked(name), "9", f'0:{{"headers": {{"id": "{number}"}}}}')
    assert messages.count(Selection(state="unacked")) == 5
    for worker, number in (("celery@w1", 1), ("celery@w*", 2), ("nobody", 0)):
        count = messages.count(Selection(state="unacked", worker=worker))
        assert (count, count.looked_at) == (number, number)


def test_what_the_column_worker_shows_selects(site: Site, app: Celery, messages: Messages) -> None:
    """Two workers have one name, one has none, one has gone."""
    now_ms, names = messages.store.now_ms(), ("boot:7:1:1/w@x", "boot:8:1:1/w@x", "boot:9:1:1")
    for name in names:
        lease_ms = now_ms + (60_000 if name != names[0] else -1)
        site.redis.zadd(site.keys("celery").consumers, {name: lease_ms})
        site.redis.hset(site.keys("celery").unacked(name), "9", f"0:{payload(name[5])}")
    messages.store.remember("celery")
    found = {message.id: message for message in messages.select(Selection(state="unacked"))}
    printed = {id: printed_worker(its.worker, its.host, its.pid, its.lost) for id, its in found.items()}
    assert printed == {"7": "w@x:7 (lease ended)", "8": "w@x:8", "9": "boot:9"}
    for id, text in (*printed.items(), ("7", "w@x:7"), ("7", "*ended)"), ("8", "w@x boot:8"), ("8", "*:8")):
        assert ids(messages.select(Selection(worker=text))) == [id]
        if "*" not in text:
            assert messages.count(Selection(worker=text, state="unacked")).looked_at == 1
    assert ids(messages.select(Selection(worker="w@x"))) == ["7", "8"]
    assert ids(messages.select(Selection(worker="w@x:9"))) == []


def test_by_error(site: Site, app: Celery, messages: Messages) -> None:
    in_each_state(site, app)
    for error in ("KeyError", "Key*"):
        assert ids(messages.select(Selection(error=error))) == ["failed"]
    assert ids(messages.select(Selection(error="ValueError"))) == []
    assert messages.tally(Selection(state="failed"), by=("task", "error")) == {("shop.close", "KeyError"): 1}
