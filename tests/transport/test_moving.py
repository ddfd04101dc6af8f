"""What becomes due while a channel has no room, or its callback takes its time, is moved all the same."""

from __future__ import annotations

from typing import Any

import pytest
from kombu.entity import Queue

from tests.transport.kit import PATIENCE, Inbox, Site, drain, event_loop, publish, turn
from tools.harness.process import wait_until


def publish_soon(site: Site) -> None:
    """Publish a message that is due within a second."""
    publish(site.channel(), "later", headers={"x-delay": 500})


def is_moved(site: Site) -> bool:
    return site.scheduled() == 0 and site.ready() == 1


def full(site: Site, **options: Any) -> Any:
    """A connection with a channel that holds as many messages as it may."""
    connection = site.connect(**options)
    inbox = Inbox(connection.channel(), prefetch=1)
    publish(site.channel(), "held")
    drain(connection, lambda: len(inbox))
    return connection, inbox


@pytest.mark.parametrize("looping", [False, True], ids=["drain_events", "event loop"])
def test_without_room(site: Site, looping: bool) -> None:
    if looping:
        connection = site.connect()
        inbox = Inbox(connection.channel(), prefetch=1)
        publish(site.channel(), "held")
        loop = event_loop(connection)
        turn(loop, lambda: len(inbox))
        publish_soon(site)
        turn(loop, lambda: is_moved(site))
    else:
        connection, inbox = full(site)
        publish_soon(site)
        drain(connection, lambda: is_moved(site))
    assert inbox.bodies == ["held"]


def test_while_nobody_drains_and_with_a_short_lease(site: Site) -> None:
    full(site, visibility_timeout=0.5)
    publish_soon(site)
    wait_until(lambda: is_moved(site), PATIENCE, "the heartbeat moves it")


def test_in_a_callback(site: Site) -> None:
    """As in a solo worker, where the callback runs the task."""

    def run(message: Any) -> None:
        message.ack()
        publish_soon(site)
        wait_until(lambda: is_moved(site), PATIENCE, "it is moved, although the channel has room")

    connection = site.connect()
    inbox = Inbox(connection.channel(), on_message=lambda message: run(message) if len(inbox) == 1 else None)
    publish(site.channel(), "first")
    drain(connection, lambda: len(inbox) == 2)
    assert inbox.bodies == ["first", "later"]


def test_who_waits_for_messages_needs_nobody(site: Site) -> None:
    connection = site.connect()
    channel = connection.channel()
    inbox = Inbox(channel)
    publish(site.channel(), "message")
    drain(connection, lambda: len(inbox) and not channel.mover.is_needed)
    assert channel.mover.queues == ("q",)


def test_only_queues_that_are_consumed_from_with_acks(site: Site) -> None:
    """Others are the answers to one program, which may never drain again."""
    connection = site.connect()
    channel = connection.channel()
    Inbox(channel, "answers", no_ack=True)
    inbox = Inbox(channel, "q", Queue("another"))
    publish(site.channel(), "message")
    drain(connection, lambda: len(inbox))
    assert channel.mover.queues == ("q", "another")
    inbox.consumer.cancel_by_queue("another")
    assert channel.mover.queues == ()
    drain(connection, lambda: channel.mover.queues == ("q",))
    mover = channel.mover
    channel.close()
    assert mover.queues == ()
