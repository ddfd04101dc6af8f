"""``redis://`` and ``sentinel://`` in a process that has them use this transport."""

from __future__ import annotations

import logging

import pytest
from celery import Celery
from kombu.connection import Connection
from kombu.transport import redis as stock

from kombu_redisdelay import Transport
from kombu_redisdelay.operations.access import Access
from kombu_redisdelay.operations.doctor import examine
from tests.transport.kit import publish
from tools.harness.redis_server import RedisServer


@pytest.fixture
def url(server: RedisServer, taken_over: None) -> str:
    return server.url("redis")


def test_the_options_of_redis_hold(server: RedisServer, url: str) -> None:
    options = {"sep": ":", "priority_steps": [0, 4, 8], "global_keyprefix": "app:"}
    with Connection(url, transport_options=options) as connection:
        assert isinstance(connection.transport, Transport)
        channel = connection.default_channel
        publish(channel, "now", priority=5)
        publish(channel, "later", priority=8, headers={"x-delay": 60_000})
        with server.client() as client:
            assert client.llen("app:q:4") == 1
            [stored] = client.hvals("app:redisdelay:{q}:messages")
        assert stored.startswith(b"8:")
        assert channel.basic_get("q").payload == "now"


@pytest.mark.parametrize(("given", "used"), [(None, 60), (86_400, 60), (5, 5)])
def test_the_lease_is_no_longer_than_ours(url: str, given: float | None, used: float) -> None:
    """Airflow sets a day for ``redis://``: for so long, what a lost machine held would stay away."""
    options = {} if given is None else {"visibility_timeout": given}
    with Connection(url, transport_options=options) as connection:
        assert connection.default_channel.options.visibility_timeout == used


def test_ours_keep_what_was_set(server: RedisServer, taken_over: None) -> None:
    with Connection(server.url(), transport_options={"visibility_timeout": 120}) as connection:
        assert connection.default_channel.options.visibility_timeout == 120


def test_a_unix_socket(server: RedisServer, url: str) -> None:
    with Connection(f"redis+socket://{server.socket}") as connection:
        publish(connection.default_channel, "a", headers={"x-delay": 60_000})
        assert isinstance(connection.transport, Transport)
    with server.client() as client:
        assert client.zcard("redisdelay:{q}:schedule") == 1


def test_the_log_says_so_once(url: str, server: RedisServer, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    for broker in (url, url, server.url()):
        with Connection(broker) as connection:
            connection.default_channel.client.ping()
    [line] = [line for line in caplog.messages if "use kombu-redisdelay in this process" in line]
    assert line.startswith("Brokers with a redis:// URL")


def test_doctor_says_so(url: str, server: RedisServer) -> None:
    app = Celery("shop", broker=url, backend=url, set_as_current=False)
    app.conf.broker_transport_options = {"visibility_timeout": 86_400}
    with Access(app) as access:
        [found] = [finding for finding in examine(access) if finding.check == "broker URL"]
    assert found.found.startswith("redis:// uses this transport in this process")
    assert "86400 seconds is meant for kombu's" in found.found
    with Access(server.url()) as access:
        assert not any(finding.check == "broker URL" for finding in examine(access))


def test_off_by_default(server: RedisServer) -> None:
    with Connection(server.url("redis")) as connection:
        assert type(connection.transport) is stock.Transport
