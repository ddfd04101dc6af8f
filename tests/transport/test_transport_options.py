"""kombu's transport options, ours, and the kinds of URL."""

from __future__ import annotations

import ssl
import threading

import pytest
from kombu.connection import Connection
from redis.exceptions import ConnectionError as RedisConnectionError

from kombu_redisdelay.urls import is_unverified
from tests.transport.kit import Inbox, Site, drain, drain_for, publish
from tools.harness.redis_server import HOST, RedisServer


class TestQueueOrder:
    def bodies(self, site: Site, strategy: str) -> list[str]:
        channel = site.channel(queue_order_strategy=strategy, max_batch=5)
        for queue in ("b", "c", "a"):
            publish(channel, *(f"{queue}{n}" for n in range(3)), queue=queue)
        inbox = Inbox(channel, "b", "c", "a")
        drain(channel.connection.client, lambda: len(inbox) == 9)
        return inbox.bodies

    def test_priority_is_the_order_given(self, site: Site) -> None:
        expected = ["b0", "b1", "b2", "c0", "c1", "c2", "a0", "a1", "a2"]
        assert self.bodies(site, "priority") == expected

    def test_sorted(self, site: Site) -> None:
        assert self.bodies(site, "sorted") == ["a0", "a1", "a2", "b0", "b1", "b2", "c0", "c1", "c2"]

    @pytest.mark.one_server
    def test_round_robin_is_fair(self, site: Site) -> None:
        bodies = self.bodies(site, "round_robin")
        for turn in range(3):
            assert {body[0] for body in bodies[3 * turn : 3 * turn + 3]} == {"a", "b", "c"}


class TestPriority:
    def test_lists_are_those_of_kombu(self, site: Site) -> None:
        channel = site.channel()
        for priority in range(10):
            publish(channel, str(priority), priority=priority)
        lengths = [site.redis.llen(site.keys().ready_at(step)) for step in (0, 3, 6, 9)]
        assert lengths == [3, 3, 3, 1]
        inbox = Inbox(channel)
        drain(channel.connection.client, lambda: len(inbox) == 10)
        assert inbox.bodies == [str(n) for n in range(10)]

    def test_custom_steps_and_separator(self, site: Site) -> None:
        channel = site.channel(priority_steps=[0, 5], sep=":")
        publish(channel, "low", priority=7)
        publish(channel, "later", priority=9, headers={"x-delay": 100})
        publish(channel, "high", priority=4)
        assert (site.ready(), site.redis.llen(site.keys().ready + ":5")) == (1, 1)
        inbox = Inbox(channel)
        drain(channel.connection.client, lambda: len(inbox) == 3)
        assert inbox.bodies == ["high", "low", "later"]


class TestWithoutAckEmulation:
    def test_nothing_is_held(self, site: Site) -> None:
        channel = site.channel(ack_emulation=False)
        publish(channel, "a", "b", "c")
        inbox = Inbox(channel, prefetch=2)
        connection = channel.connection.client
        drain(connection, lambda: len(inbox) == 2)
        drain_for(connection, 0.1)
        assert (len(inbox), site.unacked()) == (2, 0)
        inbox.messages[0].ack()
        drain(connection, lambda: len(inbox) == 3)

    def test_close_gives_back(self, site: Site) -> None:
        channel = site.channel(ack_emulation=False)
        publish(channel, "a", "b")
        inbox = Inbox(channel)
        drain(channel.connection.client, lambda: len(inbox) == 1)
        channel.close()
        assert site.ready() == 2

    def test_given_back_does_not_wait_again(self, site: Site) -> None:
        channel = site.channel(ack_emulation=False)
        publish(channel, "a", headers={"x-delay": 100})
        inbox = Inbox(channel)
        drain(channel.connection.client, lambda: len(inbox) == 1)
        inbox.messages[0].requeue()
        assert (site.ready(), site.scheduled()) == (1, 0)


def test_polling_interval(site: Site) -> None:
    channel = site.channel(polling_interval=0.1)
    publish(channel, "a")
    publish(channel, "later", headers={"x-delay": 300})
    inbox = Inbox(channel)
    drain(channel.connection.client, lambda: len(inbox) == 2, timeout=30)


@pytest.mark.parametrize(
    ("name", "value"), [("visibility_timeout", 0), ("delivery_limit", "20"), ("max_batch", 501)]
)
def test_a_value_out_of_range_is_said_at_connect(site: Site, name: str, value: object) -> None:
    with pytest.raises(ValueError, match=f"'{name}'.*{value!r}"):
        site.channel(**{name: value})


@pytest.mark.one_server
def test_unix_socket(site: Site, server: RedisServer) -> None:
    channel = site.connect(f"redisdelay+socket://{server.socket}").channel()
    publish(channel, "a", headers={"x-delay": 50})
    inbox = Inbox(channel)
    drain(channel.connection.client, lambda: len(inbox) == 1)
    assert [client for client in site.redis.client_list() if str(server.socket) in client["addr"]]


def test_the_health_check_reaches_the_connection(site: Site) -> None:
    """kombu leaves it out where it does not see that the class of the connection takes it."""
    channel = site.channel(health_check_interval=7)
    assert channel.pool.connection_kwargs["health_check_interval"] == 7


class TestTls:
    """What a connection is made with; nothing here listens with TLS."""

    def connection_kwargs(self, url: str, **kwargs: object) -> dict[str, object]:
        connection = Connection(url, **kwargs)
        transport = connection.get_transport_cls()(client=connection)

        class NotConnected(transport.Channel):  # type: ignore[misc,name-defined]
            def __init__(self) -> None:
                self.connection = transport

        pool = NotConnected()._get_pool()
        tls = issubclass(pool.connection_class, transport.Channel.connection_class_ssl)
        return {"tls": tls, **pool.connection_kwargs}

    def test_verifies(self) -> None:
        made_with = self.connection_kwargs("redisdelays://localhost")
        assert made_with["tls"] is True
        assert made_with["ssl_cert_reqs"] == ssl.CERT_REQUIRED
        assert made_with["ssl_check_hostname"] is True

    @pytest.mark.parametrize("said", [True, {"ssl_ca_certs": "/ca.pem"}])
    def test_verifies_whatever_else_is_said(self, said: object) -> None:
        made_with = self.connection_kwargs("redisdelays://localhost", ssl=said)
        assert made_with["ssl_cert_reqs"] == ssl.CERT_REQUIRED
        if isinstance(said, dict):
            assert made_with["ssl_ca_certs"] == "/ca.pem"

    @pytest.mark.parametrize("and_so", ["", "&ssl_check_hostname=false"])
    def test_may_be_told_not_to(self, and_so: str) -> None:
        made_with = self.connection_kwargs(f"redisdelays://localhost?ssl_cert_reqs=none{and_so}")
        assert made_with["ssl_cert_reqs"] in (ssl.CERT_NONE, "none")
        assert is_unverified(made_with)
        assert not is_unverified(self.connection_kwargs("redisdelays://localhost"))
        assert not is_unverified(self.connection_kwargs("redisdelay://localhost"))
        assert made_with["ssl_check_hostname"] is False

    def test_plain_is_plain(self) -> None:
        assert self.connection_kwargs("redisdelay://localhost")["tls"] is False

    @pytest.mark.parametrize(
        "said", [True, {"ssl_ca_certs": "/ca.pem"}, {"ssl_cert_reqs": ssl.CERT_REQUIRED}]
    )
    def test_ssl_is_tls_under_the_plain_scheme_too(self, said: object) -> None:
        """Celery's ``broker_use_ssl``. With True, kombu's redis:// goes on without TLS."""
        made_with = self.connection_kwargs("redisdelay://localhost", ssl=said)
        under_the_other = self.connection_kwargs("redisdelays://localhost", ssl=said)
        for name in ("tls", "ssl_cert_reqs", "ssl_check_hostname", "ssl_ca_certs"):
            assert made_with.get(name) == under_the_other.get(name)
        assert made_with["tls"] is True
        assert made_with["ssl_cert_reqs"] == ssl.CERT_REQUIRED

    def test_ssl_may_be_told_not_to_verify(self) -> None:
        made_with = self.connection_kwargs("redisdelay://localhost", ssl={"ssl_cert_reqs": ssl.CERT_NONE})
        assert made_with["tls"] is True
        assert made_with["ssl_check_hostname"] is False

    @pytest.mark.parametrize(("scheme", "said"), [("redisdelay", True), ("redisdelays", False)])
    def test_a_unix_socket_has_none(self, server: RedisServer, scheme: str, said: bool) -> None:
        url = f"{scheme}+socket://{server.socket}"
        with (
            Connection(url, ssl=said) as connection,
            pytest.raises(ValueError, match="Unix socket has no TLS"),
        ):
            connection.connect()

    @pytest.mark.parametrize(("scheme", "said"), [("redisdelay", True), ("redisdelays", False)])
    @pytest.mark.parametrize("password", [None, "secret"])
    def test_a_server_without_is_told_so(self, scheme: str, said: bool, password: str | None) -> None:
        with RedisServer(requirepass=password) as server:
            # Such a server often waits for more of what it takes for a command.
            options = {"socket_connect_timeout": 0.3}
            with (
                Connection(server.url(scheme), ssl=said, transport_options=options) as connection,
                pytest.raises(RedisConnectionError, match="looks like a server without TLS") as raised,
            ):
                connection.ensure_connection(max_retries=1, interval_start=0, reraise_as_library_errors=False)
            assert f":{server.port} " in str(raised.value)

    def test_a_server_that_is_not_there_is_told_so(self) -> None:
        with Connection("redisdelays://127.0.0.1:1") as connection:
            with pytest.raises(RedisConnectionError) as raised:
                connection.connect()
            assert "TLS" not in str(raised.value)


@pytest.mark.parametrize(
    ("first", "second", "kind"),
    [
        ("redisdelay-cluster://h1", "redisdelay://h2", "server of a cluster"),
        ("redisdelay://h1", "redisdelay-cluster://h2", "server of a cluster"),
        ("redisdelay-cluster://h1", "redisdelays-cluster://h2", "server of a cluster"),
        ("redisdelay-cluster://h1", "h2", "server of a cluster"),
        ("redisdelay-sentinel://h1", "redisdelay://h2", "sentinel"),
        ("redisdelay://h1", "redisdelay-sentinel://h2", "sentinel"),
        ("redisdelay-sentinel://h1", "redisdelay-cluster://h2", "sentinel"),
    ],
)
def test_urls_that_do_not_belong_together(first: str, second: str, kind: str) -> None:
    """It is said at once, not when the first server is lost and kombu tries the second URL."""
    said = f"the URL of each {kind} begins with the same"
    with Connection(f"{first};{second}") as connection, pytest.raises(ValueError, match=said):
        connection.transport  # noqa: B018


def test_servers_are_tried_one_after_the_other(server: RedisServer) -> None:
    """As with kombu's redis://."""
    with Connection(f"redisdelay://{HOST}:1;{server.url()}") as connection:
        connection.ensure_connection(max_retries=1, interval_start=0)
        publish(connection.channel(), "a")


@pytest.mark.parametrize("scheme", ["redisdelay+sentinel", "redisdelay+ssl", "redisdelays+x"])
def test_a_scheme_that_there_is_not(scheme: str) -> None:
    """kombu would go to localhost."""
    with Connection(f"{scheme}://localhost:26379/0") as connection:
        with pytest.raises(
            ValueError, match=r"redisdelay://, redisdelays://.* and redisdelay\+socket://"
        ) as raised:
            connection.connect()
        assert f"{scheme}://".replace("redisdelays", "redisdelay") in str(raised.value)


class TestThreads:
    def test_publish_through_one_channel(self, site: Site) -> None:
        channel = site.channel()
        errors: list[BaseException] = []

        def publish_some(number: int) -> None:
            try:
                for n in range(25):
                    publish(channel, f"{number}.{n}", headers={"x-delay": 60_000} if n % 5 == 0 else {})
            except BaseException as exc:
                errors.append(exc)

        threads = [threading.Thread(target=publish_some, args=(n,)) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert errors == []
        assert (site.ready(), site.scheduled()) == (160, 40)

    def test_acks_from_more_threads_than_connections(self, site: Site) -> None:
        channel = site.channel(max_connections=3)
        publish(channel, *map(str, range(60)))
        inbox = Inbox(channel)
        drain(channel.connection.client, lambda: len(inbox) == 60)
        threads = [threading.Thread(target=message.ack) for message in inbox]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert site.unacked() == 0


@pytest.mark.one_server
def test_a_misspelt_one_is_warned_of_when_a_channel_opens(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    """When the transport is made, a worker has not set up its log."""
    connection = site.connect(visibility_timoutt=3)
    assert connection.transport
    assert "visibility_timoutt" not in caplog.text
    connection.channel()
    assert "visibility_timoutt" in caplog.text
