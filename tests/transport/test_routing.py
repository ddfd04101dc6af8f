"""Exchanges and fanout."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
from celery import Celery
from kombu.common import Broadcast
from kombu.entity import Exchange, Queue

from kombu_redisdelay import batch
from kombu_redisdelay.broker.keys import known_queues
from kombu_redisdelay.transport import bindings
from kombu_redisdelay.transport.bindings import MOST_COMPARED
from tests.transport.kit import Inbox, Site, drain, drain_for, publish

DELAYED = {"x-delay": 150}


@pytest.mark.parametrize(
    ("exchange", "keys", "routing_key"),
    [
        (Exchange("d", "direct"), ("k", "k", "other"), "k"),
        (Exchange("t", "topic"), ("a.*", "a.#", "b.*"), "a.b"),
    ],
)
@pytest.mark.parametrize("headers", [{}, DELAYED])
def test_each_bound_queue_gets_it_once(
    site: Site, exchange: Exchange, keys: tuple[str, ...], routing_key: str, headers: dict[str, Any]
) -> None:
    channel = site.channel()
    queues = [Queue(f"q{n}", exchange, routing_key=key) for n, key in enumerate(keys)]
    inboxes = [Inbox(channel, queue) for queue in queues]
    publish(channel, "a", exchange=exchange, routing_key=routing_key, headers=headers)
    assert [site.scheduled(queue.name) for queue in queues] == ([1, 1, 0] if headers else [0, 0, 0])
    connection = channel.connection.client
    drain(connection, lambda: inboxes[0] and inboxes[1])
    drain_for(connection, 0.1)
    assert [len(inbox) for inbox in inboxes] == [1, 1, 0]


@pytest.mark.parametrize("batched", [False, True], ids=["one", "batch"])
@pytest.mark.parametrize("headers", [{}, DELAYED], ids=["now", "later"])
def test_an_exchange_that_the_publisher_has_not_declared(
    site: Site, headers: dict[str, Any], batched: bool
) -> None:
    """It is named in a route, or in a call, and workers have bound queues to it by patterns."""
    exchange = Exchange("films", "topic")
    # kombu keeps connections of a URL, and a process notes a queue once a minute.
    names = [f"{name} {bool(headers)} {batched}" for name in ("hd", "all", "sound")]
    for name, key in zip(names, ("video.hd", "video.#", "sound.*"), strict=True):
        Queue(name, exchange, key, channel=site.channel()).declare()
    app = Celery("publisher", broker=site.url, set_as_current=False)
    site.connect().transport.state.exchanges.clear()
    app.conf.task_routes = {"cut": {"exchange": "films", "routing_key": "video.hd"}}
    site.redis.delete(known_queues(""))
    for _ in range(2):
        with batch(app) if batched else nullcontext():
            app.send_task("cut", headers={"x-delay": 60_000} if headers else {})
    assert [site.ready(name) + site.scheduled(name) for name in names] == [2, 2, 0]
    # Lists of all queues have them.
    noted = {name.decode() for name in site.redis.zrange(known_queues(""), 0, -1)}
    assert noted == set(names[:2])


def test_a_program_with_another_separator_is_bound_to_the_exchange(site: Site) -> None:
    """What it has written there is no binding here."""
    exchange = Exchange("shared")
    for options in ({"sep": ":"}, {}):
        Queue("q", exchange, "k", channel=site.channel(**options)).declare()
    channel = site.channel()
    publish(channel, "a", exchange=exchange, routing_key="k")
    assert site.ready("q") == 1


class TestBindingsThatChange:
    """Somebody else changes them between two messages of ours, which remembers where the first one went."""

    @pytest.fixture(params=["direct", "topic"])
    def exchange(self, request: pytest.FixtureRequest) -> Exchange:
        return Exchange(request.param, request.param)

    @pytest.fixture(params=[{}, {"x-delay": 60_000}], ids=["now", "later"])
    def headers(self, request: pytest.FixtureRequest) -> Any:
        return request.param

    def count(self, site: Site, *queues: str) -> list[int]:
        return [site.ready(queue) + site.scheduled(queue) for queue in queues]

    def test_bound(self, site: Site, exchange: Exchange, headers: Any) -> None:
        channel, other = site.channel(), site.channel()
        Queue("one", exchange, "k", channel=other).declare()
        publish(channel, "a", "b", exchange=exchange, routing_key="k", headers=headers)
        assert self.count(site, "one", "two") == [2, 0]
        Queue("two", exchange, "k", channel=other).declare()
        publish(channel, "c", "d", exchange=exchange, routing_key="k", headers=headers)
        assert self.count(site, "one", "two") == [4, 2]

    def test_bound_elsewhere(self, site: Site, exchange: Exchange, headers: Any) -> None:
        channel, other = site.channel(), site.channel()
        one = Queue("one", exchange, "k", channel=other)
        one.declare()
        publish(channel, "a", "b", exchange=exchange, routing_key="k", headers=headers)
        one.delete()
        Queue("two", exchange, "k", channel=other).declare()
        publish(channel, "c", "d", exchange=exchange, routing_key="k", headers=headers)
        assert self.count(site, "one", "two") == [0, 2]

    def test_the_body_is_encoded_once(self, site: Site, exchange: Exchange) -> None:
        channel, other = site.channel(), site.channel()
        Queue("one", exchange, "k", channel=other).declare()
        publish(channel, "a", exchange=exchange, routing_key="k")
        Queue("two", exchange, "other", channel=other).declare()
        publish(channel, "b", exchange=exchange, routing_key="k")
        inbox = Inbox(other, "one")
        drain(other.connection.client, lambda: len(inbox) == 2)
        assert inbox.bodies == ["a", "b"]

    @pytest.mark.one_server
    def test_one_round_trip_where_they_do_not(self, site: Site, exchange: Exchange, headers: Any) -> None:
        channel = site.channel()
        Queue("one", exchange, "k", channel=channel).declare()
        publish(channel, "a", exchange=exchange, routing_key="k", headers=headers)
        before = site.redis.info("commandstats")["cmdstat_smembers"]["calls"]
        publish(channel, "b", "c", exchange=exchange, routing_key="k", headers=headers)
        assert site.redis.info("commandstats")["cmdstat_smembers"]["calls"] == before
        assert self.count(site, "one") == [3]

    def test_too_many_to_compare(self, site: Site, exchange: Exchange) -> None:
        channel = site.channel()
        for number in range(MOST_COMPARED + 1):
            Queue(f"q{number}", exchange, f"k{number}", channel=channel).declare()
        publish(channel, "a", "b", exchange=exchange, routing_key="k3")
        assert self.count(site, "q2", "q3") == [0, 2]

    def test_the_routes_kept_are_bounded(self, site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(bindings, "MOST_ROUTES", 3)
        channel = site.channel()
        topic = Exchange("t", "topic")
        Queue("q", topic, "#", channel=channel).declare()
        for number in range(8):
            publish(channel, "a", exchange=topic, routing_key=f"k{number}")
        assert site.ready() == 8
        assert len(channel._routes._routes) <= 3


class TestFanout:
    def queue(self, name: str) -> Queue:
        return Queue(name, Exchange("f", "fanout"), auto_delete=True)

    def test_reaches_every_listener(self, site: Site) -> None:
        channels = [site.channel() for _ in range(2)]
        inboxes = [Inbox(channel, self.queue(f"f{n}")) for n, channel in enumerate(channels)]
        for channel in channels:
            drain_for(channel.connection.client, 0.1)
        publish(site.channel(), "a", exchange=Exchange("f", "fanout"), queue="")
        for channel, inbox in zip(channels, inboxes, strict=True):
            drain(channel.connection.client, lambda inbox=inbox: len(inbox) == 1)  # type: ignore[misc]
            inbox.messages[0].ack()
        assert not site.all_keys("redisdelay:*unacked*")

    @pytest.mark.parametrize("batched", [False, True])
    def test_of_a_celery_app_that_has_not_declared_it(self, site: Site, batched: bool) -> None:
        """Celery declares a Broadcast only where it is consumed. Here it is another process."""
        channel = site.channel()
        inbox = Inbox(channel, Broadcast("news", routing_key="celery"))
        connection = channel.connection.client
        drain_for(connection, 0.2)
        connection.transport.state.exchanges.clear()
        app = Celery("publisher", broker=site.url, set_as_current=False)
        app.conf.task_queues = [Broadcast("news")]
        with batch(app) if batched else nullcontext():
            app.send_task("task", queue="news", countdown=0.01)
            app.send_task("task", queue="another")
        drain(connection, lambda: inbox)
        assert site.ready("another") == 1
        assert site.all_keys("*bcast*:wake") == []
        app.close()

    def test_beside_an_ordinary_queue_on_one_channel(self, site: Site) -> None:
        channel = site.channel()
        fanout, ordinary = Inbox(channel, self.queue("f1")), Inbox(channel, "q")
        connection = channel.connection.client
        drain_for(connection, 0.1)
        publish(channel, "a", exchange=Exchange("f", "fanout"), queue="")
        publish(channel, "b")
        drain(connection, lambda: fanout and ordinary)
        assert (fanout.bodies, ordinary.bodies) == (["a"], ["b"])

    def test_delay_is_an_error(self, site: Site) -> None:
        channel = site.channel()
        with pytest.raises(ValueError, match=r"x-delay.*'f'"):
            publish(channel, "a", exchange=Exchange("f", "fanout"), queue="", headers=DELAYED)
