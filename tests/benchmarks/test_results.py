"""Medians, spreads, percentiles."""

from __future__ import annotations

import pytest

from tools.benchmarks.results import Record, Results, Spread, percentile


def test_rounds_are_those_of_one_figure_of_one_case() -> None:
    results = Results(
        [
            Record("publish", "a", 0, {"rate": 10.0, "other": 1.0}),
            Record("publish", "b", 0, {"rate": 99.0}),
            Record("consume", "a", 0, {"rate": 98.0}),
            Record("publish", "a", 1, {"rate": 20.0}),
        ]
    )
    assert results.rounds("publish", "a", "rate") == {0: 10, 1: 20}
    assert results.rounds("publish", "a", "other") == {0: 1}
    assert results.rounds("publish", "a", "none") == {}


def test_spread() -> None:
    records = [Record("w", "c", n, {"rate": value}) for n, value in enumerate([30.0, 10.0, 20.0, 100.0])]
    assert Results(records).spread("w", "c", "rate") == Spread(median=25, least=10, most=100)
    assert Results(records).spread("w", "c", "none") is None


def test_samples_of_all_rounds() -> None:
    results = Results(
        [Record("w", "c", 0, {}, [1, 2]), Record("w", "d", 0, {}, [9]), Record("w", "c", 1, {}, [3])]
    )
    assert results.samples("w", "c") == [1, 2, 3]


@pytest.mark.parametrize(("percent", "expected"), [(1, 2.0), (50, 51.0), (99, 100.0)])
def test_percentile_is_by_rank_and_not_by_order(percent: int, expected: float) -> None:
    assert percentile([float(n) for n in range(101, 0, -1)], percent) == pytest.approx(expected)


def test_percentile_between_two_is_interpolated() -> None:
    assert percentile([0, 10], 25) == pytest.approx(2.5)
