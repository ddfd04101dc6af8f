"""Leases that are not renewed, as seen by one who looks on."""

from __future__ import annotations

import pytest

from kombu_redisdelay.broker.recovery import LeaseWatch
from tests.clock import Clock


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def watch(clock: Clock) -> LeaseWatch:
    return LeaseWatch(30, clock)


def test_at_first_sight_nobody_is_suspected(watch: LeaseWatch) -> None:
    assert watch.unrenewed("q", {"a": 1, "b": 2}) == set()


def test_who_does_not_renew_for_long_enough_is(watch: LeaseWatch, clock: Clock) -> None:
    watch.unrenewed("q", {"a": 1, "b": 2})
    clock.now += 29
    assert watch.unrenewed("q", {"a": 1, "b": 2}) == set()
    clock.now += 1
    assert watch.unrenewed("q", {"a": 1, "b": 3}) == {"a"}
    clock.now += 29
    assert watch.unrenewed("q", {"a": 1, "b": 3}) == {"a"}
    clock.now += 1
    assert watch.unrenewed("q", {"a": 1, "b": 3}) == {"a", "b"}


def test_a_lease_that_ends_earlier_was_renewed_too(watch: LeaseWatch, clock: Clock) -> None:
    """By a clock that was put back."""
    watch.unrenewed("q", {"a": 5000})
    clock.now += 30
    assert watch.unrenewed("q", {"a": 1400}) == set()


def test_each_queue_for_itself(watch: LeaseWatch, clock: Clock) -> None:
    watch.unrenewed("q", {"a": 1})
    clock.now += 30
    assert watch.unrenewed("r", {"a": 1}) == set()
    assert watch.unrenewed("q", {"a": 1}) == {"a"}


def test_who_was_away_is_seen_for_the_first_time(watch: LeaseWatch, clock: Clock) -> None:
    watch.unrenewed("q", {"a": 1})
    watch.unrenewed("q", {})
    clock.now += 30
    assert watch.unrenewed("q", {"a": 1}) == set()


class TestServed:
    """Only the time counts in which the watching consumer could renew its own lease."""

    @pytest.fixture
    def served_since(self, clock: Clock) -> list[float]:
        return [clock.now]

    @pytest.fixture
    def watch(self, clock: Clock, served_since: list[float]) -> LeaseWatch:
        return LeaseWatch(30, clock, lambda: served_since[0])

    def test_a_refusal_begins_it_anew(
        self, watch: LeaseWatch, clock: Clock, served_since: list[float]
    ) -> None:
        watch.unrenewed("q", {"a": 1})
        clock.now += 29
        served_since[0] = float("inf")
        clock.now += 100
        assert watch.unrenewed("q", {"a": 1}) == set(), "nobody is served"
        served_since[0] = clock.now
        assert watch.unrenewed("q", {"a": 1}) == set()
        clock.now += 29
        assert watch.unrenewed("q", {"a": 1}) == set()
        clock.now += 1
        assert watch.unrenewed("q", {"a": 1}) == {"a"}

    def test_who_renews_in_that_time_is_not_suspected(
        self, watch: LeaseWatch, clock: Clock, served_since: list[float]
    ) -> None:
        watch.unrenewed("q", {"a": 1, "b": 1})
        clock.now += 100
        served_since[0] = clock.now
        clock.now += 20
        assert watch.unrenewed("q", {"a": 2, "b": 1}) == set()
        clock.now += 10
        assert watch.unrenewed("q", {"a": 2, "b": 1}) == {"b"}

    def test_who_was_served_all_the_time_watches_as_long_as_ever(
        self, watch: LeaseWatch, clock: Clock
    ) -> None:
        """A newcomer, too, which is served from its beginning on."""
        clock.now += 1000
        watch.unrenewed("q", {"a": 1})
        clock.now += 30
        assert watch.unrenewed("q", {"a": 1}) == {"a"}
