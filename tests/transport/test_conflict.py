"""The header x-delay-on-conflict, through kombu."""

from __future__ import annotations

from typing import Any

import pytest
from kombu.entity import Exchange, Queue
from kombu.messaging import Producer

from tests.transport.kit import Inbox, Site, drain, in_seconds, publish

pytestmark = pytest.mark.one_server


def headers(on_conflict: object = None, delay: int | None = 60_000, id: str = "key") -> dict[str, Any]:
    headers: dict[str, Any] = {"id": id}
    if delay is not None:
        headers["x-delay"] = delay
    if on_conflict is not None:
        headers["x-delay-on-conflict"] = on_conflict
    return headers


def receive(channel: Any, how_many: int) -> list[str]:
    inbox = Inbox(channel)
    drain(channel.connection.client, lambda: len(inbox) >= how_many)
    return inbox.bodies


@pytest.mark.parametrize(("on_conflict", "expected"), [(None, 2), ("keep", 2), ("replace", 1), ("ignore", 1)])
def test_how_many_wait(site: Site, on_conflict: str | None, expected: int) -> None:
    channel = site.channel()
    publish(channel, "old", headers=headers())
    publish(channel, "new", headers=headers(on_conflict))
    assert site.scheduled() == expected


@pytest.mark.parametrize(("on_conflict", "expected"), [("replace", "new"), ("ignore", "old")])
def test_which_one_is_delivered(site: Site, on_conflict: str, expected: str) -> None:
    channel = site.channel()
    publish(channel, "old", headers=headers(delay=300))
    publish(channel, "new", headers=headers(on_conflict, delay=200))
    assert receive(channel, 1) == [expected]
    assert (site.ready(), site.scheduled()) == (0, 0)


def test_by_an_eta(site: Site) -> None:
    channel = site.channel()
    for _ in range(3):
        task = {"id": "key", "task": "t", "eta": in_seconds(60).isoformat(), "x-delay-on-conflict": "replace"}
        publish(channel, "a", headers=task)
    assert site.scheduled() == 1


@pytest.mark.parametrize("name", ["message_id", "correlation_id"])
def test_by_any_id(site: Site, name: str) -> None:
    channel = site.channel()
    for body in ("old", "new"):
        options: dict[str, Any] = {
            "headers": {"x-delay": 60_000, "x-delay-on-conflict": "replace"},
            name: "key",
        }
        publish(channel, body, **options)
    assert site.scheduled() == 1


def test_without_an_id_there_is_no_conflict(site: Site) -> None:
    channel = site.channel()
    for body in ("old", "new"):
        publish(channel, body, headers={"x-delay": 60_000, "x-delay-on-conflict": "replace"})
    assert site.scheduled() == 2


class TestWithoutADelay:
    """As if it were due now."""

    def test_replaces_what_waits_and_is_delivered_at_once(self, site: Site) -> None:
        channel = site.channel()
        publish(channel, "old", headers=headers())
        publish(channel, "new", headers=headers("replace", delay=None))
        assert (site.ready(), site.scheduled()) == (1, 0)
        assert receive(channel, 1) == ["new"]

    def test_is_ignored_for_what_waits(self, site: Site) -> None:
        channel = site.channel()
        publish(channel, "old", headers=headers())
        publish(channel, "new", headers=headers("ignore", delay=None))
        assert (site.ready(), site.scheduled()) == (0, 1)

    @pytest.mark.parametrize("on_conflict", ["keep", "replace", "ignore"])
    def test_is_delivered_when_nothing_waits(self, site: Site, on_conflict: str) -> None:
        channel = site.channel()
        publish(channel, "a", headers=headers(on_conflict, delay=None))
        assert receive(channel, 1) == ["a"]


@pytest.mark.parametrize("wrong", ["Replace", "", "update", 1, True, None, ["replace"]])
@pytest.mark.parametrize("delay", [None, 60_000])
def test_an_unknown_value_is_an_error_and_nothing_is_published(
    site: Site, wrong: object, delay: int | None
) -> None:
    channel = site.channel()
    publish(channel, "old", headers=headers())
    with pytest.raises(ValueError, match="x-delay-on-conflict"):
        publish(channel, "new", headers={**headers(delay=delay), "x-delay-on-conflict": wrong})
    assert (site.ready(), site.scheduled()) == (0, 1)


def test_each_queue_of_an_exchange_for_itself(site: Site) -> None:
    channel = site.channel()
    exchange = Exchange("topics", type="topic")
    queues = [Queue(name, exchange, routing_key="#") for name in ("one", "two")]
    for queue in queues:
        queue(channel).declare()
    publish(channel, "old", headers=headers(), queue="one")
    for body in ("a", "b"):
        publish(channel, body, headers=headers("replace"), exchange=exchange, queue="key")
    assert (site.scheduled("one"), site.scheduled("two")) == (1, 1)


class TestRetry:
    """A consumer publishes the headers that it was given, as a Celery task that retries does."""

    @pytest.mark.parametrize("on_conflict", ["replace", "ignore"])
    def test_is_no_conflict_with_what_was_scheduled_meanwhile(self, site: Site, on_conflict: str) -> None:
        channel = site.channel()
        publish(channel, "old", headers=headers(on_conflict, delay=100))
        inbox = Inbox(channel)
        drain(channel.connection.client, lambda: len(inbox) == 1)
        publish(channel, "new", headers=headers(on_conflict))
        again = {**inbox.messages[0].headers, "retries": 1, "x-delay": 60_000}
        publish(channel, "retry of old", headers=again)
        assert site.scheduled() == 2

    def test_nor_of_one_that_another_transport_published(self, site: Site) -> None:
        stock = site.connect(site.url.replace("redisdelay", "redis")).channel()
        publish(stock, "old", headers=headers("replace", delay=None))
        channel = site.channel()
        inbox = Inbox(channel)
        drain(channel.connection.client, lambda: len(inbox) == 1)
        assert "x-delay-on-conflict" not in inbox.messages[0].headers


@pytest.mark.skipif(not hasattr(Producer, "batch"), reason="kombu < 5.7 has no batches")
def test_in_a_batch(site: Site) -> None:
    channel = site.channel()
    publish(channel, "old", headers=headers())
    producer = Producer(channel)
    with producer.batch():
        for body in ("a", "b"):
            producer.publish(body, exchange="", routing_key="q", headers=headers("replace"))
    assert site.scheduled() == 1
