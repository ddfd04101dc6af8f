"""Replies as both versions of the protocol have them."""

from __future__ import annotations

import pytest

from kombu_redisdelay.broker.server.wire import PackedKeys, first_score, pack, unpacked


@pytest.mark.parametrize("reply", [[], [b"m", b"1.5"], [[b"m", 1.5]], [(b"m", 1.5)]])
def test_first_score(reply: list[object]) -> None:
    assert first_score(reply) == (1.5 if reply else None)


def test_what_is_packed_can_be_unpacked() -> None:
    keys = PackedKeys(("a", "", "\r\n$1\r\nü"))
    command = ("EVALSHA", "digest", 3, keys.packed, 1.5, b"\0")
    assert unpacked(command) == ["EVALSHA", "digest", 3, *(key.encode() for key in keys), 1.5, b"\0"]
    assert pack(*unpacked(command)) == pack(*command)
