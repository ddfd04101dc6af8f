"""A plan (broker/plan.py) publishes a plain message as it is published without a plan, and never outlives
what it assumed."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kombu.entity import Exchange, Queue
from kombu.messaging import Producer
from redis.exceptions import ResponseError

from kombu_redisdelay import QueueFull
from kombu_redisdelay.broker import message as broker_message
from kombu_redisdelay.broker.limits import FairQueues, LimitStore
from kombu_redisdelay.transport.publishing import PublishedTag
from tests.environments import examples
from tests.transport.kit import Inbox, Site, drain, in_seconds, publish

LATER = "2099-01-01T00:00:00+00:00"

pytestmark = pytest.mark.one_server

HEADERS = st.fixed_dictionaries(
    {},
    optional={
        "task": st.sampled_from(["t", "ü"]),
        "id": st.sampled_from(["id", "an ☃ id", ""]),
        "eta": st.sampled_from([None, "", LATER, "2001-01-01T00:00:00", "2099-01-01T00:00:00.123456+02:00"]),
        "expires": st.sampled_from([None, "", LATER]),
        "x-key": st.sampled_from(["tenant", "ü", 3, "", True]),
        "x-key-weight": st.sampled_from([1, 7, 0, "much"]),
        "mine": st.integers(),
    },
)
PROPERTIES = st.fixed_dictionaries(
    {"priority": st.sampled_from([0, 3, 9, 9, None])},
    optional={
        "correlation_id": st.just("c"),
        "delivery_mode": st.sampled_from([1, 2]),
        "message_id": st.just("m"),
    },
)


@pytest.fixture
def at_one_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock of publishers stands still, and the tags that kombu gives are the same."""
    monkeypatch.setattr(broker_message, "time", lambda: 1_700_000_000.25)


def published(site: Site, channel: Any, queue: str, headers: Any, properties: Any, body: str) -> Any:
    """What is in Redis after that, or the error."""
    site.redis.flushall()
    channel.store.known_until.clear()
    channel._next_delivery_tag = lambda: PublishedTag("tag")
    try:
        message = channel.prepare_message(
            body, priority=properties["priority"], content_type="text/plain", content_encoding="utf-8"
        )
        message["headers"] = dict(headers)
        message["properties"] = {**message["properties"], **properties, "delivery_info": {}}
        channel.basic_publish(message, "", queue)
    except (ValueError, ResponseError) as exc:
        return str(exc)
    found = {}
    for key in site.redis.keys("*"):
        match site.redis.type(key):
            case b"list":
                found[key] = site.redis.lrange(key, 0, -1)
            case b"hash":
                found[key] = site.redis.hgetall(key)
            case _:
                # Known queues have the server's time.
                with_scores = not key.endswith(b":known-queues")
                found[key] = site.redis.zrange(key, 0, -1, withscores=with_scores)
    return found


@settings(
    max_examples=examples(400),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    headers=HEADERS,
    properties=PROPERTIES,
    queue=st.sampled_from(["q", "a queue é", "declared"]),
    body=st.sampled_from(["", "text", "☃" * 100, "x" * 70_000]),
)
@pytest.mark.usefixtures("at_one_moment")
def test_it_publishes_the_same(
    site: Site, headers: dict[str, Any], properties: dict[str, Any], queue: str, body: str
) -> None:
    channel = site.channel()
    try:
        Queue("declared")(channel).declare()
        by_plan = published(site, channel, queue, headers, properties, body)
        channel._has_pushed = lambda *args: False
        assert published(site, channel, queue, headers, properties, body) == by_plan
    finally:
        channel.connection.client.release()


@pytest.mark.parametrize("headers", [{}, {"eta": LATER}])
def test_nearly_all_go_by_one(site: Site, headers: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    channel = site.channel()
    monkeypatch.setattr(channel, "_outgoing", None)
    publish(channel, "m", headers=headers)
    assert site.ready() + site.scheduled() == 1


def test_few_keys_of_a_queue_are_made(site: Site) -> None:
    """A process may publish to thousands of queues."""
    channel, queue = site.channel(), "used by this test only"
    publish(channel, "m", queue=queue)
    publish(channel, "m", queue=queue, headers={"eta": LATER})
    keys = vars(channel.store.keys(queue))
    made = [name for name, key in keys.items() if str(key).startswith("redisdelay:")]
    assert sorted(made) == ["base", "duplicates", "messages", "schedule", "wake"]


def test_what_was_read_from_redis_has_one_time(site: Site) -> None:
    channel = site.channel()
    message = channel.prepare_message("m", properties={"delivery_info": {}})
    channel.basic_publish({"redisdelay-due": 5, **message}, "", "q")
    [payload] = site.redis.lrange("q", 0, -1)
    assert payload.count(b"redisdelay-due") == 1


class TestWhatItAssumed:
    """It changes between two publishes of a process that does nothing else."""

    def test_the_queue_becomes_fair(self, site: Site) -> None:
        channel, other = site.channel(), site.channel()
        publish(channel, "a")
        FairQueues(other.store).switch_on(["q"])
        publish(channel, "b", headers={"x-key": "tenant"})
        publish(channel, "c")
        inbox = Inbox(other)
        drain(other.connection.client, lambda: len(inbox) == 3)
        assert sorted(inbox.bodies) == ["a", "b", "c"]

    def test_the_queue_is_paused(self, site: Site) -> None:
        channel, other = site.channel(), site.channel()
        publish(channel, "a")
        LimitStore(other.store).pause(["q"])
        publish(channel, "b")
        assert site.ready() == 2

    def test_the_queue_is_deleted(self, site: Site) -> None:
        channel, other = site.channel(), site.channel()
        Queue("q")(channel).declare()
        publish(channel, "a")
        other.queue_delete("q")
        publish(channel, "b")
        assert site.ready() == 1

    @pytest.mark.parametrize("eta", [None, LATER])
    def test_the_scripts_are_forgotten(self, site: Site, eta: str | None) -> None:
        channel = site.channel()
        publish(channel, "a", headers={"eta": eta})
        site.redis.script_flush()
        publish(channel, "b", "c", headers={"eta": eta})
        assert site.ready() + site.scheduled() == 3

    def test_the_queue_gets_a_bound(self, site: Site) -> None:
        channel = site.channel()
        publish(channel, "a")
        arguments = {"x-max-length": 2, "x-overflow": "reject-publish"}
        Queue("q", queue_arguments=arguments)(channel).declare()
        publish(channel, "b")
        with pytest.raises(QueueFull):
            publish(channel, "c")

    def test_the_queue_expires_from_now_on(self, site: Site) -> None:
        channel = site.channel()
        publish(channel, "a")
        assert site.redis.ttl("q") == -1
        Queue("q", queue_arguments={"x-expires": 3_600_000})(channel).declare()
        publish(channel, "b")
        assert site.redis.ttl("q") > 0

    def test_the_exchange_of_the_queue_is_unbound(self, site: Site) -> None:
        channel, other = site.channel(), site.channel()
        exchange = Exchange("e")
        queue = Queue("q", exchange, "key")(channel)
        queue.declare()
        producer = Producer(channel, exchange=exchange)
        producer.publish("a", routing_key="key")
        queue(other).unbind_from(exchange, "key")
        producer.publish("b", routing_key="key")
        publish(channel, "c")
        assert site.ready() == 2

    def test_another_thread_uses_the_connection(self, site: Site) -> None:
        channel = site.channel()
        publish(channel, "a")
        with channel.store.server.line._lock:
            publish(channel, "b")
            publish(channel, "c", headers={"eta": in_seconds(60).isoformat()})
        assert (site.ready(), site.scheduled()) == (2, 1)
