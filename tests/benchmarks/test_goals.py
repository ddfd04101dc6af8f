"""The ratios, and whether they are as they have to be."""

from __future__ import annotations

import pytest

from tools.benchmarks.goals import GOALS, Goal
from tools.benchmarks.peers import MEMORY, OURS, REDIS
from tools.benchmarks.quotients import largest, measured, publish_limit, quotient
from tools.benchmarks.results import Record, Results, Spread
from tools.benchmarks.workloads.publish import NAMED


def consumed(ours: dict[int, float], redis: dict[int, float]) -> Results:
    """Records of the workload `consume`, by round."""
    return Results(
        Record("consume", peer.name, round_, {"rate": rate})
        for peer, rates in {OURS: ours, REDIS: redis}.items()
        for round_, rate in rates.items()
    )


RATIO = quotient(measured("consume", OURS.name, "rate"), measured("consume", REDIS.name, "rate"))


def test_a_round_is_compared_with_itself() -> None:
    # A machine that is ten times as slow in the second round changes nothing.
    results = consumed({0: 1000, 1: 100, 2: 900}, {0: 100, 1: 10, 2: 100})
    assert RATIO(results) == {0: 10, 1: 10, 2: 9}
    assert Goal("", RATIO).spread(results) == Spread(median=10, least=9, most=10)


def test_a_round_that_only_one_has_is_left_out() -> None:
    assert RATIO(consumed({0: 10, 1: 10}, {1: 5, 2: 5})) == {1: 2}


def test_met_by_the_median() -> None:
    results = consumed({0: 9, 1: 10, 2: 11}, {0: 1, 1: 1, 2: 1})
    assert Goal("", RATIO, at_least=10).met(results) is True
    assert Goal("", RATIO, at_least=10.1).met(results) is False
    assert Goal("", RATIO, at_most=10).met(results) is True
    assert Goal("", RATIO, at_most=9.9).met(results) is False


def test_neither_met_nor_missed_where_a_figure_is_missing() -> None:
    goal = Goal("", RATIO, at_least=10)
    assert goal.spread(consumed({0: 9}, {})) is None
    assert goal.met(consumed({0: 9}, {})) is None


def test_largest() -> None:
    both = largest(measured("consume", OURS.name, "rate"), measured("consume", REDIS.name, "rate"))
    assert both(consumed({0: 1, 1: 5}, {0: 2, 1: 4, 2: 9})) == {0: 2, 1: 5}


def test_publish_limit_is_one_after_the_other() -> None:
    results = Results(
        [
            Record("publish", MEMORY.name, 0, {"immediate": 20_000}),
            Record("publish", OURS.name, 0, {"round trip": 20_000}),
        ]
    )
    assert publish_limit("immediate")(results) == {0: pytest.approx(10_000)}


def test_publish_limit_is_that_of_the_same_exchange() -> None:
    named = f"immediate, {NAMED}"
    results = Results(
        [
            Record("publish", MEMORY.name, 0, {"immediate": 99_000, named: 20_000}),
            Record("publish", OURS.name, 0, {"round trip": 20_000, named: 5_000}),
        ]
    )
    [goal] = [goal for goal in GOALS if goal.what == f"publish, {named} : limit"]
    assert goal.figure(results) == {0: pytest.approx(0.5)}


def test_a_figure_that_nothing_measures_is_an_error() -> None:
    with pytest.raises(KeyError, match="consume, redisdelay, speed"):
        measured("consume", OURS.name, "speed")
    with pytest.raises(KeyError, match="consume, nobody, rate"):
        measured("consume", "nobody", "rate")


def test_every_goal_has_a_name_of_its_own() -> None:
    assert len({goal.what for goal in GOALS}) == len(GOALS)
