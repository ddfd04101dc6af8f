"""What happens while messages were asked for over the poll connection, and the reply was not read yet."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.transport.kit import Inbox, Site, event_loop, publish, turn


def asking(site: Site) -> tuple[Any, Inbox, Iterator[object]]:
    """A consumer on an event loop that has asked for two of the messages 0 to 9."""
    channel = site.channel()
    publish(channel, *map(str, range(10)))
    inbox = Inbox(channel, prefetch=2)
    loop = event_loop(channel.connection.client)
    channel.connection.cycle.on_poll_start()
    assert all(fetcher.is_taking for fetcher in channel.intake.fetchers)
    return channel, inbox, loop


def test_basic_get_brings_the_first_of_them(site: Site) -> None:
    channel, inbox, loop = asking(site)
    message = channel.basic_get("q")
    assert message.payload == "0"
    message.ack()
    turn(loop, lambda: len(inbox) == 2)
    assert inbox.bodies == ["1", "2"]
    for message in inbox:
        message.ack()
    turn(loop, lambda: len(inbox) == 4)
    assert inbox.bodies == ["1", "2", "3", "4"]
    assert site.unacked() == 2


def test_a_cancelled_consumer_gives_them_back(site: Site) -> None:
    _, inbox, loop = asking(site)
    inbox.consumer.cancel()
    turn(loop, lambda: site.ready() == 10)
    assert len(inbox) == site.unacked() == 0
    assert [site.channel().basic_get("q").payload for _ in range(3)] == ["0", "1", "2"]


def test_a_consumer_without_acks_that_comes_meanwhile_leaves_none_held(site: Site) -> None:
    channel, inbox, loop = asking(site)
    inbox.consumer.cancel()
    without_acks = Inbox(channel, no_ack=True)
    turn(loop, lambda: len(without_acks) == 10)
    turn(loop, lambda: site.unacked() == 0)


def test_a_closed_channel_gives_them_back(site: Site) -> None:
    channel, inbox, _ = asking(site)
    channel.close()
    assert len(inbox) == site.unacked() == 0
    assert [site.channel().basic_get("q").payload for _ in range(3)] == ["0", "1", "2"]
