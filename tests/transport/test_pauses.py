"""When a fetcher waits for room for more messages, pause by pause."""

from __future__ import annotations

import pytest

from kombu_redisdelay.transport import slot_fetcher
from kombu_redisdelay.transport.slot_fetcher import LONGEST_PAUSE, PAUSE, SlotFetcher
from tests.transport.kit import Inbox, Site

pytestmark = [pytest.mark.one_server, pytest.mark.once]


class Clock:
    """The monotonic clock of a fetcher."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(slot_fetcher, "monotonic", clock)
    return clock


@pytest.fixture
def fetcher(site: Site, clock: Clock) -> SlotFetcher:
    """One that has just asked."""
    channel = site.channel()
    Inbox(channel)
    [fetcher] = channel.intake.fetchers
    channel.intake.take(fetcher)
    assert isinstance(fetcher, SlotFetcher)
    return fetcher


def test_it_waits_as_long_as_room_comes(fetcher: SlotFetcher, clock: Clock) -> None:
    assert fetcher.pauses(0, LONGEST_PAUSE)
    clock.now += 1.1 * PAUSE
    # Room has come, so there is another pause, and no look at the room before it ends.
    assert fetcher.pauses(2, LONGEST_PAUSE)
    clock.now += 0.5 * PAUSE
    assert fetcher.pauses(2, LONGEST_PAUSE)
    clock.now += 0.6 * PAUSE
    assert not fetcher.pauses(2, LONGEST_PAUSE)
    assert fetcher.pauses(3, LONGEST_PAUSE)
    clock.now += LONGEST_PAUSE
    assert not fetcher.pauses(4, LONGEST_PAUSE)


def test_it_waits_once(fetcher: SlotFetcher, clock: Clock) -> None:
    assert fetcher.pauses(0, PAUSE)
    clock.now += 1.1 * PAUSE
    assert not fetcher.pauses(2, PAUSE)
