"""How many passwords somebody can try."""

from __future__ import annotations

import pytest

from kombu_redisdelay.web.guard import EVERY_SECONDS, MOST, MOST_PEOPLE, Guesses, person_of

ANN = person_of("10.0.0.7", b"ann")


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def tries(guesses: Guesses) -> int:
    """Wrong passwords that Ann can give now."""
    count = 0
    while not guesses.wait_seconds(ANN):
        guesses.was_wrong(ANN)
        count += 1
    return count


def test_some_in_a_row_and_then_one_from_time_to_time() -> None:
    clock = Clock()
    guesses = Guesses(clock)
    assert tries(guesses) == MOST
    assert guesses.wait_seconds(ANN) == EVERY_SECONDS
    for _ in range(3):
        clock.now += EVERY_SECONDS
        assert tries(guesses) == 1
    clock.now += MOST * EVERY_SECONDS * 100
    assert tries(guesses) == MOST


def test_others_are_not_concerned() -> None:
    guesses = Guesses(Clock())
    tries(guesses)
    assert guesses.wait_seconds(person_of("10.0.0.7", b"bob")) == 0
    assert guesses.wait_seconds(person_of("10.0.0.8", b"ann")) == 0


def test_memory_is_bounded() -> None:
    guesses = Guesses(Clock())
    tries(guesses)
    for number in range(MOST_PEOPLE - 1):
        guesses.was_wrong(person_of(f"10.0.{number // 256}.{number % 256}", b"bob"))
    assert guesses.wait_seconds(ANN) > 0
    guesses.was_wrong(person_of("10.1.0.0", b"one more"))
    assert guesses.wait_seconds(ANN) == 0


def test_thousands_of_names_have_nobody_forgotten() -> None:
    guesses = Guesses(Clock())
    tries(guesses)
    for number in range(MOST_PEOPLE + 1):
        guesses.was_wrong(person_of("10.0.0.8", b"%d" % number))
    assert guesses.wait_seconds(ANN) > 0


@pytest.mark.parametrize(
    ("first", "second", "is_the_same"),
    [
        ("2001:db8:0:1::1", "2001:db8:0:1:ffff::2", True),
        ("2001:db8:0:1::1", "2001:db8:0:2::1", False),
        ("fe80::1%eth0", "fe80::2", True),
        ("::ffff:10.0.0.7", "10.0.0.7", True),
        ("::ffff:10.0.0.7", "::ffff:10.0.0.8", False),
        ("somewhere", "elsewhere", False),
    ],
)
def test_who_has_a_network_is_one_person(first: str, second: str, is_the_same: bool) -> None:
    assert (person_of(first, b"ann") == person_of(second, b"ann")) is is_the_same
