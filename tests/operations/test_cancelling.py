"""`Messages.cancel`."""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Callable, Iterator
from threading import Thread
from typing import Any

import pytest
from celery import Celery, group
from kombu import pools

from kombu_redisdelay import Messages, Selection, batch
from kombu_redisdelay.broker.known_queues import record
from kombu_redisdelay.operations.history import queue_history
from kombu_redisdelay.operations.messages import NotMarkedRevokedError
from kombu_redisdelay.operations.selection import MOST_TEXTS
from tests.finished import OF_MESSAGES
from tests.operations.kit import hold, ids, in_each_state, ready, scheduled, send
from tests.transport.kit import Inbox, Site, drain, in_seconds, publish


def revoked(app: Celery, names: Any) -> set[str]:
    return {id for id in names if app.AsyncResult(id).state == "REVOKED"}


class TestById:
    def test_is_not_delivered(self, site: Site, messages: Messages) -> None:
        channel = site.channel()
        inbox = Inbox(channel)
        publish(channel, "no", headers={"x-delay": 300}, message_id="no")
        publish(channel, "yes", headers={"x-delay": 400}, message_id="yes")
        assert messages.cancel(ids=["no"])
        drain(channel.connection.client, lambda: inbox.bodies)
        assert inbox.bodies == ["yes"]

    def test_what_was_delivered_is_not_cancelled(self, site: Site, messages: Messages) -> None:
        channel = site.channel()
        inbox = Inbox(channel)
        publish(channel, "a", headers={"x-delay": 50}, message_id="a")
        drain(channel.connection.client, lambda: inbox.bodies)
        assert not messages.cancel(ids=["a"])

    def test_scheduled_and_ready_ones(self, site: Site, app: Celery, messages: Messages) -> None:
        in_each_state(site, app)
        done = messages.cancel(ids=[*OF_MESSAGES, "unknown"])
        assert done.by_id == {
            **dict.fromkeys(OF_MESSAGES, 0),
            "scheduled": 1,
            "ready": 1,
            "unknown": 0,
        }
        assert ids(messages.select()) == [each for each in OF_MESSAGES if each not in ("scheduled", "ready")]

    def test_all_with_an_id(self, app: Celery, messages: Messages) -> None:
        send(app, "a", "b", "a", priority=3)
        send(app, "a", countdown=60)
        send(app, "a", queue="other")
        send(app, "c", queue="other", countdown=60)
        assert messages.cancel(ids=["a"]).count == 4
        assert ids(messages.select()) == ["c", "b"]

    def test_hundreds_scheduled(self, app: Celery, messages: Messages) -> None:
        with batch(app):
            for number in range(250):
                send(app, f"id-{number}", queue="even" if number % 2 else "odd", countdown=600)
        wanted = [f"id-{number}" for number in range(240)]
        done = messages.cancel(ids=iter([*wanted, "unknown", *wanted]))
        assert done.by_id == {**dict.fromkeys(wanted, 1), "unknown": 0}
        assert messages.count() == 10

    def test_more_ready_ones_than_redis_looks_for(self, app: Celery, messages: Messages) -> None:
        names = [f"id{number}" for number in range(3 * MOST_TEXTS)]
        send(app, *names, "stays")
        send(app, "later", countdown=60)
        assert messages.cancel(ids=[*reversed(names), *names]).by_id == dict.fromkeys(names, 1)
        assert ids(messages.select()) == ["later", "stays"]

    def test_only_the_id_counts(self, app: Celery, messages: Messages) -> None:
        send(app, "later", countdown=60)
        app.send_task("work", ["a"], {"id": "a"}, task_id="b", root_id="a", headers={"x": {"id": "a"}})
        assert not messages.cancel(ids=["a"])
        assert messages.cancel(ids=["b"])

    @pytest.mark.once
    def test_each_message_is_cancelled_or_delivered_once(
        self, site: Site, app: Celery, messages: Messages
    ) -> None:
        names = [f"id{number}" for number in range(800)]
        send(app, "note", countdown=600)
        with batch(app):
            send(app, *names)
        cancelled: list[str] = []
        # From the end that is taken last: they meet in the middle.
        chosen = names[::-3]
        delivered = delivered_beside(
            site,
            lambda: cancelled.extend(id for id in chosen if messages.cancel(ids=[id])),
            lambda: not site.ready("celery"),
        )
        assert cancelled
        assert set(chosen) - set(cancelled), "a worker was faster once"
        assert Counter(cancelled) + Counter(delivered) == Counter(names)


def delivered_beside(site: Site, operate: Callable[[], object], is_empty: Callable[[], bool]) -> list[str]:
    """The ids of what a worker gets and acks while *operate* runs, and after it until there is no more."""
    delivered: list[str] = []
    channel = site.channel()

    def deliver(message: Any) -> None:
        delivered.append(message.headers["id"])
        message.ack()

    inbox = Inbox(channel, "celery", prefetch=2, on_message=deliver)
    thread = Thread(target=operate)
    thread.start()
    drain(channel.connection.client, lambda: not thread.is_alive() and is_empty())
    thread.join()
    inbox.consumer.cancel()
    return delivered


class TestBySelection:
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
    def test_those_that_match(
        self, app: Celery, messages: Messages, chosen: dict[str, Any], left: set[str], mark_revoked: bool
    ) -> None:
        send(app, "a", "b", priority=9)
        send(app, "mail", task="mail.send")
        send(app, "soon", countdown=600)
        send(app, "late", countdown=6000)
        send(app, "far", countdown=6000, queue="q")
        send(app, "other", queue="q")
        every = set(ids(messages.select()))
        for name in {"before", "after"}.intersection(chosen):
            chosen = {**chosen, name: in_seconds(chosen[name])}
        done = messages.cancel(Selection(every=True, **chosen), mark_revoked=mark_revoked)
        assert done.count == len(every) - len(left)
        assert set(ids(messages.select())) == left
        assert revoked(app, every) == (every - left if mark_revoked else set())

    def test_a_group(self, site: Site, app: Celery, messages: Messages) -> None:
        def start(**options: Any) -> tuple[str, list[str]]:
            tasks = [app.signature("work", immutable=True, **options) for _ in range(2)]
            result = group(tasks, app=app).apply_async(task_id="a-group")
            return result.id, [child.id for child in result.children]

        id, taken = start()
        _ = hold(site, *taken)
        (again, waiting), (_, later) = start(), start(countdown=60)
        assert again == id
        send(app, "other", countdown=60)
        app.send_task("work", kwargs={"group": id}, task_id="ready")
        assert messages.cancel(Selection(related=id), mark_revoked=True).count == 4
        assert revoked(app, [*waiting, *later]) == {*waiting, *later}
        assert sorted(ids(messages.select())) == sorted([*taken, "other", "ready"])
        assert not messages.cancel(Selection(related=id))

    def test_everything_leaves_nothing_in_redis(self, site: Site, app: Celery, messages: Messages) -> None:
        send(app, "a", "b", countdown=60)
        send(app, "c", priority=9)
        assert messages.cancel(Selection(every=True)).count == 3
        assert site.redis.keys("redisdelay:*:schedule") == []
        assert site.redis.keys("redisdelay:*:messages") == []
        assert site.ready("celery") == 0

    def test_every_second_one_of_thousands(self, app: Celery, messages: Messages) -> None:
        with batch(app):
            for number in range(1500):
                send(app, f"{number}", task=("odd", "even")[number % 2 == 0])
        assert messages.cancel(ready(task="odd")).count == 750
        assert ids(messages.select()) == [f"{number}" for number in range(0, 1500, 2)]
        assert messages.cancel(ready()).count == 750

    @pytest.mark.once
    def test_of_those_that_match_each_is_cancelled_or_delivered_once(
        self, site: Site, app: Celery, messages: Messages
    ) -> None:
        names = [f"id{number}" for number in range(800)]
        with batch(app):
            for number, name in enumerate(names):
                send(app, name, task=("odd", "even")[number % 2 == 0])
        counts: list[int] = []
        delivered = delivered_beside(
            site,
            lambda: counts.append(messages.cancel(ready(task="odd")).count),
            lambda: not messages.count(),
        )
        assert counts[0] > 0
        assert len(delivered) == len(set(delivered)) == len(names) - counts[0]
        assert set(names[::2]) <= set(delivered)


class TestMarkRevoked:
    def test_says_so_to_the_result_backend(self, app: Celery, messages: Messages) -> None:
        send(app, "a", "b")
        send(app, "c", "d", countdown=60)
        assert messages.cancel(ids=["a", "c"], mark_revoked=True).by_id == {"a": 1, "c": 1}
        assert messages.cancel(ids=["b", "d", "unknown"])
        assert revoked(app, [*"abcd", "unknown"]) == {"a", "c"}

    def test_also_of_those_before_it_was_ended(self, app: Celery, messages: Messages) -> None:
        with batch(app):
            for number in range(250):
                send(app, f"{number}", countdown=600)

        def end(count: int) -> None:
            if count:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            messages.cancel(scheduled(), mark_revoked=True, progress=end)
        left = set(ids(messages.select()))
        every = {f"{number}" for number in range(250)}
        assert revoked(app, every) == every - left

    def test_a_dry_run_tells_nobody(self, app: Celery, messages: Messages) -> None:
        send(app, "a")
        assert messages.cancel(ids=["a"], mark_revoked=True, dry_run=True)
        assert revoked(app, ["a"]) == set()

    def test_needs_the_app(self, site: Site, app: Celery) -> None:
        send(app, "a")
        with Messages(site.url) as messages:
            with pytest.raises(TypeError, match="mark_revoked"):
                messages.cancel(ids=["a"], mark_revoked=True)
            assert messages.count() == 1

    def test_what_was_cancelled_is_known_if_the_backend_is_not_told(self, site: Site) -> None:
        # Nothing listens there.
        app = Celery("api", broker=site.url, backend="redis://127.0.0.1:1/0", set_as_current=False)
        with Messages(app) as messages:
            publish(site.channel(), "a", headers={"x-delay": 60_000}, message_id="a")
            with pytest.raises(NotMarkedRevokedError, match=r"127\.0\.0\.1:1") as raised:
                messages.cancel(ids=["unknown", "a"], mark_revoked=True)
            assert messages.count() == 0
        again = pickle.loads(pickle.dumps(raised.value))
        assert raised.value.done.by_id == again.done.by_id == {"unknown": 0, "a": 1}
        assert str(again) == str(raised.value)
        app.close()


class TestMarkRevokedByRpc:
    """A result goes to the process that has published the task, or to nobody."""

    @pytest.fixture
    def app(self, site: Site) -> Iterator[Celery]:
        app = Celery("api", broker=site.url, backend="rpc://", set_as_current=False)
        pools.reset()
        yield app
        app.close()

    @pytest.mark.parametrize("by", ["ids", "selection"])
    def test_who_waits_is_told(self, app: Celery, messages: Messages, by: str) -> None:
        send(app, "a", "b")
        send(app, "c", countdown=60)
        chosen = {"ids": [*"abc"]} if by == "ids" else {"selection": Selection(every=True)}
        done = messages.cancel(mark_revoked=True, **chosen)
        assert (done.count, done.marked, done.unmarked) == (3, 3, 0)
        assert [app.AsyncResult(id).state for id in "abc"] == ["REVOKED"] * 3

    def test_another_process_is_told(self, site: Site, app: Celery, messages: Messages) -> None:
        send(app, "a", "b", reply_to="another")
        send(app, "c", reply_to="another", countdown=60)
        assert messages.cancel(Selection(every=True), mark_revoked=True).marked == 3
        channel = site.channel()
        told = [channel.basic_get("another").properties["correlation_id"] for _ in range(3)]
        assert sorted(told) == ["a", "b", "c"]
        assert site.ready(app.thread_oid) == 0

    @pytest.mark.parametrize("by", ["ids", "selection"])
    def test_what_names_nobody_counts_as_unmarked(
        self, site: Site, app: Celery, messages: Messages, by: str
    ) -> None:
        publish(site.channel(), *"abcde", queue="celery", headers={"task": "t", "id": "n", "x-delay": 60_000})
        send(app, "told")
        chosen = {"ids": ["n", "told"]} if by == "ids" else {"selection": Selection(every=True)}
        with pytest.raises(NotMarkedRevokedError, match="names nobody to be told") as raised:
            messages.cancel(mark_revoked=True, **chosen)
        done = raised.value.done
        assert (done.count, done.marked, done.unmarked) == (6, 1, 5)
        assert app.AsyncResult("told").state == "REVOKED"


@pytest.mark.parametrize("backend", [None, "unheard.of://"])
def test_without_a_result_backend_nothing_is_cancelled(site: Site, backend: str | None) -> None:
    app = Celery("api", broker=site.url, backend=backend, set_as_current=False)
    with Messages(app) as messages:
        publish(site.channel(), "a", queue="celery", message_id="a")
        for dry_run in (True, False):
            with pytest.raises(ValueError, match=r"mark_revoked.* result backend"):
                messages.cancel(ids=["a"], mark_revoked=True, dry_run=dry_run)
        assert messages.count() == 1
    app.close()


def test_what_is_cancelled_was_published(site: Site, messages: Messages) -> None:
    """The history derives from the length of a queue what was published to it."""

    def published() -> int:
        record(messages.store, ["q"])
        [history] = queue_history(messages.store, ["q"])
        return history.totals.published

    publish(site.channel(), "a", "b", "c", queue="q")
    messages.store.remember("q")
    assert site.channel().basic_get("q") is not None
    assert published() == 3
    for message in messages.select(ready(queue="q")):
        assert messages.cancel(ids=[message.id])
    assert published() == 3
