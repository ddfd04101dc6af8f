"""What the API can be opened on."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from typing import Any

import pytest
from celery import Celery
from kombu.connection import Connection
from kombu.entity import Queue
from redis.exceptions import RedisError

from kombu_redisdelay import Messages, Selection
from kombu_redisdelay.broker.keys import known_queues
from kombu_redisdelay.operations.access import Access
from tests.failed import keep_failed
from tests.finished import OF_MESSAGES
from tests.transport.kit import Site, publish
from tools.harness.process import wait_until
from tools.harness.redis_server import RedisServer


def publish_later(site: Site, **options: object) -> None:
    publish(site.channel(**options), "later", headers={"x-delay": 60_000})


def test_a_url(site: Site) -> None:
    publish_later(site)
    with Messages(site.url) as delayed:
        assert delayed.count() == 1
        assert delayed.app is None


def test_an_app_with_its_options(site: Site, app: Celery) -> None:
    publish_later(site, global_keyprefix="app:")
    app.conf.broker_transport_options = {"global_keyprefix": "app:"}
    with Messages(app) as delayed:
        assert delayed.queues() == ["q"]
        assert delayed.count() == 1
        assert delayed.app is app


def test_a_connection_is_left_alone(site: Site) -> None:
    publish_later(site, global_keyprefix="app:", priority_steps=[0, 5], sep=":")
    connection = site.connect(global_keyprefix="app:", priority_steps=[0, 5], sep=":")
    with Messages(connection) as delayed:
        assert delayed.count() == 1
        assert (delayed.store.prefix, delayed.store.steps, delayed.store.separator) == ("app:", (0, 5), ":")
    assert not connection.connected
    connection.connect()
    with Messages(connection):
        pass
    assert connection.connected


def test_a_unix_socket_and_a_password() -> None:
    with RedisServer(requirepass="pass word/") as server:
        with Messages(server.url()) as delayed:
            assert delayed.count() == 0
        with Messages(f"redisdelay+socket://:pass%20word%2F@{server.socket}") as delayed:
            assert delayed.count() == 0
        with pytest.raises(RedisError):
            Messages(server.url().replace("pass", "fail"))


def test_several_threads(site: Site, delayed: Messages) -> None:
    publish_later(site)
    counts: list[int] = []
    threads = [
        threading.Thread(target=lambda: counts.extend(delayed.count() for _ in range(50))) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counts == [1] * 400


def test_closed_twice_and_used_by_nobody_else(site: Site) -> None:
    def clients() -> set[str]:
        return {client["id"] for client in site.redis.client_list()}

    # The server may still list the connections of an earlier test.
    before = clients()
    delayed = Messages(site.url)
    assert delayed.count() == 0
    delayed.close()
    delayed.close()
    wait_until(lambda: clients() <= before, 30, "the server still lists a connection")


@pytest.mark.parametrize(
    "use",
    [
        lambda delayed: delayed.queues(),
        lambda delayed: delayed.count(),
        lambda delayed: delayed.count(Selection(state="scheduled", queue="q")),
        lambda delayed: delayed.select(Selection(state="scheduled", queue="q")),
        lambda delayed: delayed.cancel(ids=["later"]),
        lambda delayed: delayed.reschedule(ids=["later"], countdown=1),
        lambda delayed: delayed.deliver_now(Selection(state="scheduled", queue="q")),
        lambda delayed: delayed.cancel(Selection(state="scheduled")),
        lambda delayed: delayed.store,
        lambda delayed: delayed.__enter__(),
    ],
)
def test_what_is_closed_is_not_used(site: Site, use: Callable[[Messages], object]) -> None:
    publish_later(site)
    with Messages(site.url) as delayed:
        assert delayed.count() == 1
    with pytest.raises(ValueError, match=r"^this Messages is closed$"):
        use(delayed)


@pytest.mark.parametrize("state", OF_MESSAGES)
def test_an_iteration_ends_when_it_is_closed(site: Site, state: str) -> None:
    channel = site.channel(dead_letter=True)
    for _ in range(3):
        publish(channel, "dead")
        channel.basic_get("q").reject()
    with Messages(site.url) as messages:
        for id in "abc":
            keep_failed(messages.store, "q", id, b"{}")
    publish(channel, *"abc")
    taken = [channel.basic_get("q") for _ in "abc"]
    assert all(taken)
    publish(channel, "1", "2", "3")
    publish(channel, "1", "2", "3", headers={"x-delay": 60_000})
    messages = Messages(site.url)
    begun, unread = (messages.select(Selection(state=state)) for _ in range(2))
    next(begun)
    messages.close()
    with pytest.raises(ValueError, match=r"^this Messages is closed$"):
        list(begun)
    with pytest.raises(ValueError, match=r"^this Messages is closed$"):
        next(unread)


def test_closed_by_another_thread(site: Site) -> None:
    publish_later(site)
    delayed, ended = Messages(site.url), []

    def look() -> None:
        try:
            while True:
                delayed.count()
        except Exception as exc:
            ended.append(exc)

    threads = [threading.Thread(target=look) for _ in range(4)]
    for thread in threads:
        thread.start()
    wait_until(lambda: delayed.count() == 1, 30, "an answer")
    delayed.close()
    for thread in threads:
        thread.join()
    assert [str(exc) for exc in ended] == ["this Messages is closed"] * 4


@pytest.mark.parametrize(
    ("routes", "queues"),
    [
        (None, []),
        ({"a": {"queue": "x"}, "b.*": "y", re.compile("c"): {"queue": Queue("z")}}, ["x", "y", "z"]),
        (([("a", {"queue": "x"}), ("b", "y")], {"c": {"queue": "z"}}), ["x", "y", "z"]),
        ([{"a": {"queue": "x"}}, lambda name, *args, **kwargs: None, "no.such.router"], ["x"]),
        ({"a": {"exchange": "x"}, "b": {"routing_key": "y"}}, []),
        (lambda name, *args, **kwargs: {"queue": "x"}, []),
        ("no.such.router", []),
    ],
)
def test_queues_that_routes_name_are_declared(app: Celery, routes: Any, queues: list[str]) -> None:
    app.conf.task_routes = routes
    with Access(app) as access:
        assert access.declared_queues == ["celery", *queues]
        assert access.queues() == []
    with Access(app.broker_connection()) as access:
        assert access.declared_queues == []


def test_what_is_ready_in_a_queue_that_only_a_route_names(app: Celery) -> None:
    app.conf.task_routes = {"mail.*": {"queue": "emails"}}
    id = app.send_task("mail.send").id
    with Messages(app) as queues:
        # As if a stock producer had published it.
        queues.store.server.call("DEL", known_queues(""))
        assert queues.queues() == []
        assert [message.id for message in queues.select()] == [id]
        assert queues.cancel(ids=[id]).count == 1


def test_a_misspelt_scheme_is_an_error() -> None:
    app = Celery(broker="redis-delay://localhost:1", set_as_current=False)
    for broker in (app, "redis-delay://localhost:1"):
        with pytest.raises(ValueError, match="No such transport: redis-delay"):
            Access(broker)


@pytest.mark.parametrize(
    "broker", [Connection("memory://"), "memory://", "redis://localhost:1", Celery(broker="memory://")]
)
def test_another_transport_is_a_type_error(broker: object) -> None:
    with pytest.raises(TypeError, match="redisdelay://"):
        Access(broker)


@pytest.mark.parametrize("broker", [None, 1, b"redisdelay://", object()])
def test_anything_else_is_a_type_error(broker: object) -> None:
    with pytest.raises(TypeError, match="Celery app"):
        Access(broker)


def test_a_password_is_not_told() -> None:
    with pytest.raises(TypeError) as raised:
        Access("redis://:secret@localhost")
    assert "secret" not in str(raised.value)


def test_a_server_that_is_not_there_is_said_at_once() -> None:
    with pytest.raises((RedisError, OSError)):
        Messages("redisdelay://127.0.0.1:1")


def test_a_password_is_shown_where_there_is_one() -> None:
    with RedisServer() as server, Access(server.url()) as access:
        assert access.address.startswith("redisdelay://127.0.0.1:")
    with RedisServer(requirepass="secret") as server, Access(server.url()) as access:
        assert access.address.startswith("redisdelay://:**@")
    with pytest.raises(TypeError, match=r"not a redisdelay:// broker: redis://\. Have the app's "):
        Access("redis://localhost")
