"""The URL, the options, and what is said when something is wrong with them."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from kombu.connection import Connection
from redis.exceptions import ConnectionError as RedisConnectionError

from kombu_redisdelay import Queues
from kombu_redisdelay.transport.settings import unknown_options
from tests.transport.kit import Inbox, drain, publish
from tools.harness.redis_server import HOST
from tools.harness.sentinel import MASTER, PASSWORD, Sentinel, SentinelSite, go_on, pause

OPTIONS = {"master_name": MASTER}


def connect(url: str, **options: Any) -> Any:
    """Connect once, without trying again."""
    connection = Connection(url, transport_options={**OPTIONS, **options})
    try:
        connection.ensure_connection(max_retries=1, interval_start=0, reraise_as_library_errors=False)
    except BaseException:
        connection.release()
        raise
    return connection


@pytest.mark.parametrize("scheme", ["redisdelay-sentinel", "sentinel"])
def test_a_message_goes_through_the_database_of_the_url(
    sentinels: SentinelSite, taken_over: None, scheme: str
) -> None:
    """The first address has the password, and the last one the database: kombu reads the first one only."""
    with connect(sentinels.url(scheme, db=3)) as connection:
        channel = connection.channel()
        publish(channel, "now")
        publish(channel, "later", headers={"x-delay": 200})
        with sentinels.client(db=3) as client:
            assert client.llen("q") == 1
        inbox = Inbox(channel)
        drain(connection, lambda: len(inbox) == 2)
        assert inbox.bodies == ["now", "later"]
        assert channel._get_publish_topic("broadcast", "") == "/3.broadcast"


def test_one_address_is_enough(sentinels: SentinelSite) -> None:
    url = f"redisdelay-sentinel://:{PASSWORD}@{HOST}:{sentinels.sentinels[0].port}/3"
    with connect(url) as connection:
        publish(connection.channel(), "a")
    with sentinels.client(db=3) as client:
        assert client.llen("q") == 1


def test_an_operator_hears_which_server_is_the_primary(sentinels: SentinelSite) -> None:
    connection = Connection(sentinels.url(), transport_options=OPTIONS)
    with Queues(connection) as queues:
        [server] = queues.store.server.servers()
        port = sentinels.primary().port
        assert server.address == f"{HOST}:{port}"
        assert server.info("server")["tcp_port"] == port


def test_a_command_that_opens_a_connection_asks_where_the_primary_is(sentinels: SentinelSite) -> None:
    """redis-py does not, from 6.0 on: it connects to where it was before, and to localhost at first."""
    with connect(sentinels.url()) as connection:
        unopened = connection.channel()._get_pool().make_connection()
        unopened.send_command("PING")
        assert unopened.read_response() in (b"PONG", "PONG")
        assert (unopened.host, unopened.port) == (HOST, sentinels.primary().port)
        unopened.disconnect()


def test_a_clone_has_all_addresses(sentinels: SentinelSite) -> None:
    with connect(sentinels.url()) as connection, connection.clone() as clone:
        assert len(clone.transport.addresses) == 3
        publish(clone.channel(), "a")


@pytest.mark.parametrize("kind", ["as_uri", "repr", "error"])
def test_the_password_is_told_to_nobody(sentinels: SentinelSite, kind: str) -> None:
    secret = "wr0ng"
    url = sentinels.url().replace(PASSWORD, secret)
    with Connection(url, transport_options=OPTIONS) as connection:
        if kind == "error":
            with pytest.raises(RedisConnectionError) as raised:
                connect(url)
            assert secret not in str(raised.value)
        else:
            assert secret not in {"as_uri": connection.as_uri(), "repr": repr(connection)}[kind]


@pytest.mark.parametrize(
    ("first", "second", "said"),
    [
        (":a@h1:1/0", ":b@h2:1", "more than one password"),
        ("a:x@h1:1/0", "b:x@h2:1", "more than one user"),
        ("h1:1/0", "h2:1/1", "more than one database"),
    ],
)
def test_urls_that_contradict_each_other(first: str, second: str, said: str) -> None:
    url = f"redisdelay-sentinel://{first};redisdelay-sentinel://{second}"
    with pytest.raises(ValueError, match=said):
        connect(url)


@pytest.mark.parametrize("second", ["h2:26379", "sentinel://h2:26379", "redisdelays-sentinel://h2:26379"])
def test_another_scheme_behind_the_first(second: str) -> None:
    with pytest.raises(ValueError, match="each sentinel begins with the same redisdelay-sentinel://"):
        connect(f"redisdelay-sentinel://h1:26379;{second}")


class TestWrongUse:
    @pytest.mark.parametrize("name", [None, ""])
    def test_no_master_name(self, sentinels: SentinelSite, name: str | None) -> None:
        with pytest.raises(ValueError, match="'master_name' is missing"):
            connect(sentinels.url(), master_name=name)

    def test_another_master_name(self, sentinels: SentinelSite) -> None:
        """The same sentinels are a broker that has worked, but not by this name: nobody waits for it."""
        connect(sentinels.url()).release()
        with pytest.raises(RedisConnectionError, match=f"knows no primary of that name.*only '{MASTER}'"):
            connect(sentinels.url(), master_name="yours")
        connect(sentinels.url()).release()

    def test_too_few_other_sentinels(self, sentinels: SentinelSite) -> None:
        with pytest.raises(RedisConnectionError, match=r"knows 2 other.*min_other_sentinels is 3"):
            connect(sentinels.url(), min_other_sentinels=3)

    def test_no_sentinel_is_there(self) -> None:
        with pytest.raises(RedisConnectionError, match=f"no sentinel knows where the primary '{MASTER}' is"):
            connect("redisdelay-sentinel://127.0.0.1:1;redisdelay-sentinel://127.0.0.1:2")

    def test_a_server_that_is_no_sentinel(self, sentinels: SentinelSite) -> None:
        url = f"redisdelay-sentinel://:{PASSWORD}@{HOST}:{sentinels.servers[0].port}"
        options = {"sentinel_kwargs": {"password": PASSWORD}}
        with pytest.raises(ValueError, match="not a sentinel but a Redis server"):
            connect(url, **options)

    def test_one_of_them_is_a_server_and_the_other_is_away(self, sentinels: SentinelSite) -> None:
        """The one that is away may come back."""
        url = f"redisdelay-sentinel://{HOST}:{sentinels.servers[0].port};redisdelay-sentinel://{HOST}:1"
        options = {"sentinel_kwargs": {"password": PASSWORD}}
        with pytest.raises(RedisConnectionError, match="not a sentinel but a Redis server"):
            connect(url, **options)

    @pytest.mark.parametrize(
        ("option", "value", "said"),
        [
            ("sentinel_kwargs", {"passwrd": "s3cret"}, "has 'passwrd'.* Did you mean 'password'"),
            ("sentinel_kwargs", {"host": "s3cret"}, "has 'host', which is no option of redis-py$"),
            ("sentinel_kwargs", ["s3cret"], "must be a dict"),
            ("min_other_sentinels", "1", "whole number from 0, not '1'"),
            ("master_name", 5, "must be a text, not 5"),
        ],
    )
    def test_a_wrong_option_is_named(
        self, sentinels: SentinelSite, option: str, value: Any, said: str
    ) -> None:
        with pytest.raises(ValueError, match=said) as raised:
            connect(sentinels.url(), **{option: value})
        assert repr(option) in str(raised.value)
        assert "s3cret" not in str(raised.value)

    def test_a_database_that_is_not_there(self, sentinels: SentinelSite) -> None:
        with pytest.raises(ValueError, match="no such database"):
            connect(sentinels.url(db=99))

    def test_a_sentinel_that_is_taken_for_a_server(self, sentinels: SentinelSite) -> None:
        with pytest.raises(ValueError, match="a sentinel, not a Redis server"):
            connect(f"redisdelay://{HOST}:{sentinels.sentinels[0].port}/0")

    def test_a_sentinel_without_tls(self, sentinels: SentinelSite) -> None:
        url = f"redisdelays-sentinel://{HOST}:{sentinels.sentinels[0].port}"
        options = {"sentinel_kwargs": {"socket_timeout": 0.3, "socket_connect_timeout": 0.3}}
        with pytest.raises(RedisConnectionError, match="looks like a server without TLS"):
            connect(url, **options)

    def test_misspelt_options(self) -> None:
        wrong = {"master_nam": "m", "sentinel_kwarg": {}, "confirm_replica": 1}
        assert unknown_options(wrong) == {
            "master_nam": "master_name",
            "sentinel_kwarg": "sentinel_kwargs",
            "confirm_replica": "confirm_replicas",
        }


@pytest.mark.parametrize("harm", ["gone", "silent"])
def test_the_first_sentinel_is_not_needed(sentinels: SentinelSite, harm: str) -> None:
    first = sentinels.sentinels[0]
    if harm == "silent":
        pause(first)
    try:
        url = sentinels.url() if harm == "silent" else sentinels.url().replace(f":{first.port};", ":1;")
        with connect(url) as connection:
            publish(connection.channel(), "a")
    finally:
        go_on(first)


@pytest.mark.parametrize("password", ["right", "wrong"])
def test_sentinels_with_a_password(sentinels: SentinelSite, password: str) -> None:
    primary = sentinels.primary()
    with Sentinel(primary, requirepass="right") as sentinel:
        url = f"redisdelay-sentinel://:{PASSWORD}@{HOST}:{sentinel.port}/0"
        options = {"sentinel_kwargs": {"password": password}}
        if password == "right":
            with connect(url, **options) as connection:
                publish(connection.channel(), "a")
        else:
            with pytest.raises(RedisConnectionError, match="no sentinel knows") as raised:
                connect(url, **options)
            assert "wrong" not in str(raised.value).replace("wrong password", "")


@pytest.mark.parametrize(
    ("scheme", "said", "servers", "sentinels"),
    [
        ("redisdelay-sentinel", None, False, False),
        ("redisdelay-sentinel", True, True, False),
        ("redisdelays-sentinel", None, True, True),
    ],
)
def test_who_is_spoken_to_over_tls(
    scheme: str, said: bool | None, servers: bool, sentinels: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with kombu's sentinel://, ``broker_use_ssl`` is about the servers."""
    transport: Any = Connection(f"{scheme}://localhost", ssl=said, transport_options=OPTIONS).transport
    monkeypatch.setattr(transport.Channel, "__init__", lambda self, connection: None)
    channel = transport.Channel(transport)
    channel.connection, channel.master_name, channel.keyprefix_fanout = transport, MASTER, ""
    pool = channel._get_pool()
    assert issubclass(pool.connection_class, channel.connection_class_ssl) is servers
    [(_, client)] = channel._sentinels._clients
    assert ("ssl_check_hostname" in client.connection_pool.connection_kwargs) is sentinels


def test_no_connection_to_a_sentinel_is_left(sentinels: SentinelSite) -> None:
    """kombu leaves one for each channel (celery/kombu#1108)."""
    with connect(sentinels.url()) as connection:
        channel = connection.channel()
        publish(channel, "a")
        [[address, client], *_] = channel._sentinels._clients
        kept = client.connection_pool._available_connections
        assert [one._sock is not None for one in kept] == [True], address
    assert [one._sock is not None for one in kept] == [False]


def test_options_of_kombu_are_read(sentinels: SentinelSite, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING), connect(sentinels.url(), sentinel_kwargs={}) as connection:
        connection.channel()
    assert caplog.text == ""
