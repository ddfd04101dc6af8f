"""Channels that consume from queues which are paused or limited."""

from __future__ import annotations

import time
from typing import Any

import pytest

from kombu_redisdelay.broker.store import Store
from kombu_redisdelay.broker.takes import Takes
from kombu_redisdelay.operations import limits
from tests.transport.kit import LONG_POLL, PATIENCE, Inbox, Site, drain, drain_for, publish


@pytest.fixture(autouse=True)
def no_glances(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a consumer looks for itself once a second, and finds what nobody has woken it for."""
    monkeypatch.setattr("kombu_redisdelay.transport.transports.Transport.brpop_timeout", LONG_POLL)


@pytest.fixture
def store(site: Site) -> Store:
    found: Store = site.channel().store
    return found


def inboxes(site: Site, count: int, *queues: str, **options: Any) -> list[Inbox]:
    return [Inbox(site.channel(), *queues, **options) for _ in range(count)]


def drain_all(inboxes: list[Inbox], messages: int) -> None:
    deadline = time.monotonic() + 2 * PATIENCE
    while sum(map(len, inboxes)) < messages:
        assert time.monotonic() < deadline, f"{sum(map(len, inboxes))} of {messages} came"
        for inbox in inboxes:
            drain_for(client_of(inbox), 0.01)


def client_of(inbox: Inbox) -> Any:
    channel: Any = inbox.consumer.channel
    return channel.connection.client


def scripts_run(site: Site) -> int:
    stats = site.redis.info("commandstats")
    return sum(stats[command]["calls"] for command in stats if command.startswith("cmdstat_eval"))


def test_a_paused_queue_and_others(site: Site, store: Store) -> None:
    limits.pause(store, ["q"])
    [inbox] = inboxes(site, 1, "q", "other")
    publish(site.channel(), "held back")
    publish(site.channel(), "comes", queue="other")
    client = client_of(inbox)
    drain(client, lambda: len(inbox) == 1)
    drain_for(client, 0.2)
    assert inbox.bodies == ["comes"]
    limits.resume(store, ["q"])
    drain(client, lambda: len(inbox) == 2)
    assert inbox.bodies == ["comes", "held back"]


def test_a_rate_for_several_consumers(site: Site, store: Store) -> None:
    limits.limit(store, "q", rate="10/s", burst=2)
    publish(site.channel(), *map(str, range(12)))
    started = time.monotonic()
    some = inboxes(site, 3, prefetch=2, on_message=lambda message: message.ack())
    drain_all(some, 12)
    assert time.monotonic() - started >= (12 - 2) / 10
    [found] = limits.queue_limits(store, ["q"])
    assert found.throttled > 0


@pytest.mark.one_server
def test_a_rate_costs_as_much_with_many_consumers(
    site: Site, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    takes, begin = 0, Takes._begin

    def counted(self: Takes, *args: Any) -> Any:
        nonlocal takes
        takes += 1
        return begin(self, *args)

    limits.limit(store, "q", rate="10/s", burst=1)
    publish(site.channel(), *map(str, range(10)))
    some = inboxes(site, 8)
    drain_all(some, 1)
    monkeypatch.setattr(Takes, "_begin", counted)
    drain_all(some, 10)
    # One take gets a message, another one is that of the consumer that watches next. If all came, there would
    # be eight for each message.
    assert takes <= 9 * 3


@pytest.mark.one_server
def test_nobody_is_busy_waiting(site: Site, store: Store) -> None:
    limits.limit(store, "q", rate="1/h")
    publish(site.channel(), *map(str, range(10)))
    some = inboxes(site, 3)
    drain_all(some, 1)
    for inbox in some:
        drain_for(client_of(inbox), 0.3)
    before = scripts_run(site)
    for inbox in some:
        drain_for(client_of(inbox), 0.5)
    # A round of looking after the queues may fall into this time.
    assert scripts_run(site) - before <= 10


def test_an_ack_lets_another_consumer_go_on(site: Site, store: Store) -> None:
    limits.limit(store, "q", concurrency=2)
    publish(site.channel(), *map(str, range(6)))
    some = inboxes(site, 3, prefetch=1)
    drain_all(some, 2)
    idle = next(inbox for inbox in some if not len(inbox))
    busy = [inbox for inbox in some if len(inbox)]
    drain_for(client_of(idle), 0.2)
    assert len(idle) == 0
    # It cannot take another one: its connection is not served any more.
    busy[0].messages[0].ack()
    drain(client_of(idle), lambda: len(idle) == 1)


def test_a_get_from_a_paused_queue(site: Site, store: Store) -> None:
    channel = site.channel()
    publish(channel, "m")
    limits.pause(store, ["q"])
    assert channel.basic_get("q") is None
    limits.resume(store, ["q"])
    assert channel.basic_get("q").decode() == "m"


@pytest.mark.parametrize("partitions", [1, 4])
def test_only_what_is_given_changes(site: Site, partitions: int) -> None:
    store = site.channel(partitions={"q": partitions}).store

    def limited(**given: Any) -> tuple[Any, ...]:
        limits.limit(store, "q", **given)
        [found] = limits.queue_limits(store, ["q"])
        return found.rate, found.burst, found.concurrency

    assert limited(concurrency=20) == (None, None, 20)
    assert limited(rate="100/s") == ("100/s", 100, 20)
    # A burst that is the default follows the rate.
    assert limited(rate="100/m") == ("100/m", max(2, partitions), 20)
    assert limited(burst=10) == ("100/m", 10, 20)
    assert limited(rate="10/m", concurrency=5) == ("10/m", 10, 5)
    assert limited(burst=None) == ("10/m", partitions, 5)
    assert limited(concurrency=None) == ("10/m", partitions, None)
    with pytest.raises(ValueError, match="burst needs a rate"):
        limited(rate=None, burst=3)
    assert limited(rate=None) == (None, None, None)
    with pytest.raises(TypeError, match="say which limit: rate, burst or concurrency"):
        limits.limit(store, "q")


def test_partitions_share_the_limits(site: Site) -> None:
    channel = site.channel(partitions={"q": 4})
    publish(channel, *map(str, range(40)))
    with pytest.raises(ValueError, match="concurrency must be 4 at least"):
        limits.limit(channel.store, "q", concurrency=3)
    limits.limit(channel.store, "q", rate="100/m", concurrency=6)
    [found] = limits.queue_limits(channel.store, ["q"])
    assert (found.rate, found.burst, found.concurrency) == ("100/m", 4, 6)
    limits.limit(channel.store, "q", rate=None)
    inbox = Inbox(channel)
    drain(channel.connection.client, lambda: len(inbox) == 6)
    drain_for(channel.connection.client, 0.3)
    assert len(inbox) == 6
    limits.pause(channel.store, ["q"])
    [found] = limits.queue_limits(channel.store, ["q"])
    assert found.is_paused


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"rate": "often"}, "such as 10/s"),
        ({"burst": 3}, "burst needs a rate"),
        ({"rate": "1/s", "burst": 0}, "burst must be a whole number from 1 to 1,000,000,000, not 0"),
        ({"concurrency": 1_000_000_001}, "concurrency must be a whole number from 1 to 1,000,000,000"),
        ({"rate": "10/s", "burst": 10**18}, "burst must be a whole number from 1 to 1,000,000,000"),
        ({"concurrency": 0}, "concurrency must be a whole number from 1 to 1,000,000,000, not 0"),
        ({"concurrency": 1.5}, "concurrency must be"),
        ({"concurrency": True}, "concurrency must be"),
    ],
)
def test_no_limits(store: Store, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        limits.limit(store, "q", **arguments)
    assert limits.queue_limits(store, ["q"]) == [limits.QueueLimits()]
