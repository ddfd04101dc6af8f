"""When a fetcher waits for room for more messages, pause by pause."""

from __future__ import annotations

import pytest

from kombu_redisdelay.transport import slot_fetcher
from kombu_redisdelay.transport.slot_fetcher import LONGEST_PAUSE, PAUSE
from tests.transport.kit import Inbox, Site

pytestmark = [pytest.mark.one_server, pytest.mark.once]


def test_it_waits_as_long_as_room_comes(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(slot_fetcher, "monotonic", lambda: now)
    channel = site.channel()
    Inbox(channel)
    [fetcher] = channel.intake.fetchers
    # It asks.
    channel.intake.take(fetcher)
    assert fetcher.pauses(0, LONGEST_PAUSE)
    now += 1.1 * PAUSE
    # Room has come, so there is another pause, and no look at the room before it ends.
    assert fetcher.pauses(2, LONGEST_PAUSE)
    now += 0.5 * PAUSE
    assert fetcher.pauses(2, LONGEST_PAUSE)
    now += 0.6 * PAUSE
    assert not fetcher.pauses(2, LONGEST_PAUSE)
    assert fetcher.pauses(3, LONGEST_PAUSE)
    now += LONGEST_PAUSE
    assert not fetcher.pauses(4, LONGEST_PAUSE)


def test_it_waits_once(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(slot_fetcher, "monotonic", lambda: now)
    channel = site.channel()
    Inbox(channel)
    [fetcher] = channel.intake.fetchers
    channel.intake.take(fetcher)
    assert fetcher.pauses(0, PAUSE)
    now += 1.1 * PAUSE
    assert not fetcher.pauses(2, PAUSE)
