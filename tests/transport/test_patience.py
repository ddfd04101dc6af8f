"""On the event loop, a consumer that has room for a few messages waits for more room, for a moment."""

from __future__ import annotations

from collections.abc import Iterator
from time import monotonic, sleep
from typing import Any

import pytest

from kombu_redisdelay.transport import poller, slot_fetcher
from tests.transport.kit import Inbox, Site, event_loop, publish, turn

pytestmark = pytest.mark.one_server

FOR_EVER = 3600.0

#: A busy machine is late, but hardly each time.
TRIES = 3


def set_pause(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    for module in (slot_fetcher, poller):
        monkeypatch.setattr(module, "PAUSE", seconds)


def full(site: Site, prefetch: int, **options: Any) -> tuple[Inbox, Iterator[object]]:
    """A consumer on an event loop that has as many messages as it may, while more are ready."""
    channel = site.channel(**options)
    publish(channel, *map(str, range(30)))
    inbox = Inbox(channel, prefetch=prefetch)
    loop = event_loop(channel.connection.client)
    turn(loop, lambda: len(inbox) == prefetch)
    return inbox, loop


def test_it_comes_back_without_being_woken(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    set_pause(monkeypatch, 0.2)
    inbox, loop = full(site, 8)

    def seconds_until_next(message: Any) -> float:
        count, began = len(inbox), monotonic()
        message.ack()
        turn(loop, lambda: len(inbox) == count + 1)
        return monotonic() - began

    # As soon as that, and not when the next timer of kombu fires, which is after one or two seconds.
    assert min(map(seconds_until_next, inbox.messages[:TRIES])) < 0.6


def test_it_comes_back_if_it_has_asked_meanwhile(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """The timer of the first request ends while there is reason to wait after the second."""
    set_pause(monkeypatch, 0.2)

    def seconds_until_last() -> float:
        inbox, loop = full(site, 8)
        # Half of the pause.
        sleep(0.1)
        for message in inbox.messages[:4]:
            message.ack()
        turn(loop, lambda: len(inbox) == 12)
        began = monotonic()
        inbox.messages[4].ack()
        turn(loop, lambda: len(inbox) == 13)
        inbox.consumer.cancel()
        return monotonic() - began

    assert min(seconds_until_last() for _ in range(TRIES)) < 0.6


@pytest.mark.parametrize(("prefetch", "acks"), [(8, 4), (5, 3), (2, 1), (1, 1)])
def test_half_of_the_room_is_enough(
    site: Site, monkeypatch: pytest.MonkeyPatch, prefetch: int, acks: int
) -> None:
    set_pause(monkeypatch, FOR_EVER)
    inbox, loop = full(site, prefetch)
    for message in inbox.messages[: acks - 1]:
        message.ack()
    channel: Any = inbox.consumer.channel
    [only] = channel.intake.fetchers
    assert channel.intake.is_patient(only)
    inbox.messages[acks - 1].ack()
    turn(loop, lambda: len(inbox) == prefetch + acks)


def test_half_a_batch_is_enough(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    set_pause(monkeypatch, FOR_EVER)
    inbox, loop = full(site, 16, max_batch=2)
    inbox.messages[0].ack()
    turn(loop, lambda: len(inbox) == 17)


def test_not_for_who_decides_message_by_message(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """As Celery does with worker_disable_prefetch."""
    set_pause(monkeypatch, FOR_EVER)
    channel = site.channel()
    publish(channel, *map(str, range(9)))
    inbox = Inbox(channel, prefetch=16)
    channel.qos.can_consume = lambda: len(inbox) < 9
    loop = event_loop(channel.connection.client)
    turn(loop, lambda: len(inbox) == 9)


def test_a_message_for_an_idle_consumer_is_taken_at_once(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    set_pause(monkeypatch, FOR_EVER)
    channel = site.channel()
    inbox = Inbox(channel, prefetch=8)
    loop = event_loop(channel.connection.client)
    producer = site.channel()
    for number in range(8):
        publish(producer, str(number))
        turn(loop, lambda number=number: len(inbox) == number + 1)  # type: ignore[misc]
