"""Redis is out of memory and evicts nothing: publishing fails, consuming goes on."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from kombu.entity import Exchange, Queue
from redis.exceptions import OutOfMemoryError

from kombu_redisdelay import Messages, Selection
from tests.transport.kit import PATIENCE, Inbox, Site, drain, in_seconds, publish
from tools.harness.process import wait_until
from tools.harness.redis_server import RedisServer
from tools.harness.server_binary import servers

CONSUMERS = "redisdelay:{q}:consumers"


@pytest.fixture(params=servers(), ids=lambda binary: binary.name)
def site(request: pytest.FixtureRequest) -> Iterator[Site]:
    policy = ("--maxmemory-policy", "noeviction")
    with RedisServer(request.param, args=policy) as server, server.client() as client:
        site = Site(server.url(), client)
        yield site
        # Closing takes memory, too.
        client.config_set("maxmemory", 0)
        site.close()


def fill(site: Site) -> None:
    site.redis.config_set("maxmemory", 1)


def contents(site: Site) -> dict[bytes, bytes]:
    return {key: site.redis.dump(key) for key in site.redis.keys("*")}


@pytest.mark.parametrize(
    "headers", [{}, {"x-delay": 60_000}, {"eta": in_seconds(3600).isoformat(), "id": "1"}]
)
@pytest.mark.parametrize("queue", ["q", "new"])
def test_a_publish_raises_and_writes_nothing(site: Site, headers: dict[str, Any], queue: str) -> None:
    channel = site.channel()
    publish(channel, "before")
    publish(channel, "before", headers={"x-delay": 60_000})
    before = contents(site)
    fill(site)
    with pytest.raises(OutOfMemoryError):
        publish(channel, "a" * 1000, queue=queue, headers=headers)
    assert contents(site) == before


def test_a_consumer_goes_on(site: Site) -> None:
    lease = 1.5
    channel = site.channel(visibility_timeout=lease)
    publish(channel, *(str(number) for number in range(5)))
    publish(channel, "soon", headers={"x-delay": 1500})
    publish(channel, "later", headers={"x-delay": 3_600_000})
    put_by_an_old_producer(site, "parked")
    inbox = Inbox(channel, prefetch=2)
    connection = channel.connection.client
    drain(connection, lambda: len(inbox) == 2)
    fill(site)

    def lease_end() -> float:
        return float(site.redis.zrange(CONSUMERS, -1, -1, withscores=True)[0][1])

    def inbox_has(count: int) -> Callable[[], bool]:
        return lambda: len(inbox) >= count

    first = lease_end()
    inbox.messages[0].ack()
    inbox.messages[1].reject(requeue=True)
    for number in range(2, 7):
        drain(connection, inbox_has(number + 1))
        inbox.messages[number].ack()
    assert sorted(inbox.bodies) == ["0", "1", "1", "2", "3", "4", "soon"]
    # Without a poll, by the heartbeat.
    end = lease_end()
    assert end > first
    wait_until(lambda: lease_end() > end, PATIENCE, "the heartbeat")
    assert site.unacked() == 0
    assert site.ready() == 0
    assert site.scheduled() == 2


def test_a_queue_can_be_purged(site: Site) -> None:
    """That is what gives memory back."""
    channel = site.channel()
    publish(channel, "ready", queue="a")
    publish(channel, "later", queue="b", headers={"x-delay": 60_000})
    fill(site)
    assert channel.queue_purge("a") == 1
    with Messages(channel.connection.client) as delayed:
        assert delayed.cancel(Selection(state="scheduled", queue="b")).count == 1


def test_a_binding_is_noted_when_there_is_memory(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    channel = site.channel()
    exchange, queue = Exchange("x"), "bound"
    fill(site)
    Queue(queue, exchange, "key", channel=channel).declare()
    with pytest.raises(OutOfMemoryError):
        publish(channel, "m", exchange=exchange, routing_key="key")
    told = "has not noted that queue 'bound' is bound to exchange 'x'"
    assert told not in caplog.text, "the error says it"
    inbox = Inbox(channel, queue)
    for _ in range(2):
        channel._bind_at = 0.0
        drain(channel.connection.client, lambda: told in caplog.text and channel._bind_at)
    assert caplog.text.count(told) == 1
    site.redis.config_set("maxmemory", 0)
    drain(channel.connection.client, lambda: site.redis.exists("_kombu.binding.x"))
    publish(channel, "m", exchange=exchange, routing_key="key")
    drain(channel.connection.client, lambda: inbox.bodies == ["m"])


def test_what_was_held_returns(site: Site) -> None:
    channel = site.channel()
    publish(channel, "a", "b")
    inbox = Inbox(channel)
    drain(channel.connection.client, lambda: len(inbox) == 2)
    fill(site)
    channel.close()
    assert (site.ready(), site.unacked()) == (2, 0)


def test_messages_of_a_consumer_that_is_gone_are_recovered(site: Site) -> None:
    gone = site.channel(visibility_timeout=0.5)
    publish(gone, "a", "b")
    theirs = Inbox(gone)
    drain(gone.connection.client, lambda: len(theirs) == 2)
    channel = site.channel(visibility_timeout=0.5)
    inbox = Inbox(channel)
    fill(site)
    gone.consumer.stop()
    drain(channel.connection.client, lambda: len(inbox) == 2)
    for message in inbox:
        message.ack()
    assert site.unacked() == 0


def put_by_an_old_producer(site: Site, id: str) -> None:
    """A message that is not due, in the ready list: kombu's own transport puts it there."""
    message = {
        "body": "[]",
        "content-type": "application/json",
        "content-encoding": "utf-8",
        "headers": {"id": id, "eta": in_seconds(3600).isoformat()},
        "properties": {
            "delivery_tag": id,
            "delivery_info": {"exchange": "", "routing_key": "q"},
            "priority": 0,
        },
    }
    site.redis.lpush("q", json.dumps(message))
