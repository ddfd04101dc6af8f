"""How long who publishes waits for another server to take over."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kombu_redisdelay.broker.server.wire import NothingDone, Unreachable
from kombu_redisdelay.transport import patience as module
from kombu_redisdelay.transport.patience import GIVEN_UP_FOR, PATIENCE, PAUSE, Patience, impatient
from tests.clock import Clock


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()

    def sleep(seconds: float) -> None:
        clock.now += seconds

    monkeypatch.setattr(module, "monotonic", clock)
    monkeypatch.setattr(module, "sleep", sleep)
    return clock


@pytest.fixture
def patience(clock: Clock) -> Patience:
    """Of a broker that has worked."""
    patience = Patience()
    patience.wait_for("q", lambda: None)
    return patience


def away(clock: Clock, seconds: float, error: type[Exception] = Unreachable) -> Callable[[], str]:
    """A server that is away for so long."""
    until = clock.now + seconds

    def do() -> str:
        if clock.now < until:
            raise error("away")
        return "done"

    return do


def seconds_in_vain(clock: Clock, patience: Patience, what: str = "q") -> float:
    began = clock.now
    with pytest.raises(NothingDone, match="away"):
        patience.wait_for(what, away(clock, 1000))
    return clock.now - began


def test_it_is_done_as_soon_as_it_can_be(clock: Clock, patience: Patience) -> None:
    began = clock.now
    assert patience.wait_for("q", away(clock, 4)) == "done"
    assert clock.now - began <= 4 + PAUSE


def test_what_may_have_been_done_is_not_tried_again(clock: Clock, patience: Patience) -> None:
    began = clock.now
    with pytest.raises(ConnectionError):
        patience.wait_for("q", away(clock, 4, ConnectionError))
    assert clock.now == began


def test_a_busy_process_looks_once_more(clock: Clock, patience: Patience) -> None:
    """The server was asked at once, and was away for a moment. Others have kept the process since."""
    tries = 0

    def do() -> str:
        nonlocal tries
        tries += 1
        if tries == 1:
            clock.now += 2 * PATIENCE
            raise Unreachable("away")
        return "done"

    assert patience.wait_for("q", do) == "done"


def test_the_time_counts_for_all_together(clock: Clock, patience: Patience) -> None:
    assert seconds_in_vain(clock, patience) == pytest.approx(PATIENCE, abs=PAUSE)
    # kombu tries three times more.
    for _ in range(3):
        assert seconds_in_vain(clock, patience) == 0
    clock.now += GIVEN_UP_FOR
    assert seconds_in_vain(clock, patience) == 0
    # What is elsewhere counts apart.
    assert seconds_in_vain(clock, patience, "another") == pytest.approx(PATIENCE, abs=PAUSE)


@pytest.mark.parametrize("worked_meanwhile", [True, False])
def test_the_next_outage_is_waited_for_as_well(
    clock: Clock, patience: Patience, worked_meanwhile: bool
) -> None:
    seconds_in_vain(clock, patience)
    clock.now += GIVEN_UP_FOR
    if worked_meanwhile:
        patience.wait_for("q", lambda: None)
    else:
        clock.now += PATIENCE
    assert seconds_in_vain(clock, patience) == pytest.approx(PATIENCE, abs=PAUSE)


def test_a_broker_that_never_worked_is_not_waited_for(clock: Clock) -> None:
    assert seconds_in_vain(clock, Patience()) == 0


def test_who_is_impatient(clock: Clock, patience: Patience) -> None:
    with impatient():
        assert seconds_in_vain(clock, patience) == 0
    assert patience.wait_for("q", away(clock, 4)) == "done"
