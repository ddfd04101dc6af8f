"""``requeue(message, delay)``: a message that is delivered again later."""

from __future__ import annotations

import logging
import math
import time
from types import SimpleNamespace
from typing import Any

import pytest
from kombu.connection import Connection
from kombu.entity import Exchange, Queue
from kombu.exceptions import MessageStateError

from kombu_redisdelay import Messages, Selection, requeue
from kombu_redisdelay.transport import qos
from tests.transport.kit import Inbox, Site, drain, drain_for, in_seconds, publish

#: Seconds by which a clock of the server and one of ours may differ over a moment.
CLOCKS = 0.01


def one_message(channel: Any, **options: Any) -> tuple[Inbox, Any]:
    inbox = Inbox(channel, **options)
    drain(channel.connection.client, lambda: len(inbox))
    return inbox, inbox.messages[0]


def test_comes_again_after_the_delay_and_counts(site: Site) -> None:
    channel = site.channel()
    publish(channel, "a", headers={"x-delay": 10, "mine": 1}, message_id="id", priority=6)
    inbox, message = one_message(channel)
    for failures in (1, 2):
        before = time.monotonic()
        requeue(message, 0.3)
        assert (site.unacked(), site.scheduled(), site.ready()) == (0, 1, 0)
        drain(channel.connection.client, lambda: len(inbox) > failures)  # noqa: B023
        assert time.monotonic() - before > 0.3 - CLOCKS
        message = inbox.messages[-1]
        assert message.payload == "a"
        assert message.headers == {"mine": 1, "x-delivery-count": failures, "redelivered": True}
        assert message.delivery_info["redelivered"]
        assert (message.properties["message_id"], message.properties["priority"]) == ("id", 6)
    message.ack()
    assert (site.unacked(), site.scheduled(), site.ready()) == (0, 0, 0)


def test_an_eta_that_has_passed_does_not_bring_it_earlier(site: Site) -> None:
    channel = site.channel()
    eta = in_seconds(0.1).isoformat()
    publish(channel, "a", headers={"id": "id", "task": "t", "eta": eta})
    inbox, message = one_message(channel)
    before = time.monotonic()
    requeue(message, 0.5)
    drain(channel.connection.client, lambda: len(inbox) == 2)
    assert time.monotonic() - before > 0.5 - CLOCKS
    # Celery's worker compares it with its clock, and would wait for one that is in the future.
    assert inbox.messages[1].headers["eta"] == eta


@pytest.mark.parametrize("id", ["its id", None])
def test_is_found_by_the_id_that_was_published(site: Site, id: str | None) -> None:
    channel = site.channel()
    publish(channel, "a", **({} if id is None else {"message_id": id}))
    _, message = one_message(channel)
    message.properties.clear()
    message.headers["id"] = "the application's"
    requeue(message, 60)
    with Messages(site.connect()) as delayed:
        [waiting] = delayed.select(Selection(state="scheduled", queue="q"))
        assert id in (None, waiting.id)
        assert delayed.cancel(ids=[waiting.id])


def test_makes_room_in_the_prefetch_count(site: Site) -> None:
    channel = site.channel()
    publish(channel, "a", "b")
    inbox, message = one_message(channel, prefetch=1)
    assert not channel.qos.can_consume()
    requeue(message, 60)
    drain(channel.connection.client, lambda: len(inbox) == 2)
    assert inbox.bodies == ["a", "b"]


def test_a_message_of_basic_get(site: Site) -> None:
    channel = site.channel()
    publish(channel, "a")
    message = channel.basic_get("q")
    requeue(message, 60)
    assert (site.unacked(), site.scheduled()) == (0, 1)
    assert channel.basic_get("q") is None


def test_stays_in_its_partition(site: Site) -> None:
    channel = site.channel(partitions={"q": 3})
    publish(channel, *map(str, range(20)))
    inbox = Inbox(channel)
    drain(channel.connection.client, lambda: len(inbox) == 20)
    for message in inbox:
        requeue(message, 0.2)
    names = ("q", "q#1", "q#2")
    assert sum(map(site.scheduled, names)) == 20
    assert all(map(site.scheduled, names))
    drain(channel.connection.client, lambda: len(inbox) == 40)
    assert sorted(inbox.bodies[20:], key=int) == list(map(str, range(20)))


def test_a_queue_that_expires(site: Site) -> None:
    channel = site.channel()
    queue = Queue("q", queue_arguments={"x-expires": 30_000}, channel=channel)
    queue.declare()
    publish(channel, "a")
    message = queue.get()
    requeue(message, 60)
    assert 0 < site.redis.pttl(site.keys().schedule) <= 30_000


def test_ends_in_the_dead_letters(site: Site) -> None:
    channel = site.channel(delivery_limit=2)
    publish(channel, "a")
    inbox, message = one_message(channel)
    requeue(message, 0)
    drain(channel.connection.client, lambda: len(inbox) == 2)
    requeue(inbox.messages[1], 0)
    assert (site.scheduled(), site.unacked(), len(site.dead())) == (0, 0, 1)


def test_a_callback_that_raises_afterwards_changes_nothing(site: Site) -> None:
    def fail(message: Any) -> None:
        requeue(message, 60)
        raise ValueError("after it was requeued")

    channel = site.channel()
    publish(channel, "a")
    Inbox(channel, on_message=fail)
    with pytest.raises(ValueError, match="after it was requeued"):
        drain(channel.connection.client, lambda: False)
    channel.close()
    assert (site.scheduled(), site.ready(), site.unacked()) == (1, 0, 0)


@pytest.mark.parametrize("has_ended", [True, False])
def test_it_is_not_held_any_more(site: Site, caplog: pytest.LogCaptureFixture, has_ended: bool) -> None:
    """Somebody else has it only if the lease has ended. Otherwise its key has vanished."""
    channel = site.channel()
    publish(channel, "a", "b")
    inbox = Inbox(channel)
    drain(channel.connection.client, lambda: len(inbox) == 2 and channel.consumer._lease._ends)
    if has_ended:
        site.end_leases()
    site.redis.delete(site.keys().unacked(channel.consumer.name))
    with caplog.at_level(logging.WARNING):
        for message in inbox:
            requeue(message, 60)
    # The lease of an earlier test may have something to say, too.
    said = [record.message.partition(":")[0] for record in caplog.records if record.name == qos.__name__]
    assert said == ["The lease of this consumer was lost" if has_ended else "Keys have vanished from Redis"]
    assert site.scheduled() == 0


def test_a_channel_that_was_closed_has_given_it_back(site: Site) -> None:
    channel = site.channel()
    publish(channel, "a")
    _, message = one_message(channel)
    channel.close()
    requeue(message, 60)
    assert (site.scheduled(), site.ready()) == (0, 1)


def test_a_connection_that_was_lost(site: Site) -> None:
    connection = site.connect()
    channel = connection.channel()
    publish(channel, "a")
    _, message = one_message(channel)
    connection.collect()
    requeue(message, 60)
    assert (site.scheduled(), site.ready()) == (1, 0)


class TestErrors:
    @pytest.mark.parametrize("delay", [-1, -0.001, math.nan, math.inf, 1e12, "60", None, True])
    def test_of_the_delay(self, site: Site, delay: Any) -> None:
        channel = site.channel()
        publish(channel, "a")
        _, message = one_message(channel)
        with pytest.raises(ValueError, match="delay must be a number of seconds"):
            requeue(message, delay)
        assert (site.unacked(), message.acknowledged) == (1, False)

    @pytest.mark.parametrize("settle", ["ack", "reject", "requeue"])
    def test_settled_already(self, site: Site, settle: str) -> None:
        channel = site.channel()
        publish(channel, "a")
        message = channel.basic_get("q")
        getattr(message, settle)()
        with pytest.raises(MessageStateError, match="already acknowledged"):
            requeue(message, 60)
        assert site.scheduled() == 0

    def test_twice(self, site: Site) -> None:
        channel = site.channel()
        publish(channel, "a")
        message = channel.basic_get("q")
        requeue(message, 60)
        for settle in (lambda: requeue(message, 60), message.ack):
            with pytest.raises(MessageStateError, match="already acknowledged"):
                settle()

    def test_without_acks(self, site: Site) -> None:
        channel = site.channel()
        publish(channel, "a", "b")
        message = channel.basic_get("q", no_ack=True)
        _, consumed = one_message(channel, no_ack=True)
        for one in (message, consumed):
            with pytest.raises(MessageStateError, match="no_ack"):
                requeue(one, 60)

    def test_fanout(self, site: Site) -> None:
        channel = site.channel()
        exchange = Exchange("everybody", type="fanout")
        inbox = Inbox(channel, Queue("mine", exchange))
        drain_for(channel.connection.client, 0.1)
        publish(site.channel(), "a", exchange=exchange, queue="")
        drain(channel.connection.client, lambda: len(inbox))
        with pytest.raises(MessageStateError, match="fanout"):
            requeue(inbox.messages[0], 60)
        inbox.messages[0].ack()

    @pytest.mark.one_server
    def test_of_another_transport(self, site: Site) -> None:
        with Connection("memory://") as connection:
            channel = connection.channel()
            channel.queue_declare("q")
            publish(channel, "a")
            with pytest.raises(TypeError, match="not a message of a redisdelay:// broker"):
                requeue(channel.basic_get("q"), 60)
        with pytest.raises(TypeError, match="SimpleNamespace"):
            requeue(SimpleNamespace(), 60)  # type: ignore[arg-type]
