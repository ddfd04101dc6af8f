"""What Celery's remote control commands do besides, in a worker with a broker of ours."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery
from celery.worker import control, state
from kombu.connection import Connection
from redis.exceptions import ConnectionError as RedisConnectionError

from kombu_redisdelay.broker.schedule import Withdrawal
from kombu_redisdelay.transport import remote_control, revoker
from tests.transport.kit import Inbox, Site, drain, publish
from tools.harness.process import wait_until

HURRIED = ["add_consumer", "cancel_consumer"]
COMMANDS = ["revoke", "terminate", "revoke_by_stamped_headers", "scheduled", "query_task", *HURRIED]
HOUR_MS = 3_600_000


@pytest.fixture
def app() -> Iterator[Celery]:
    app = Celery("worker", set_as_current=False, broker="memory://", backend="cache+memory://")
    yield app
    app.close()
    state.revoked.clear()
    state.revoked_stamps.clear()


def worker_state(app: Celery, channel: Any) -> Any:
    """What the commands get in a worker whose tasks come over *channel*."""
    consumer = SimpleNamespace(
        task_consumer=SimpleNamespace(channel=channel),
        timer=SimpleNamespace(schedule=SimpleNamespace(queue=[])),
        event_dispatcher=None,
    )
    return SimpleNamespace(app=app, hostname="worker@here", consumer=consumer)


def schedule(channel: Any, *ids: str, task: str = "unknown.task", **headers: Any) -> None:
    for id in ids:
        publish(
            channel,
            [[], {}, {}],  # type: ignore[arg-type]
            headers={"id": id, "task": task, "x-delay": HOUR_MS, **headers},
            serializer="json",
        )


@pytest.mark.one_server
class TestRegistry:
    """Celery's seams: a test that fails here tells what Celery has moved."""

    @pytest.mark.parametrize("name", COMMANDS)
    def test_celery_has_the_command(self, site: Site, name: str) -> None:
        site.channel()
        assert control.Panel.data[name].extends_celery
        assert control.Panel.data[name].__wrapped__.__module__ == "celery.worker.control"

    def test_what_celery_says_of_a_command_stays(self, site: Site) -> None:
        site.channel()
        assert control.Panel.meta["revoke"].type == "control"
        assert control.Panel.meta["revoke"].variadic == "task_id"
        assert control.Panel.meta["revoke"].help.startswith("Revoke task by task id")
        assert control.Panel.meta["scheduled"].type == "inspect"
        assert control.Panel.data["dump_schedule"] is control.Panel.data["scheduled"]

    def test_once_is_enough(self, site: Site) -> None:
        site.channel()
        before = dict(control.Panel.data)
        remote_control.extend()
        assert dict(control.Panel.data) == before

    def test_no_celery_is_imported_where_there_is_none(self, site: Site) -> None:
        code = f"""
import sys
import kombu_redisdelay
from kombu import Connection
with Connection({site.url!r}) as connection:
    connection.channel()
sys.exit("celery" in sys.modules)
"""
        subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@pytest.mark.one_server
@pytest.mark.parametrize("arguments", [{"task_id": "id"}, {"task_id": ["id"], "terminate": True}])
def test_another_broker_changes_nothing(app: Celery, arguments: dict[str, Any], site: Site) -> None:
    site.channel()
    with Connection("memory://") as connection:
        worker = worker_state(app, connection.channel())
        assert "ok" in control.Panel.data["revoke"](worker, **arguments)
        assert control.Panel.data["scheduled"](worker) == []
        assert control.Panel.data["query_task"](worker, "id") == {}
    for without in (worker_state(app, None), worker_state(app, object())):
        assert control.Panel.data["scheduled"](without) == []
        assert control.Panel.data["query_task"](without, "id") == {}


@pytest.mark.parametrize("ids", ["a", ["a", "b"]])
def test_revoke(site: Site, app: Celery, ids: Any) -> None:
    channel = site.channel()
    schedule(channel, "a", "b", "c")
    Inbox(channel)
    control.Panel.data["revoke"](worker_state(app, channel), ids)
    wait_until(lambda: site.scheduled() == 3 - len(ids), 30, "out of the schedule")
    # No worker that knows the task was needed for that.
    wait_until(lambda: app.AsyncResult("a").state == "REVOKED", 30, "marked")
    assert app.AsyncResult("c").state == "PENDING"


def test_an_id_that_utf_8_cannot_say_is_taken_out_with_the_others(
    site: Site, app: Celery, caplog: pytest.LogCaptureFixture
) -> None:
    # Celery warns of this id as it is. pytest-xdist ends when a report has such a character.
    caplog.set_level(logging.ERROR, logger="celery.worker.control")
    channel = site.channel()
    schedule(channel, "a", "\ud800", "b", "c")
    Inbox(channel)
    control.Panel.data["revoke"](worker_state(app, channel), ["a", "\ud800", "b"])
    wait_until(lambda: site.scheduled() == 1, 30, "out of the schedule")
    wait_until(lambda: app.AsyncResult("b").state == "REVOKED", 30, "marked")


@pytest.mark.parametrize("task", ["known", "unknown"])
def test_who_waits_by_rpc_learns_of_it(site: Site, task: str) -> None:
    app = Celery("worker", set_as_current=False, broker=site.url, backend="rpc://")

    @app.task(name="known", shared=False)
    def known() -> None:
        pass

    channel = site.channel()
    message = {"headers": {"id": "a", "task": task, "x-delay": HOUR_MS}, "serializer": "json"}
    publish(channel, [[], {}, {}], reply_to="client", correlation_id="a", **message)  # type: ignore[arg-type]
    Inbox(channel)
    control.Panel.data["revoke"](worker_state(app, channel), "a")
    listening = site.channel()
    client = Inbox(listening, "client")
    drain(listening.connection.client, lambda: len(client))
    assert client.messages[0].payload["status"] == "REVOKED"
    assert client.messages[0].properties["correlation_id"] == "a"
    app.close()


@pytest.mark.parametrize("headers", [{"customer": {"Ada"}}, ["customer=Ada"]])
def test_revoke_by_stamped_headers(site: Site, app: Celery, headers: Any) -> None:
    channel = site.channel()
    schedule(channel, "a", stamped_headers=["customer"], stamps={"customer": "Ada"})
    schedule(channel, "b", stamped_headers=["customer"], stamps={"customer": "Bob"})
    schedule(channel, "c", stamped_headers=None, stamps={})
    schedule(channel, "d", stamped_headers=["customer"], stamps=None)
    Inbox(channel)
    control.Panel.data["revoke_by_stamped_headers"](worker_state(app, channel), headers)
    wait_until(lambda: site.scheduled() == 3, 30, "out of the schedule")
    wait_until(lambda: app.AsyncResult("a").state == "REVOKED", 30, "marked")


def test_while_redis_is_away_it_is_tried_again(
    site: Site, app: Celery, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(revoker, "PAUSE", 0.01)
    failures = iter([RedisConnectionError("away"), RedisConnectionError("away")])
    by_ids = Withdrawal.by_ids

    def failing(self: Withdrawal, queue: str, ids: Any) -> Iterator[bytes]:
        failure = next(failures, None)
        if failure is not None:
            raise failure
        return by_ids(self, queue, ids)

    monkeypatch.setattr(Withdrawal, "by_ids", failing)
    channel = site.channel()
    schedule(channel, "a")
    Inbox(channel)
    control.Panel.data["revoke"](worker_state(app, channel), "a")
    wait_until(lambda: site.scheduled() == 0, 30, "out of the schedule")


def test_what_cannot_be_announced_does_not_stop_the_others(
    site: Site, app: Celery, caplog: pytest.LogCaptureFixture
) -> None:
    channel = site.channel()
    publish(channel, "no task", headers={"id": "a", "x-delay": HOUR_MS})
    schedule(channel, "b")
    Inbox(channel)
    with caplog.at_level(logging.WARNING):
        control.Panel.data["revoke"](worker_state(app, channel), ["a", "b"])
        wait_until(lambda: site.scheduled() == 0, 30, "out of the schedule")
        wait_until(lambda: not channel.revoker._is_running, 30, "the thread has ended")
    assert caplog.text.count("could not announce it") == 1
    assert app.AsyncResult("b").state == "REVOKED"


def test_one_connection_serves_many_revokes_and_is_closed(site: Site, app: Celery) -> None:
    channel = site.channel()
    ids = [f"id{number}" for number in range(100)]
    schedule(channel, *ids)
    Inbox(channel)
    worker = worker_state(app, channel)
    for id in ids:
        control.Panel.data["revoke"](worker, id)
    wait_until(lambda: site.scheduled() == 0, 30, "out of the schedule")
    wait_until(lambda: not channel.revoker._is_running, 30, "the thread has ended")


def test_scheduled_shows_tasks_only(site: Site, app: Celery) -> None:
    channel = site.channel()
    publish(channel, "no task", headers={"x-delay": HOUR_MS // 2})
    schedule(channel, "a", shadow="another name")
    Inbox(channel)
    [task] = control.Panel.data["scheduled"](worker_state(app, channel))
    assert (task["request"]["id"], task["request"]["name"]) == ("a", "another name")


class TestQueryTask:
    @pytest.mark.parametrize("ids", ["a", ["b", "nosuch", "a"], ["a", None, 1]])
    def test_finds_scheduled_tasks(self, site: Site, app: Celery, ids: Any) -> None:
        channel = site.channel()
        publish(channel, "no task", headers={"id": "b", "x-delay": HOUR_MS})
        schedule(channel, "a", "c", task="shop.remind")
        Inbox(channel)
        [(id, (state, task))] = control.Panel.data["query_task"](worker_state(app, channel), ids).items()
        assert (id, state, task["id"], task["name"]) == ("a", "scheduled", "a", "shop.remind")

    def test_what_the_worker_has_is_told_by_celery(self, site: Site, app: Celery) -> None:
        channel = site.channel()
        schedule(channel, "a")
        Inbox(channel)
        request = SimpleNamespace(id="a", info=lambda: "Celery's")
        state.requests["a"] = request
        try:
            [told] = control.Panel.data["query_task"](worker_state(app, channel), ["a"]).values()
        finally:
            del state.requests["a"]
        assert told == ("ready", "Celery's")

    def test_stops_at_large_messages(self, site: Site, app: Celery) -> None:
        channel = site.channel()
        schedule(channel, *"abcdefgh", large="x" * 100_000)
        Inbox(channel)
        assert len(control.Panel.data["query_task"](worker_state(app, channel), list("abcdefgh"))) == 3


def test_scheduled_stops_at_large_messages(site: Site, app: Celery) -> None:
    channel = site.channel()
    schedule(channel, *"abcdefgh", large="x" * 100_000)
    Inbox(channel)
    assert len(control.Panel.data["scheduled"](worker_state(app, channel))) == 3


@pytest.mark.parametrize("name", HURRIED)
def test_what_celery_leaves_to_its_loop_ends_the_poll(site: Site, app: Celery, name: str) -> None:
    channel = site.channel()
    Inbox(channel)
    given = worker_state(app, channel)
    left: list[Any] = []
    given.consumer.call_soon = lambda *args, **kwargs: left.append(args)
    given.consumer.add_task_queue = given.consumer.cancel_task_queue = print
    control.Panel.data[name](given, "another")
    assert [args[:2] for args in left] == [(print, "another")]
    # Without it, this raises TimeoutError when the time is over.
    channel.connection.client.drain_events(timeout=30)
