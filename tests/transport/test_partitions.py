"""A queue with partitions, as kombu sees it: one queue."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from kombu.entity import Exchange, Queue

from kombu_redisdelay import Messages, Selection
from kombu_redisdelay.broker.fair_keys import PLAIN, StoredKeyLimits, key_of
from kombu_redisdelay.broker.limits import FairQueues
from kombu_redisdelay.operations.stats import queue_stats
from tests.transport.kit import Inbox, Site, drain, publish

OPTIONS: dict[str, Any] = {"partitions": {"q": 4}, "dead_letter": True}
COUNT = 40
NAMES = ("q", "q#1", "q#2", "q#3")


@pytest.fixture
def channel(site: Site) -> Any:
    channel = site.channel(**OPTIONS)
    publish(channel, *map(str, range(COUNT)))
    return channel


def test_messages_are_spread(site: Site, channel: Any) -> None:
    counts = [site.ready(name) for name in NAMES]
    assert sum(counts) == COUNT
    assert all(counts)


def test_a_consumer_takes_from_all_and_acks_there(site: Site, channel: Any) -> None:
    inbox = Inbox(channel, prefetch=10, on_message=lambda message: message.ack())
    drain(channel.connection.client, lambda: len(inbox) == COUNT)
    assert sorted(inbox.bodies) == sorted(map(str, range(COUNT)))
    channel.consumer.confirm_acks()
    assert sum(map(site.unacked, NAMES)) == 0


def test_each_partition_is_fair_and_keeps_to_the_limits_of_keys(site: Site) -> None:
    channel = site.channel(**OPTIONS)
    fair = FairQueues(channel.store)
    fair.switch_on(NAMES)
    fair.limit(NAMES, StoredKeyLimits(concurrency=1))
    for number in range(COUNT):
        publish(channel, str(number), headers={"x-key": "ab"[number % 2]})
    inbox = Inbox(channel)

    def held() -> Counter[tuple[str, str]]:
        return Counter(
            (name, key_of(stored.partition(b":")[2]).key)
            for name in NAMES
            for stored in site.redis.hvals(f"redisdelay:{{{name}}}:unacked:{channel.consumer.name}")
        )

    seen: list[str] = []

    def ack_all() -> bool:
        """Whether nothing is left to be acked."""
        for message in inbox.messages[len(seen) :]:
            assert max(held().values()) == 1
            seen.append(message.payload)
            message.ack()
        return len(seen) == COUNT

    drain(channel.connection.client, ack_all)
    assert sorted(seen) == sorted(map(str, range(COUNT)))
    # All that is left of them goes, too.
    fair.switch_off(NAMES)
    drain(channel.connection.client, lambda: fair.states(NAMES) == [PLAIN] * len(NAMES))


def test_scheduled_ones_are_spread_too(site: Site, channel: Any) -> None:
    publish(channel, *map(str, range(COUNT)), headers={"x-delay": 200})
    counts = [site.scheduled(name) for name in NAMES]
    assert sum(counts) == COUNT
    assert all(counts)
    inbox = Inbox(channel, on_message=lambda message: message.ack())
    drain(channel.connection.client, lambda: len(inbox) == 2 * COUNT)


def test_rejected_goes_back_to_its_partition(site: Site, channel: Any) -> None:
    before = {name: site.ready(name) for name in NAMES}
    inbox = Inbox(channel)
    drain(channel.connection.client, lambda: len(inbox) == COUNT)
    inbox.consumer.cancel()
    for message in inbox:
        message.reject(requeue=True)
    assert {name: site.ready(name) for name in NAMES} == before


def test_get_brings_all(channel: Any) -> None:
    bodies = []
    while (message := channel.basic_get("q")) is not None:
        bodies.append(message.payload)
        message.ack()
    assert sorted(bodies) == sorted(map(str, range(COUNT)))


def test_counted_purged_and_deleted_as_one(site: Site, channel: Any) -> None:
    publish(channel, "later", headers={"x-delay": 60_000})
    assert channel._size("q") == COUNT
    assert channel._has_queue("q")
    assert channel.queue_purge("q") == COUNT + 1
    assert not channel._has_queue("q")
    # kombu deletes a queue that it has bound.
    queue = Queue("q", Exchange("e"), "q")(channel)
    queue.declare()
    publish(channel, *map(str, range(COUNT)))
    queue.delete()
    assert [site.ready(name) for name in NAMES] == [0] * 4


def test_operators_see_one_queue(site: Site, channel: Any) -> None:
    publish(channel, *map(str, range(COUNT)), headers={"x-delay": 60_000})
    inbox = Inbox(channel, prefetch=COUNT)
    drain(channel.connection.client, lambda: len(inbox) == COUNT)
    for message in inbox.messages[:5]:
        message.reject()
    connection = site.connect(**OPTIONS)
    with Messages(connection) as delayed, Messages(connection) as dead:
        [stats] = queue_stats(delayed.store, delayed.queues())
        figures = (stats.queue, stats.scheduled, stats.unacked, stats.dead, stats.consumers)
        assert figures == ("q", COUNT, COUNT - 5, 5, 1)
        messages = list(delayed.select(Selection(state="scheduled", queue="q")))
        assert {message.queue for message in messages} == {"q"}
        assert len(messages) == delayed.count(Selection(state="scheduled", queue="q")) == COUNT
        assert delayed.cancel(ids=[messages[0].id])
        assert delayed.cancel(Selection(state="scheduled", queue="q")).count == COUNT - 1
        assert {letter.queue for letter in dead.select(Selection(state="dead", queue="q"))} == {"q"}
        assert dead.requeue(Selection(state="dead", queue="q")).count == 5


def test_a_queue_that_is_named_as_a_partition(site: Site, channel: Any) -> None:
    """Its messages would be those of the other queue."""
    with pytest.raises(ValueError, match="'q#3', because this is a partition of the queue 'q'"):
        Queue("q#3")(channel).declare()
    Queue("q#4")(channel).declare()
    with pytest.raises(ValueError, match="'q#3', because"):
        site.channel(partitions={"q": 4, "q#3": 2})


@pytest.mark.parametrize(
    "name", ["redisdelay:{q}:dead", "redisdelay:{q}:unacked:w", "redisdelay:known-queues"]
)
def test_a_queue_that_is_named_as_a_key(channel: Any, name: str) -> None:
    """Its messages would be the dead letters of another one."""
    with pytest.raises(ValueError, match="because the transport has a key of this name"):
        Queue(name)(channel).declare()
    Queue("redisdelay:q")(channel).declare()


def test_what_is_wrong_is_said(site: Site) -> None:
    for wrong in ({"q": 0}, {"q": "4"}, {1: 4}, ["q"], {"q": 2000}):
        with pytest.raises(
            ValueError, match="'partitions' must be a dict of queues and whole numbers from 1"
        ):
            site.channel(partitions=wrong)
