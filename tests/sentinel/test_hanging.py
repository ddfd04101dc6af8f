"""Sentinels that hang: their connections stay open, and nothing comes through them. The primary works."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from tests.sentinel.test_connecting import connect
from tests.transport.kit import Inbox, drain, publish, waits
from tools.harness.sentinel import SentinelSite, go_on, pause

#: Seconds for which a sentinel is waited for: shorter than by default, to see more of it soon.
ANSWER = 0.5
IMPATIENT = {"sentinel_kwargs": {"socket_timeout": ANSWER, "socket_connect_timeout": ANSWER}}

#: Seconds of looking at it.
WATCHED = 4.0

#: Seconds that a publish, or an idle turn of a consumer, may take.
USUAL = 0.15


def drain_once(connection: Any) -> None:
    with suppress(TimeoutError):
        connection.drain_events(timeout=0.05)


@pytest.mark.parametrize("hanging", [1, 3])
def test_publishing_and_consuming_go_on(sentinels: SentinelSite, hanging: int) -> None:
    """Each that hangs is waited for once."""
    lost = {"publish": 0.0, "consume": 0.0}

    def take_time(what: str, do: Callable[[], object]) -> None:
        began = time.monotonic()
        do()
        lost[what] += max(0.0, time.monotonic() - began - USUAL)

    url = sentinels.url()
    with connect(url, **IMPATIENT) as producer, connect(url, **IMPATIENT) as connection:
        channel, published = producer.channel(), 1
        inbox = Inbox(connection.channel(), on_message=lambda message: message.ack())
        publish(channel, "first")
        # A new connection needs a sentinel that answers. Now it has all that it uses.
        drain(connection, lambda: inbox and waits(inbox.consumer.channel))
        for sentinel in sentinels.sentinels[:hanging]:
            pause(sentinel)
        try:
            end = time.monotonic() + WATCHED
            while time.monotonic() < end:
                take_time("publish", lambda: publish(channel, "a"))
                published += 1
                take_time("consume", lambda: drain_once(connection))
                time.sleep(0.02)
        finally:
            for sentinel in sentinels.sentinels:
                go_on(sentinel)
        assert max(lost.values()) <= hanging * ANSWER + 0.1
        while len(inbox) < published:
            drain_once(connection)
