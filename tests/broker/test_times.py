"""Between datetimes and the milliseconds in Redis."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kombu_redisdelay.broker.message import from_ms, to_ms

EPOCH = datetime(1970, 1, 1)
MICROSECOND = timedelta(microseconds=1)

#: As long as a double has room for microseconds.
exact = st.datetimes(EPOCH, datetime(2248, 1, 1), timezones=st.just(timezone.utc))


@given(exact)
def test_no_microsecond_is_lost_on_the_way(moment: datetime) -> None:
    assert from_ms(float(repr(to_ms(moment)))) == moment


@given(exact)
def test_times_a_microsecond_apart_are_told_apart(moment: datetime) -> None:
    assert to_ms(moment) < to_ms(moment + MICROSECOND)


@given(exact)
def test_is_what_the_scripts_make_of_the_servers_clock(moment: datetime) -> None:
    clock_us = (moment - EPOCH.replace(tzinfo=timezone.utc)) // MICROSECOND
    assert to_ms(moment) == clock_us / 1000


@given(st.datetimes(EPOCH))
def test_is_written_without_an_exponent(moment: datetime) -> None:
    assert "e" not in repr(to_ms(moment))
    assert "e" not in repr(to_ms(EPOCH + MICROSECOND))


@pytest.mark.parametrize("ms", [-1.5, float("-inf")])
def test_what_is_too_early_is_the_epoch(ms: float) -> None:
    assert from_ms(ms) == EPOCH.replace(tzinfo=timezone.utc)


@pytest.mark.parametrize("ms", [to_ms(datetime.max), 1e18, float("inf")])
def test_what_is_too_late_is_the_end_of_the_calendar(ms: float) -> None:
    assert from_ms(ms) == datetime.max.replace(microsecond=999_000, tzinfo=timezone.utc)
