"""Many messages published together, with ``Producer.batch`` of kombu 5.7."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
from kombu import exceptions
from kombu.entity import Exchange, Queue
from kombu.messaging import Producer
from redis import Redis

from tests.transport.kit import Inbox, Site, drain

LATER = {"headers": {"x-delay": 60_000}}


@pytest.fixture(autouse=True)
def has_batches() -> None:
    if not hasattr(Producer, "batch"):
        pytest.skip("kombu < 5.7")


@contextmanager
def commands(redis: Redis) -> Iterator[dict[str, int]]:
    """How often the server runs each command meanwhile."""
    counts: dict[str, int] = {}
    redis.config_resetstat()
    yield counts
    counts |= {name[8:]: stats["calls"] for name, stats in redis.info("commandstats").items()}


@pytest.mark.parametrize("prefix", ["", "app:"])
def test_now_and_later(site: Site, prefix: str) -> None:
    channel = site.channel(global_keyprefix=prefix)
    assert channel.supports_batch_publish
    producer = Producer(channel)
    with producer.batch():
        for n in range(5):
            producer.publish(str(n), routing_key="q")
        producer.publish("later", routing_key="q", **LATER)
        assert site.redis.llen(site.keys(prefix=prefix).ready) == 0
    assert site.redis.llen(site.keys(prefix=prefix).ready) == 5
    assert site.redis.zcard(site.keys(prefix=prefix).schedule) == 1
    assert site.redis.zcard(site.keys(prefix=prefix).wake) == 1
    assert all(key.startswith(prefix.encode()) for key in site.all_keys())


def test_in_the_order_in_which_they_were_published(site: Site) -> None:
    channel = site.channel()
    inbox = Inbox(channel)
    producer = Producer(channel)
    with producer.batch(max_size=3):
        for n in range(10):
            producer.publish(str(n), routing_key="q")
    drain(channel.connection.client, lambda: len(inbox) == 10)
    assert inbox.bodies == [str(n) for n in range(10)]


@pytest.mark.one_server
def test_one_token_for_all(site: Site) -> None:
    producer = Producer(site.channel())
    with commands(site.redis) as ran, producer.batch():
        for _ in range(50):
            producer.publish("", routing_key="q")
    assert (ran["lpush"], ran["zadd"]) == (50, 1)


def test_a_full_batch_is_published(site: Site) -> None:
    producer = Producer(site.channel())
    with producer.batch(max_size=3):
        for n in range(8):
            producer.publish(str(n), routing_key="q")
        assert site.ready() == 6
    assert site.ready() == 8


def test_nothing_of_one_that_is_abandoned(site: Site) -> None:
    producer = Producer(site.channel())

    def publish_and_fail() -> None:
        with producer.batch():
            producer.publish("a", routing_key="q")
            raise KeyError

    with pytest.raises(KeyError):
        publish_and_fail()
    producer.publish("b", routing_key="q")
    assert site.ready() == 1


def test_a_delay_that_makes_no_sense(site: Site) -> None:
    producer = Producer(site.channel())
    with producer.batch():
        producer.publish("a", routing_key="q")
        with pytest.raises(ValueError, match="x-delay"):
            producer.publish("b", routing_key="q", headers={"x-delay": -1})
        producer.publish("c", routing_key="q")
    assert site.ready() == 2


def test_a_server_that_forgets_the_scripts(site: Site) -> None:
    producer = Producer(site.channel())
    producer.publish("", routing_key="q", **LATER)
    with producer.batch():
        for _ in range(3):
            producer.publish("", routing_key="q", **LATER)
        site.redis.script_flush()
    assert site.scheduled() == 4


def test_in_order_on_a_server_that_knows_no_script(site: Site) -> None:
    channel = site.channel()
    exchange = Exchange("x", "direct")
    for key in "ab":
        Queue("q", exchange, key)(channel).declare()
    site.redis.script_flush()
    inbox = Inbox(channel)
    producer = Producer(channel, exchange)
    with producer.batch():
        for n, key in enumerate("aaabbb"):
            producer.publish(str(n), routing_key=key)
    drain(channel.connection.client, lambda: len(inbox) == 6)
    assert inbox.bodies == [str(n) for n in range(6)]


def test_to_all_queues_of_a_message_or_to_none(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    channel = site.channel()
    exchange = Exchange("x", "topic")
    for queue in ("one", "two"):
        Queue(queue, exchange, f"{queue}.#")(channel).declare()
        Queue(queue, exchange, "both")(channel).declare()
    producer = Producer(channel, exchange)
    schedule = channel.store.schedule

    def one_only(queue: str, *args: Any) -> Any:
        if queue == "two":
            raise LookupError
        return schedule(queue, *args)

    with producer.batch():
        with monkeypatch.context() as patch:
            patch.setattr(channel.store, "schedule", one_only)
            with pytest.raises(LookupError):
                producer.publish("", routing_key="both", **LATER)
        producer.publish("", routing_key="one.only", **LATER)
    assert (site.scheduled("one"), site.scheduled("two")) == (1, 0)


def test_the_server_refuses_a_message(site: Site) -> None:
    site.redis.set(site.keys("wrong").ready, "of somebody else")
    producer = Producer(site.channel())
    site.redis.script_flush()

    def publish() -> None:
        with producer.batch() as batch:
            producer.publish("a", routing_key="q")
            producer.publish("b", routing_key="wrong")
            producer.publish("c", routing_key="q")
            producer.publish("d", routing_key="q", **LATER)
            with pytest.raises(exceptions.BatchPublishError, match=r"wrong\}?' holds a string"):
                batch.flush()
            with pytest.raises(exceptions.BatchPublishError, match="cannot go on"):
                producer.publish("e", routing_key="q")

    # When it ends, too: what was published is uncertain.
    with pytest.raises(exceptions.BatchPublishError):
        publish()
    assert (site.ready(), site.scheduled()) == (2, 1)


@pytest.mark.one_server
def test_a_line_that_is_slow(site: Site) -> None:
    """Python applies the timeout of a socket to all that is sent at once."""
    channel = site.channel(socket_timeout=1)
    producer = Producer(channel)
    producer.publish("", routing_key="q")
    own = channel.store.server.line.connection
    sizes: list[int] = []
    send = own.send_packed_command

    def note(pieces: Sequence[bytes], check_health: bool = True) -> None:
        sizes.extend(map(len, pieces))
        send(pieces, check_health)

    own.send_packed_command = note
    with producer.batch():
        for _ in range(50):
            producer.publish("x" * 30_000, routing_key="q")
    assert site.ready() == 51
    assert sum(sizes) > 1_500_000 > 10 * max(sizes)


class TestExchange:
    @pytest.fixture
    def exchange(self) -> Exchange:
        return Exchange("x", "direct")

    def declare(self, channel: Any, exchange: Exchange, queue: str = "q") -> Queue:
        bound: Queue = Queue(queue, exchange, "key")(channel)
        bound.declare()
        return bound

    @pytest.mark.one_server
    @pytest.mark.parametrize("headers", [{}, LATER["headers"]])
    def test_its_bindings_are_read_once(
        self, site: Site, exchange: Exchange, headers: dict[str, object]
    ) -> None:
        channel = site.channel()
        self.declare(channel, exchange)
        producer = Producer(channel, exchange)
        with commands(site.redis) as ran, producer.batch():
            for _ in range(5):
                producer.publish("", routing_key="key", headers=headers)
        assert ran["smembers"] == 1
        assert site.ready() + site.scheduled() == 5

    # Only one server can check them again.
    @pytest.mark.one_server
    def test_its_bindings_change_before_it_is_published(self, site: Site, exchange: Exchange) -> None:
        channel = site.channel()
        self.declare(channel, exchange)
        producer = Producer(channel, exchange)
        producer.publish("", routing_key="key")
        site.redis.set(site.keys("wrong").ready, "of somebody else")

        def publish() -> None:
            with producer.batch():
                producer.publish("refused", exchange=Exchange(""), routing_key="wrong")
                producer.publish("a", routing_key="key")
                producer.publish("later", routing_key="key", **LATER)
                self.declare(site.channel(), exchange, "other")

        # Which keeps no other back.
        with pytest.raises(exceptions.BatchPublishError, match=r"wrong\}?' holds a string"):
            publish()
        assert (site.ready(), site.scheduled()) == (2, 1)
        assert (site.ready("other"), site.scheduled("other")) == (1, 1)

    def test_several_queues(self, site: Site, exchange: Exchange) -> None:
        channel = site.channel()
        for name in ("a", "b"):
            self.declare(channel, exchange, name)
        producer = Producer(channel, exchange)
        with producer.batch():
            producer.publish("", routing_key="key")
            producer.publish("", routing_key="key")
            assert site.ready("a") == 0
        assert (site.ready("a"), site.ready("b")) == (2, 2)

    def test_fanout(self, site: Site) -> None:
        everybody = Exchange("everybody", "fanout")
        channel = site.channel()
        inbox = Inbox(channel, Queue("mine", everybody))
        connection = channel.connection.client
        other = site.channel()
        # From then on it listens.
        drain(connection, site.listeners)
        everybody(other).declare()
        producer = Producer(other)
        with producer.batch(max_size=3):
            producer.publish("a", exchange=everybody)
            producer.publish("b", routing_key="q")
            assert not inbox
            assert site.ready() == 0
            producer.publish("c", exchange=everybody)
            drain(connection, lambda: len(inbox) == 2)
            assert (inbox.bodies, site.ready()) == (["a", "c"], 1)
