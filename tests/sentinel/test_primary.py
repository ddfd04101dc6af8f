"""Nobody stays with a server that is not the primary any more."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
from celery import Celery
from kombu.exceptions import OperationalError
from redis import Redis
from redis.exceptions import ConnectionError as RedisConnectionError

from kombu_redisdelay.broker.server.connections import (
    ASK_INTERVAL,
    NO_ANSWER_INTERVAL,
    Sentinels,
)
from kombu_redisdelay.broker.server.line import REST
from kombu_redisdelay.transport.patience import impatient
from tests.environments import PROXIES
from tests.faults.workers import wait_closed
from tests.sentinel.test_connecting import connect
from tests.transport.kit import Inbox, drain, drain_for, publish
from tools.harness.process import wait_until
from tools.harness.proxy import Proxy, Trap
from tools.harness.redis_server import HOST
from tools.harness.sentinel import MASTER, SentinelSite, cut_off, go_on, pause

NOT_PRIMARY = "is not the primary"

#: Seconds that a silent sentinel is waited for, if it is: longer than any machine is busy.
PATIENCE = 30.0
PATIENT = {"socket_timeout": PATIENCE, "socket_connect_timeout": PATIENCE}


@pytest.fixture(scope="module")
def pair() -> Iterator[SentinelSite]:
    with SentinelSite(replicas=1, hasty=True) as site:
        yield site


@pytest.fixture
def site(pair: SentinelSite) -> SentinelSite:
    """Its primary changes again and again."""
    pair.empty()
    return pair


@pytest.fixture
def lone() -> Iterator[SentinelSite]:
    """One server, and one sentinel."""
    with SentinelSite(replicas=0, sentinels=1) as site:
        yield site


def test_who_rests_asks_before_the_next_command(site: SentinelSite) -> None:
    """The failover is a planned one, so the old primary answers all the time."""
    with connect(site.url()) as connection:
        channel = connection.channel()
        publish(channel, "before")
        new = site.fail_over()
        # They were asked when the channel was opened.
        time.sleep(ASK_INTERVAL)
        publish(channel, "after")
        with new.client() as client:
            assert client.llen("q") == 2


def test_a_primary_that_comes_back_gets_nothing(site: SentinelSite) -> None:
    """Its connections are open, and for some seconds it takes itself for the primary."""
    with connect(site.url()) as connection:
        channel = connection.channel()
        publish(channel, "before")
        old = site.primary()
        pause(old)
        try:
            new = site.wait_failover(old)
        finally:
            go_on(old)
        publish(channel, "after")
        with new.client() as client:
            assert client.llen("q") == 2


def test_publishing_waits_for_the_failover(site: SentinelSite) -> None:
    """kombu would try again for less than a second."""
    app = Celery(broker=site.url(), set_as_current=False)
    app.conf.broker_transport_options = {"master_name": MASTER}
    app.send_task("before", queue="q")
    old, [new] = site.primary(), site.replicas()
    with old.client() as client:
        assert client.wait(1, 5000) == 1
    old.kill()
    wait_closed(old.port)
    try:
        app.send_task("at once", queue="q")
        with app.connection_for_write() as connection:
            app.send_task("over a connection that has to be made", queue="q", connection=connection)
    finally:
        site.wait_failover(old)
        old.restart()
    with new.client() as client:
        assert client.llen("q") == 3
    app.close()


@pytest.mark.skipif(not PROXIES, reason="takes a server that can be told its address")
def test_a_message_whose_reply_was_lost_is_not_sent_again() -> None:
    """kombu would, and it would be there twice."""
    with SentinelSite(replicas=0, sentinels=1, proxied=True) as site:
        app = Celery(broker=site.url(), set_as_current=False)
        app.conf.broker_transport_options = {"master_name": MASTER}
        app.send_task("before", queue="q")
        [proxy] = site.proxies.values()
        trap = proxy.set_trap(Trap(b"unsure", reply_bytes=0))
        with pytest.raises(OperationalError, match="so it may be there"):
            app.send_task("unsure", queue="q")
        assert trap.sprung.is_set()
        app.send_task("after", queue="q")
        with site.servers[0].client() as client:
            assert client.llen("q") == 3
        app.close()


def held_by_consumers(client: Redis) -> int:
    keys: Any = client.keys("redisdelay:{q}:unacked:*")
    return sum(int(client.hlen(key)) for key in keys)


def test_who_waits_for_messages_goes_over(site: SentinelSite) -> None:
    with connect(site.url()) as connection, connect(site.url()) as publisher:
        channel = connection.channel()
        inbox = Inbox(channel)
        publish(publisher.channel(), "before")
        drain(connection, lambda: len(inbox) == 1)
        new = site.fail_over()
        with pytest.raises(RedisConnectionError, match="not the primary"):
            drain(connection, lambda: False)
        connection.collect()
        channel = connection.channel()
        publish(channel, "after")
        inbox = Inbox(channel, on_message=lambda message: message.ack())
        with new.client() as client:
            # The first message may still be held: if it could not be given back, its lease has to end.
            drain(connection, lambda: "after" in inbox.bodies and held_by_consumers(client) <= 1)
        assert sorted(inbox.bodies) in (["after"], ["after", "before"])


class TestReplica:
    """The server that is connected to becomes a replica, and no sentinel has done it."""

    def follow_nobody(self, site: SentinelSite) -> None:
        with site.servers[0].client() as client:
            client.execute_command("REPLICAOF", "127.0.0.1", "1")

    def test_publishing(self, lone: SentinelSite) -> None:
        with connect(lone.url()) as connection:
            channel = connection.channel()
            publish(channel, "a")
            self.follow_nobody(lone)
            for headers in ({}, {"x-delay": 1000}):
                with impatient(), pytest.raises(RedisConnectionError, match=NOT_PRIMARY):
                    publish(channel, "b", headers=headers)

    def test_waiting(self, lone: SentinelSite) -> None:
        with connect(lone.url()) as connection:
            channel = connection.channel()
            Inbox(channel)
            drain_for(connection, 0.2)
            self.follow_nobody(lone)
            with pytest.raises(RedisConnectionError, match=NOT_PRIMARY):
                drain(connection, lambda: False)

    def test_a_primary_that_no_replica_follows(self, lone: SentinelSite) -> None:
        """``min-replicas-to-write``: a worker that took this for anything else would end."""
        with connect(lone.url()) as connection, lone.servers[0].client() as client:
            channel = connection.channel()
            client.config_set("min-replicas-to-write", 1)
            with impatient(), pytest.raises(RedisConnectionError, match="NOREPLICAS"):
                publish(channel, "a")
            Inbox(channel)
            with pytest.raises(RedisConnectionError, match="NOREPLICAS"):
                drain(connection, lambda: False)


def test_asking_costs_one_question_a_second(site: SentinelSite, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    ask = Sentinels._named_by

    def counted(self: Sentinels, client: object) -> object:
        asked.append(client)
        return ask(self, client)

    monkeypatch.setattr(Sentinels, "_named_by", counted)
    with connect(site.url()) as connection:
        Inbox(connection.channel())
        drain_for(connection, 0.5)
        asked.clear()
        began = time.monotonic()
        drain_for(connection, 3 * ASK_INTERVAL)
        seconds = time.monotonic() - began
        # One may have been due at the beginning, and one at the end.
        assert 2 <= len(asked) <= seconds / ASK_INTERVAL + 2


def test_a_sentinel_that_is_silent_is_not_taken_for_one_that_says_no(site: SentinelSite) -> None:
    with Proxy(site.sentinels[0].port) as proxy:
        addresses = [(HOST, port) for port in (proxy.port, *(each.port for each in site.sentinels[1:]))]
        sentinels = Sentinels(addresses, MASTER, options=PATIENT)
        old = sentinels.get_master_address()
        assert not sentinels.has_moved(old)
        proxy.go_silent()
        site.fail_over()
        time.sleep(ASK_INTERVAL)
        began = time.monotonic()
        assert sentinels.has_moved(old)
        assert time.monotonic() - began < PATIENCE
        sentinels.disconnect()


def test_who_connects_waits_for_no_sentinel_that_is_silent(site: SentinelSite) -> None:
    with Proxy(site.sentinels[0].port) as proxy:
        proxy.go_silent()
        addresses = [(HOST, port) for port in (proxy.port, proxy.port, site.sentinels[1].port)]
        sentinels = Sentinels(addresses, MASTER, options=PATIENT)
        began = time.monotonic()
        sentinels.get_master_address()
        assert time.monotonic() - began < PATIENCE
        sentinels.disconnect()


def test_what_was_acked_just_before_does_not_come_back(site: SentinelSite) -> None:
    """The new primary has not heard of the acks: it was cut off when they were made."""
    with connect(site.url()) as connection:
        channel = connection.channel()
        publish(channel, *map(str, range(50)))
        inbox = Inbox(channel)
        drain(connection, lambda: len(inbox) == 50)
        old, [new] = site.primary(), site.replicas()
        with old.client() as client:
            assert client.wait(1, 5000) == 1
        cut_off(old)
        for message in inbox:
            message.ack()
        channel.consumer.confirm_acks()
        old.kill()
        site.wait_failover(old)
        with new.client() as client:
            [unacked] = client.keys("redisdelay:{q}:unacked:*")
            assert client.hlen(unacked) == 50
            connection.collect()
            wait_until(lambda: not client.exists(unacked), 30, "acks")
            assert client.llen("q") == 0
        old.restart()


def test_sentinels_that_do_not_answer_are_left_alone_for_a_while(lone: SentinelSite) -> None:
    with connect(lone.url()) as connection:
        channel = connection.channel()
        publish(channel, "a")
        channel._sentinels._ask_at = float("-inf")
        pause(lone.sentinels[0])
        try:
            time.sleep(2 * REST)
            publish(channel, "b")
            assert channel._sentinels._ask_at - time.monotonic() > NO_ANSWER_INTERVAL / 2
            time.sleep(2 * REST)
            asks_at = channel._sentinels._ask_at
            publish(channel, "c")
            assert channel._sentinels._ask_at == asks_at
        finally:
            go_on(lone.sentinels[0])
        with lone.servers[0].client() as client:
            assert client.llen("q") == 3
