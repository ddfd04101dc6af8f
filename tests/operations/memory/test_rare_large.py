"""Large messages of hashes are found where they are rare."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from kombu_redisdelay import Messages
from kombu_redisdelay.operations import sample as module
from kombu_redisdelay.operations.sample import HASH, Sampled, Source, rare_large
from tests.transport.kit import Site

SMALL, LARGE = "x" * 100, "x" * 10_000

#: Of so many messages, these are large.
COUNT, RARE = 4000, {b"7", b"1234", b"3999"}


@pytest.fixture
def sources(site: Site) -> list[Source]:
    """Two hashes, of which the second has notes."""
    for key in ("one", "two"):
        fields = {str(number): LARGE if str(number).encode() in RARE else SMALL for number in range(COUNT)}
        site.redis.hset(key, mapping=fields)
    site.redis.hset("notes", mapping={"5": LARGE, "7": "short"})
    return [Source(HASH, "one", COUNT), Source(HASH, "two", COUNT, "notes")]


def found_in(messages: Messages, sources: Sequence[Source], most: int) -> tuple[list[Sampled], int]:
    found, looked_at = rare_large(messages.store, sources, most, len(LARGE), 100)
    return list(found), looked_at


def test_they_are_read(
    site: Site, messages: Messages, sources: list[Source], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "ENOUGH", 1_000_000)
    # Each is looked at some 25 times.
    found, looked_at = found_in(messages, sources[:1], 25 * COUNT)
    assert {each.field for each in found} == RARE
    assert {each.stored for each in found} == {LARGE.encode()}
    assert looked_at == pytest.approx(25 * COUNT, rel=0.2)


def test_what_is_noted_counts(
    site: Site, messages: Messages, sources: list[Source], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "ENOUGH", 1_000_000)
    found, _ = found_in(messages, sources[1:], 25 * COUNT)
    assert {each.field: each.head_bytes for each in found} == {
        b"5": len(LARGE),
        **dict.fromkeys(RARE, 0),
        b"7": 5,
    }


def test_it_ends_when_enough_are_found(
    messages: Messages, sources: list[Source], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "ENOUGH", 1)
    _, looked_at = found_in(messages, sources, 1_000_000_000)
    assert looked_at < 100 * COUNT


def test_what_has_gone_is_left_out(site: Site, messages: Messages, sources: list[Source]) -> None:
    found, looked_at = rare_large(messages.store, sources[:1], 25 * COUNT, len(LARGE), 100)
    site.redis.delete("one")
    assert list(found) == []
    assert looked_at > 0
