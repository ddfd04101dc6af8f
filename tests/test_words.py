"""Lengths of time, as they are said and as they are read, and shares."""

from __future__ import annotations

from datetime import timedelta

import pytest

from kombu_redisdelay.operations.typed import parse_distance
from kombu_redisdelay.words import percent, span

MINUTE, HOUR, DAY = 60, 3600, 86_400


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (0.85, "850ms"),
        (4.6, "4.6s"),
        (59.4, "59s"),
        (59.6, "1m"),
        (200, "3m20s"),
        (2 * HOUR + 5 * MINUTE + 29, "2h5m"),
        (2 * HOUR - 1, "2h"),
        (HOUR - 1, "59m59s"),
        (5 * DAY - 1, "5d"),
        (DAY - 1, "1d"),
        (40 * DAY + 90 * MINUTE, "40d2h"),
    ],
)
def test_a_span_is_rounded_to_what_is_shown(seconds: float, said: str) -> None:
    assert span(seconds) == said


@pytest.mark.parametrize(
    ("share", "said"),
    [(0, "0 %"), (0.004, "under 1 %"), (0.82, "82 %"), (1, "100 %"), (20.02, "2,002 %")],
)
def test_a_share_is_in_percent(share: float, said: str) -> None:
    assert percent(share) == said


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 90), ("1.5h", 5400), ("1h30m", 5400), ("2d4h", 2 * DAY + 4 * HOUR), ("1w2d3h4m5s", 788_645)],
)
def test_a_distance_may_have_several_units(text: str, seconds: float) -> None:
    assert parse_distance(text) == timedelta(seconds=seconds)


@pytest.mark.parametrize("text", ["", "h", "30m1h", "1h30", "1h1h", "1h 30m", "-1h", "1y"])
def test_what_is_no_distance(text: str) -> None:
    with pytest.raises(ValueError, match="is not a length of time"):
        parse_distance(text)
