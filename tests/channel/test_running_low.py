"""A consumer that drains events asks for more messages before it has delivered the last one."""

from __future__ import annotations

from time import monotonic, sleep
from typing import Any

import pytest

from kombu_redisdelay import intake
from tests.channel.kit import PATIENCE, Inbox, Site, drain, publish

PREFETCH = 8
PUBLISHED = 30

#: How many are delivered when half of the room is free again, and it was time to ask.
ASKED_AFTER = PREFETCH // 2 + 1


@pytest.fixture(autouse=True)
def every_reply_is_quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intake, "SHORT_WAIT", 3600.0)


def fill(channel: Any, queue: str = "q") -> None:
    publish(channel, *(f"{queue} {number}" for number in range(PUBLISHED)), queue=queue)


def ack(message: Any) -> None:
    message.ack()


def started(site: Site, **options: Any) -> Inbox:
    """A consumer that has asked for more, with some messages still to be delivered."""
    channel = site.channel()
    fill(channel)
    inbox = Inbox(channel, prefetch=PREFETCH, on_message=ack, **options)
    drain(channel.connection.client, lambda: len(inbox) == ASKED_AFTER)
    wait_until_ready(site, PUBLISHED - PREFETCH - PREFETCH // 2)
    return inbox


def wait_until_ready(site: Site, messages: int) -> None:
    deadline = monotonic() + PATIENCE
    while site.ready() != messages:
        assert monotonic() < deadline, f"{site.ready()} ready"
        sleep(0.001)


def test_it_has_asked_before_it_runs_dry(site: Site) -> None:
    inbox = started(site)
    channel: Any = inbox.consumer.channel
    assert channel.intake.has_taken
    drain(channel.connection.client, lambda: len(inbox) == PUBLISHED)
    assert inbox.bodies == [f"q {number}" for number in range(PUBLISHED)]
    assert site.unacked() == 0


def test_without_acks_too(site: Site) -> None:
    channel = site.channel(max_batch=PREFETCH)
    fill(channel)
    inbox = Inbox(channel, no_ack=True)
    drain(channel.connection.client, lambda: len(inbox) == ASKED_AFTER - 1)
    assert not channel.intake.is_waiting
    drain(channel.connection.client, lambda: len(inbox) == ASKED_AFTER)
    wait_until_ready(site, PUBLISHED - 2 * PREFETCH)
    drain(channel.connection.client, lambda: len(inbox) == PUBLISHED)


def test_never_more_than_the_prefetch_count(site: Site) -> None:
    channel = site.channel()
    fill(channel)
    inbox = Inbox(channel, prefetch=PREFETCH)
    for delivered in range(1, PUBLISHED + 1):
        drain(channel.connection.client, lambda n=delivered: len(inbox) == n)  # type: ignore[misc]
        # All but two, late enough that what was asked for adds to what is held.
        for message in inbox.messages[:-2]:
            if not message.acknowledged:
                message.ack()
        assert site.unacked() <= PREFETCH


def test_not_while_what_was_delivered_is_held(site: Site) -> None:
    channel = site.channel()
    fill(channel)
    inbox = Inbox(channel, prefetch=PREFETCH)
    drain(channel.connection.client, lambda: len(inbox) == PREFETCH - 1)
    assert not channel.intake.is_waiting
    assert site.ready() == PUBLISHED - PREFETCH


def test_not_where_a_reply_takes_long(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intake, "SHORT_WAIT", 0.0)
    channel = site.channel()
    fill(channel)
    inbox = Inbox(channel, prefetch=PREFETCH, on_message=ack)
    drain(channel.connection.client, lambda: len(inbox) == PREFETCH)
    assert not channel.intake.is_waiting
    assert site.ready() == PUBLISHED - PREFETCH
    drain(channel.connection.client, lambda: len(inbox) == PUBLISHED)


def test_not_for_who_decides_message_by_message(site: Site) -> None:
    """As Celery does with worker_disable_prefetch."""
    channel = site.channel()
    fill(channel)
    inbox = Inbox(channel, prefetch=2, on_message=ack)
    drain(channel.connection.client, lambda: len(inbox) == 1)
    channel.qos.can_consume = lambda: True
    drain(channel.connection.client, lambda: len(inbox) == 2)
    assert not channel.intake.is_waiting
    assert site.ready() == PUBLISHED - 2


def test_a_cancelled_consumer_gives_it_back(site: Site) -> None:
    inbox = started(site)
    inbox.consumer.cancel()
    assert site.unacked() == 0
    assert site.ready() == PUBLISHED - ASKED_AFTER
    channel = site.channel()
    successor = Inbox(channel, on_message=ack)
    drain(channel.connection.client, lambda: len(successor) == PUBLISHED - ASKED_AFTER)
    assert successor.bodies == [f"q {number}" for number in range(ASKED_AFTER, PUBLISHED)]


def test_what_it_asked_for_of_another_queue_is_delivered_after_a_cancel(site: Site) -> None:
    channel = site.channel()
    for queue in "qr":
        fill(channel, queue)
    both = Inbox(channel, "q", "r", prefetch=PREFETCH, on_message=ack)
    drain(channel.connection.client, lambda: len(both) == ASKED_AFTER)
    assert channel.intake.is_taking
    both.consumer.cancel_by_queue("q")
    drain(channel.connection.client, lambda: both.bodies.count("r 29"))
    of_r = [body for body in both.bodies if body.startswith("r")]
    assert of_r == [f"r {number}" for number in range(PUBLISHED)]
    assert site.unacked("r") == site.unacked("q") == 0
    assert site.ready() + len(both) - len(of_r) == PUBLISHED


def test_a_closed_channel_gives_it_back(site: Site) -> None:
    inbox = started(site)
    channel: Any = inbox.consumer.channel
    channel.close()
    assert site.ready() == PUBLISHED - ASKED_AFTER
    assert site.unacked() == 0


def test_basic_get_meanwhile(site: Site) -> None:
    inbox = started(site)
    channel: Any = inbox.consumer.channel
    message = channel.basic_get("q", no_ack=True)
    drain(channel.connection.client, lambda: len(inbox) == PUBLISHED - 1)
    assert {*inbox.bodies, message.payload} == {f"q {number}" for number in range(PUBLISHED)}
