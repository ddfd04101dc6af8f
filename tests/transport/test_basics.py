"""Publish, consume, get, ack, reject."""

from __future__ import annotations

import json
import socket
import time

import pytest

from kombu_redisdelay import Messages, Selection
from kombu_redisdelay.broker.delivery import Request
from kombu_redisdelay.broker.server.wire import pack
from tests.transport.kit import Inbox, Site, drain, drain_for, publish


def test_consume_and_ack(site: Site) -> None:
    channel = site.channel()
    publish(channel, "a", "b", "c")
    inbox = Inbox(channel)
    drain(channel.connection.client, lambda: len(inbox) == 3)
    assert inbox.bodies == ["a", "b", "c"]
    assert (site.ready(), site.unacked()) == (0, 3)
    for message in inbox:
        assert not message.delivery_info.get("redelivered")
        assert "x-delivery-count" not in message.headers
        message.ack()
    assert site.unacked() == 0


def test_headers_and_properties_arrive(site: Site) -> None:
    channel = site.channel()
    publish(
        channel, "a", headers={"mine": [1, {}]}, correlation_id="c", priority=5, content_type="text/plain"
    )
    [message] = [channel.basic_get("q")]
    assert message.headers == {"mine": [1, {}]}
    assert message.properties["correlation_id"] == "c"
    assert message.properties["priority"] == 5
    assert message.content_type == "text/plain"
    assert message.delivery_info["routing_key"] == "q"


@pytest.mark.usefixtures("long_polls")
def test_messages_that_come_while_waiting(site: Site) -> None:
    channel, other = site.channel(), site.channel()
    inbox = Inbox(channel)
    drain_for(channel.connection.client, 0.2)
    for count in range(1, 6):
        publish(other, str(count))
        drain(channel.connection.client, lambda count=count: len(inbox) == count)  # type: ignore[misc]


@pytest.mark.parametrize("requeue", [True, False])
def test_reject(site: Site, requeue: bool) -> None:
    channel = site.channel()
    publish(channel, "a", "b")
    message = channel.basic_get("q")
    message.reject(requeue=requeue)
    assert (site.ready(), site.unacked(), len(site.dead())) == (1 + requeue, 0, 0)
    if requeue:
        assert channel.basic_get("q").payload == "b"
        again = channel.basic_get("q")
        assert again.payload == "a"
        assert again.delivery_info["redelivered"] is True
        assert again.headers["x-delivery-count"] == 1


def test_delivery_count_grows(site: Site) -> None:
    channel = site.channel(retry_wait=0)
    publish(channel, "a", headers={"mine": 1})
    for deliveries in range(1, 4):
        channel.basic_get("q").requeue()
        message = channel.basic_get("q")
        assert message.headers == {"mine": 1, "redelivered": True, "x-delivery-count": 2 * deliveries - 1}
        message.requeue()


def test_it_waits_from_the_second_failure_on(site: Site) -> None:
    channel = site.channel(retry_wait=0.3)
    publish(channel, "a", message_id="id")
    channel.basic_get("q").requeue()
    assert (site.ready(), site.scheduled()) == (1, 0)
    channel.basic_get("q").requeue()
    assert (site.ready(), site.scheduled(), site.unacked()) == (0, 1, 0)
    assert channel.basic_get("q") is None
    with Messages(channel.connection.client) as delayed:
        [waiting] = delayed.select(Selection(state="scheduled", queue="q"))
    assert waiting.id == "id"
    inbox = Inbox(channel)
    drain(channel.connection.client, lambda: len(inbox) == 1)
    assert inbox.messages[0].headers["x-delivery-count"] == 2


def test_what_a_worker_rejects_that_was_told_to_stop_at_once_has_not_failed(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("celery.worker.state.should_terminate", True)
    channel = site.channel(delivery_limit=2)
    publish(channel, "a")
    for _ in range(3):
        channel.basic_get("q").reject(requeue=True)
        assert (site.ready(), site.scheduled(), len(site.dead())) == (1, 0, 0)
    assert channel.basic_get("q").headers["x-delivery-count"] == 1


def test_delivery_limit(site: Site) -> None:
    channel = site.channel(delivery_limit=2)
    publish(channel, "a")
    channel.basic_get("q").requeue()
    channel.basic_get("q").requeue()
    assert channel.basic_get("q") is None
    assert len(site.dead()) == 1


class TestBasicGet:
    def test_empty(self, site: Site) -> None:
        assert site.channel().basic_get("q") is None

    def test_holds_until_ack(self, site: Site) -> None:
        channel = site.channel()
        publish(channel, "a", "b")
        message = channel.basic_get("q")
        assert (message.payload, site.ready(), site.unacked()) == ("a", 1, 1)
        message.ack()
        assert site.unacked() == 0

    def test_after_a_take_whose_reply_was_lost(self, site: Site) -> None:
        """What that take got is not stranded in the unacked hash of a consumer that lives on."""
        channel = site.channel()
        publish(channel, "a", "b", "c")
        publish(channel, "loads the script", queue="other")
        channel.basic_get("other").ack()
        # Asked for by the consumer, which does not hear of the reply.
        connection = channel.store.server.new_connection(site.keys().wake)
        takes = channel.consumer.takes_in(channel.store.slot("q"))
        connection.send_packed_command((pack(*takes.ask_for(Request(["q"], 3))),))
        connection.read_response()
        assert [channel.basic_get("q").payload for _ in range(3)] == ["a", "b", "c"]

    def test_without_acks(self, site: Site) -> None:
        channel = site.channel()
        publish(channel, "a")
        assert channel.basic_get("q", no_ack=True).payload == "a"
        assert (site.ready(), site.unacked()) == (0, 0)

    def test_counts_against_the_prefetch_count_as_in_kombu(self, site: Site) -> None:
        channel = site.channel()
        publish(channel, "a", "b")
        inbox = Inbox(channel, prefetch=1)
        message = channel.basic_get("q")
        drain_for(channel.connection.client, 0.2)
        assert len(inbox) == 0
        message.ack()
        drain(channel.connection.client, lambda: len(inbox) == 1)


class TestNoAck:
    def test_nothing_is_held(self, site: Site) -> None:
        channel = site.channel()
        publish(channel, "a", "b")
        inbox = Inbox(channel, no_ack=True, prefetch=1)
        drain(channel.connection.client, lambda: len(inbox) == 2)
        assert (site.ready(), site.unacked()) == (0, 0)
        channel.close()
        assert site.ready() == 0


class TestDrainEvents:
    def test_times_out(self, site: Site) -> None:
        channel = site.channel()
        Inbox(channel)
        for timeout in (0.1, 0.4):
            before = time.monotonic()
            with pytest.raises(socket.timeout):
                channel.connection.client.drain_events(timeout=timeout)
            assert timeout <= time.monotonic() - before < timeout + 5

    def test_times_out_after_longer_than_one_poll(self, site: Site) -> None:
        """Up to a second late, as in kombu's own transport: a wait that was cut short begins again."""
        channel = site.channel()
        Inbox(channel)
        before = time.monotonic()
        with pytest.raises(socket.timeout):
            channel.connection.client.drain_events(timeout=1.3)
        assert 1.3 <= time.monotonic() - before < 1.3 + 5

    def test_one_message_at_a_time(self, site: Site) -> None:
        channel = site.channel()
        publish(channel, "a", "b")
        inbox = Inbox(channel)
        channel.connection.client.drain_events(timeout=5)
        assert inbox.bodies == ["a"]
        channel.connection.client.drain_events(timeout=5)
        assert inbox.bodies == ["a", "b"]


@pytest.mark.parametrize(
    "entry",
    [
        b"",
        b"not JSON",
        b"\xff\xfe",
        b"[]",
        b"5",
        b"{}",
        b"null",
        json.dumps({"properties": {}, "headers": ["x"], "body": ""}).encode(),
        json.dumps({"properties": {"body_encoding": "rot13"}, "body": "x"}).encode(),
        json.dumps({"properties": {"body_encoding": "base64"}, "body": "x"}).encode(),
    ],
)
def test_an_entry_that_is_no_message_is_buried_and_the_rest_delivered(
    site: Site, entry: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    channel = site.channel()
    publish(channel, "a")
    site.redis.lpush(site.keys().ready, entry)
    publish(channel, "b")
    inbox = Inbox(channel)
    drain(channel.connection.client, lambda: len(inbox) == 2)
    assert inbox.bodies == ["a", "b"]
    [letter] = site.dead()
    assert letter.split(b"\n", 1)[1] == entry
    assert site.unacked() == 2
    assert len([record for record in caplog.records if "not a message" in record.getMessage()]) == 1
