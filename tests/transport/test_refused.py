"""A consumer of a Celery worker while a server refuses: it waits, keeps what it has, and goes on."""

from __future__ import annotations

import json
import logging
from contextlib import ExitStack
from threading import Thread
from time import monotonic
from typing import Any

import pytest
from kombu.connection import Connection
from kombu.exceptions import OperationalError
from redis.exceptions import NoPermissionError, ResponseError

from kombu_redisdelay.broker.waits import current
from kombu_redisdelay.transport import orphan_keeper, refused
from tests.transport.kit import PATIENCE, Inbox, Site, drain, drain_for, in_seconds, publish
from tests.transport.malformed import MESSAGE
from tools.harness import trouble
from tools.harness.process import wait_until
from tools.harness.proxy import Proxy
from tools.harness.redis_server import HOST, RedisServer, free_port

pytestmark = pytest.mark.one_server

STRIKE = "ERR the disks are on strike"


@pytest.fixture
def site(site_of_user: Site, monkeypatch: pytest.MonkeyPatch) -> Site:
    """Of which no other test has been served."""
    monkeypatch.setattr(refused, "_have_served", set())
    return site_of_user


@pytest.fixture
def channel(site: Site) -> Any:
    return worker(site)[1]


def worker(site: Site, **options: Any) -> tuple[Connection, Any]:
    """The connection and the channel of a worker, with pauses of 0.1 s at most."""
    connection = site.connect(visibility_timeout=1, **options)
    connection.transport.is_workers = True
    return connection, connection.default_channel


def is_refused(channel: Any) -> bool:
    return channel.intake.refused is not None and channel.intake.refused.any


def test_it_goes_on_when_the_server_does(site: Site, own_server: RedisServer, channel: Any) -> None:
    inbox = Inbox(channel)
    connection = channel.connection.client
    publish(site.channel(), "before")
    drain(connection, lambda: inbox.bodies == ["before"])
    with trouble.misconf(own_server):
        inbox.messages[0].ack()
        drain(connection, lambda: is_refused(channel))
        assert [wait.reason for wait in current().values()] == ["misconf"]
        # Redis says more than fits into a line.
        assert current()["misconf"].said.endswith("...")
    publish(site.channel(), "after")
    drain(connection, lambda: inbox.bodies == ["before", "after"])
    drain(connection, lambda: site.unacked() == 1 and not is_refused(channel))


@pytest.mark.parametrize("how", ["reject", "requeue", "dead"])
def test_what_is_refused_meanwhile_keeps_its_place_and_is_done(
    site: Site, own_server: RedisServer, how: str
) -> None:
    connection, channel = worker(site, dead_letter=True)
    inbox = Inbox(channel, prefetch=1)
    publish(site.channel(), "a", "b")
    drain(connection, lambda: len(inbox) == 1)
    with trouble.misconf(own_server):
        if how == "dead":
            channel.qos.make_dead(inbox.messages[0], "wrong")
        else:
            inbox.messages[0].reject(requeue=how == "requeue")
        drain(connection, lambda: is_refused(channel))
        assert channel.qos.holds(inbox.messages[0].delivery_tag)
    drain(connection, lambda: len(inbox) == 2)
    if how == "requeue":
        inbox.messages[1].ack()
        drain(connection, lambda: len(inbox) == 3)
    assert len(site.dead()) == (how != "requeue")
    drain(connection, lambda: not is_refused(channel))


@pytest.mark.parametrize("how", ["reject", "dead"])
def test_what_was_refused_when_the_connection_is_lost_is_done_afterwards(
    site: Site, own_server: RedisServer, how: str
) -> None:
    connection, channel = worker(site, dead_letter=True)
    inbox = Inbox(channel, prefetch=1)
    publish(site.channel(), "a")
    drain(connection, lambda: len(inbox) == 1)
    message = inbox.messages.pop()
    with trouble.misconf(own_server):
        if how == "dead":
            channel.qos.make_dead(message, "wrong")
        else:
            message.reject()
        del message
        drain(connection, lambda: is_refused(channel))
        connection.collect()
    wait_until(lambda: site.unacked() == 0, PATIENCE, "that it is settled")
    assert (len(site.dead()), site.ready()) == (1, 0)


@pytest.mark.parametrize("command", ["-evalsha", "-bzpopmin"])
def test_what_is_refused_for_long_is_told_once(
    site: Site, own_server: RedisServer, channel: Any, command: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A worker that was served before waits for its permission."""
    caplog.set_level(logging.WARNING)
    inbox = Inbox(channel)
    connection = channel.connection.client
    publish(site.channel(), "before")
    drain(connection, lambda: inbox.bodies == ["before"])
    # Who was served, and has waited, has the right user.
    drain(
        connection,
        lambda: {asked for _, asked in refused._have_served} >= {refused.Asked.TAKE, refused.Asked.WAIT},
    )
    with trouble.no_permission(own_server, trouble.USER, command):
        site.redis.acl_log_reset()
        # The ACL log counts the same again as one. The lease is tried as well.
        drain(connection, lambda: any(entry["count"] > 20 for entry in site.redis.acl_log()))
    publish(site.channel(), "after")
    drain(connection, lambda: inbox.bodies == ["before", "after"])
    drain(connection, lambda: not is_refused(channel))
    told = [record.levelname for record in caplog.records if record.name.endswith(".waits")]
    assert told == ["ERROR", "WARNING"], caplog.text
    assert "this user may not do that" in caplog.text
    assert "serves this process again" in caplog.text


@pytest.mark.parametrize(
    ("rules", "said"),
    [
        (["-evalsha"], "run the 'evalsha' command"),
        (["resetkeys", "~another"], "access"),
        (["resetkeys", "~q*", "~_kombu*"], "access"),
    ],
    ids=["command", "queue", "our keys"],
)
def test_who_never_had_the_permission_gets_an_error_that_names_it(
    own_server: RedisServer, channel: Any, rules: list[str], said: str
) -> None:
    Inbox(channel, "emails")
    with (
        trouble.no_permission(own_server, trouble.USER, *rules),
        pytest.raises(NoPermissionError, match=said) as caught,
    ):
        drain(channel.connection.client, lambda: False)
    assert "emails" in str(caught.value)


class TestUnknownError:
    """It is in no row of the table."""

    def test_it_is_waited_for_and_logged_in_full(
        self, site: Site, proxy: Proxy, channel: Any, caplog: pytest.LogCaptureFixture
    ) -> None:
        inbox = Inbox(channel)
        connection = channel.connection.client
        publish(site.channel(), "before")
        drain(connection, lambda: inbox.bodies == ["before"])
        proxy.refuse(STRIKE)
        drain(connection, lambda: is_refused(channel))
        proxy.serve()
        publish(site.channel(), "after")
        drain(connection, lambda: inbox.bodies == ["before", "after"])
        drain(connection, lambda: not is_refused(channel))
        in_full = [record.message for record in caplog.records if record.exc_info]
        # Once for what it settles, maintains, takes and waits for.
        assert 1 <= len(in_full) <= 4
        assert "ResponseError: the disks are on strike" in caplog.text

    def test_after_a_minute_it_ends_the_worker(
        self, proxy: Proxy, channel: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(refused, "UNKNOWN_FOR", 0.5)
        Inbox(channel)
        proxy.refuse(STRIKE)
        with pytest.raises(ResponseError, match="on strike"):
            drain(channel.connection.client, lambda: False)

    def test_what_else_is_served_does_not_matter(
        self, site: Site, own_server: RedisServer, channel: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The wait is refused, and each take in between is served."""
        monkeypatch.setattr(refused, "UNKNOWN_FOR", 0.5)
        monkeypatch.setattr(refused, "refusal_of", lambda error: None)
        inbox = Inbox(channel)
        with trouble.no_permission(own_server, trouble.USER, "-bzpopmin"):
            publish(site.channel(), "a")
            with pytest.raises(ResponseError, match="bzpopmin"):
                drain(channel.connection.client, lambda: False)
        assert inbox.bodies == ["a"]

    def test_another_one_begins_anew(
        self, proxy: Proxy, channel: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A number in it does not make it another one."""
        monkeypatch.setattr(refused, "UNKNOWN_FOR", 0.5)
        Inbox(channel)
        connection = channel.connection.client
        saying = iter(range(1000))

        def goes_on(text: str, seconds: float) -> bool:
            until = monotonic() + seconds
            while monotonic() < until:
                proxy.refuse(text.format(next(saying)))
                drain_for(connection, 0.1)
            return True

        for word in ("strike", "leave", "holiday"):
            assert goes_on(f"ERR the disks are on {word}, number {{}}", 0.4)
        with pytest.raises(ResponseError, match="on strike"):
            goes_on("ERR the disks are on strike, number {}", PATIENCE)


def test_what_is_not_due_or_no_message_is_moved_when_the_server_takes_it(
    site: Site, own_server: RedisServer, channel: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Producers of ``redis://`` schedule nothing. Other messages are delivered meanwhile."""
    inbox = Inbox(channel)
    connection = channel.connection.client
    publish(site.channel(), "before")
    drain(connection, lambda: len(inbox) == 1)
    inbox.messages[0].ack()
    drain(connection, lambda: site.unacked() == 0)
    early = json.dumps({**MESSAGE, "headers": {"id": "early", "eta": in_seconds(60).isoformat()}})
    with trouble.no_permission(own_server, trouble.USER, "-hdel"):
        site.redis.lpush("q", early, "garbage", json.dumps(MESSAGE))
        drain(connection, lambda: len(inbox) == 2 and is_refused(channel))
        assert (site.scheduled(), site.unacked()) == (0, 3)
    drain(connection, lambda: site.scheduled() == 1 and not is_refused(channel))
    assert (site.scheduled(), len(site.dead()), site.unacked()) == (1, 1, 1)
    assert not any("Could not move" in line for line in caplog.messages)
    assert sum("Moved an entry" in line for line in caplog.messages) == 1


class TestConnecting:
    """A worker connects: Celery's ``ensure_connected``, in this thread."""

    def connect(self, site: Site, url: str | None = None, **patience: Any) -> Any:
        connection = site.connect(url, visibility_timeout=1)
        with refused.as_worker(patience.pop("maybe_shutdown", lambda: None), 0.1):
            return connection.ensure_connection(**patience)

    @pytest.mark.parametrize("begin", [trouble.misconf, trouble.busy], ids=["MISCONF", "BUSY"])
    def test_it_waits_for_a_server_that_refuses(
        self, site: Site, own_server: RedisServer, begin: trouble.Trouble
    ) -> None:
        with ExitStack() as stack:
            stack.enter_context(begin(own_server))
            looks = iter(range(1000))

            def maybe_shutdown() -> None:
                if next(looks) == 5:
                    stack.close()

            # One try, as Celery counts.
            self.connect(site, maybe_shutdown=maybe_shutdown, max_retries=1, interval_start=0)
        assert next(looks) > 5

    def test_it_hears_of_sigterm_meanwhile(self, site: Site, proxy: Proxy) -> None:
        def maybe_shutdown() -> None:
            raise SystemExit

        proxy.refuse("LOADING Redis is loading the dataset in memory")
        with pytest.raises(SystemExit):
            self.connect(site, maybe_shutdown=maybe_shutdown)

    def test_a_server_that_cannot_be_reached_is_no_such(self, site: Site) -> None:
        """kombu counts these tries."""
        tries: list[BaseException] = []
        with pytest.raises(OperationalError):
            self.connect(
                site,
                f"redisdelay://{HOST}:{free_port()}/0",
                errback=lambda error, _: tries.append(error),
                max_retries=3,
                interval_start=0,
                interval_step=0,
            )
        assert len(tries) == 3

    def test_an_unknown_error_does_not_last(
        self, site: Site, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(refused, "UNKNOWN_FOR", 0.3)
        proxy.refuse(STRIKE)
        looks: list[None] = []
        with pytest.raises(ValueError, match="not known: the disks are on strike"):
            self.connect(site, maybe_shutdown=lambda: looks.append(None))
        assert looks, "it has waited before"


class TestEnding:
    """A program that ends is patient with what it settles."""

    @pytest.fixture(autouse=True)
    def _patience(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(refused, "END_PATIENCE", 1.0)
        refused.end_of_patience.cache_clear()

    def held(self, channel: Any, site: Site) -> Any:
        inbox = Inbox(channel)
        publish(site.channel(), "a")
        drain(channel.connection.client, lambda: len(inbox) == 1)
        return inbox.messages[0]

    @pytest.mark.parametrize("dead", [False, True], ids=["ack", "dead"])
    def test_what_it_settles_waits(
        self, site: Site, own_server: RedisServer, channel: Any, dead: bool
    ) -> None:
        message = self.held(channel, site)
        with trouble.misconf(own_server):
            if dead:
                channel.qos.make_dead(message, "wrong")
            else:
                message.ack()
            closing = Thread(target=channel.connection.client.release)
            closing.start()
            wait_until(lambda: refused.end_of_patience.cache_info().currsize, 30, "that it is refused")
        closing.join(10)
        assert (len(site.dead()), site.ready(), site.unacked()) == (int(dead), 0, 0)

    def test_acks_of_a_lost_connection_wait_too(
        self, site: Site, proxy: Proxy, own_server: RedisServer, channel: Any
    ) -> None:
        message = self.held(channel, site)
        proxy.refuse("NOAUTH Authentication required.", [HOST])
        message.ack()
        channel.connection.client.collect()
        del message
        ending = Thread(target=orphan_keeper._end_all)
        ending.start()
        wait_until(lambda: refused.end_of_patience.cache_info().currsize, 30, "that it is refused")
        proxy.serve()
        ending.join(10)
        assert (site.ready(), site.unacked()) == (0, 0)

    def test_not_for_ever(self, site: Site, own_server: RedisServer, channel: Any) -> None:
        message = self.held(channel, site)
        with trouble.misconf(own_server):
            message.ack()
            channel.connection.client.release()
        assert site.unacked() == 1


def test_a_program_with_kombu_gets_the_error(site: Site, own_server: RedisServer) -> None:
    channel = site.channel()
    Inbox(channel)
    with trouble.misconf(own_server), pytest.raises(ResponseError, match="MISCONF"):
        drain(channel.connection.client, lambda: False)
    wait_until(lambda: not current(), 1, "that nothing waits")
