"""How many passwords somebody can try."""

from __future__ import annotations

from kombu_redisdelay.web.guesses import EVERY_SECONDS, MOST, MOST_PEOPLE, Guesses

ANN = ("10.0.0.7", b"ann")


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
    assert guesses.wait_seconds(("10.0.0.7", b"bob")) == 0
    assert guesses.wait_seconds(("10.0.0.8", b"ann")) == 0


def test_memory_is_bounded() -> None:
    guesses = Guesses(Clock())
    tries(guesses)
    for number in range(MOST_PEOPLE - 1):
        guesses.was_wrong(("10.0.0.8", b"%d" % number))
    assert guesses.wait_seconds(ANN) > 0
    guesses.was_wrong(("10.0.0.8", b"one more"))
    assert guesses.wait_seconds(ANN) == 0
