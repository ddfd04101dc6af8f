"""Replies as both versions of the protocol have them."""

from __future__ import annotations

import pytest

from kombu_redisdelay.broker.server.wire import first_score


@pytest.mark.parametrize("reply", [[], [b"m", b"1.5"], [[b"m", 1.5]], [(b"m", 1.5)]])
def test_first_score(reply: list[object]) -> None:
    assert first_score(reply) == (1.5 if reply else None)
