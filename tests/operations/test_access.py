"""What the API can be opened on."""

from __future__ import annotations

import threading

import pytest
from celery import Celery
from kombu.connection import Connection
from redis.exceptions import RedisError

from harness.process import wait_until
from harness.redis_server import RedisServer
from kombu_redisdelay import DelayedMessages
from kombu_redisdelay.operations.access import Access
from tests.transport.kit import Site, publish


def publish_later(site: Site, **options: object) -> None:
    publish(site.channel(**options), "later", headers={"x-delay": 60_000})


def test_a_url(site: Site) -> None:
    publish_later(site)
    with DelayedMessages(site.url) as delayed:
        assert delayed.count() == 1
        assert delayed.app is None


def test_an_app_with_its_options(site: Site, app: Celery) -> None:
    publish_later(site, global_keyprefix="app:")
    app.conf.broker_transport_options = {"global_keyprefix": "app:"}
    with DelayedMessages(app) as delayed:
        assert delayed.queues() == ["q"]
        assert delayed.count() == 1
        assert delayed.app is app


def test_a_connection_is_left_alone(site: Site) -> None:
    publish_later(site, global_keyprefix="app:", priority_steps=[0, 5], sep=":")
    connection = site.connect(global_keyprefix="app:", priority_steps=[0, 5], sep=":")
    with DelayedMessages(connection) as delayed:
        assert delayed.count() == 1
        assert (delayed.store.prefix, delayed.store.steps, delayed.store.separator) == ("app:", (0, 5), ":")
    assert not connection.connected
    connection.connect()
    with DelayedMessages(connection):
        pass
    assert connection.connected


def test_a_unix_socket_and_a_password() -> None:
    with RedisServer(requirepass="pass word/") as server:
        with DelayedMessages(server.url()) as delayed:
            assert delayed.count() == 0
        with DelayedMessages(f"redisdelay+socket://:pass%20word%2F@{server.socket}") as delayed:
            assert delayed.count() == 0
        with pytest.raises(RedisError):
            DelayedMessages(server.url().replace("pass", "fail"))


def test_several_threads(site: Site, delayed: DelayedMessages) -> None:
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
    delayed = DelayedMessages(site.url)
    assert delayed.count() == 0
    delayed.close()
    delayed.close()
    wait_until(lambda: clients() <= before, 10, "the server still lists a connection")


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
        DelayedMessages("redisdelay://127.0.0.1:1")


def test_a_password_is_shown_where_there_is_one() -> None:
    with RedisServer() as server, Access(server.url()) as access:
        assert access.address.startswith("redisdelay://127.0.0.1:")
    with RedisServer(requirepass="secret") as server, Access(server.url()) as access:
        assert access.address.startswith("redisdelay://:**@")
    with pytest.raises(TypeError, match=r"not a redisdelay:// broker: redis://$"):
        Access("redis://localhost")
