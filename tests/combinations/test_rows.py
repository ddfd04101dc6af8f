"""The rows of a seed: every pair that can meet does, and no row cannot be."""

from __future__ import annotations

from itertools import combinations, product

import pytest

from tests.combinations.dimensions import DIMENSIONS, EXCLUSIONS, excluded
from tests.combinations.rows import missing, pairs, possible_pairs, rows

SEEDS = [0, *(pytest.param(seed, marks=pytest.mark.thorough) for seed in range(1, 5))]


@pytest.mark.parametrize("seed", SEEDS)
def test_all_pairs_that_can_meet_do(seed: int) -> None:
    assert missing(rows(seed)) == set()


@pytest.mark.parametrize("seed", SEEDS)
def test_no_row_is_excluded(seed: int) -> None:
    assert [excluded(row) for row in rows(seed) if excluded(row)] == []


def test_a_pair_that_is_in_no_row_is_missing() -> None:
    all_rows = rows(0)
    gone = set(pairs(all_rows[0])) - {pair for row in all_rows[1:] for pair in pairs(row)}
    assert gone
    assert missing(all_rows[1:]) == gone


def test_only_what_is_excluded_need_not_meet() -> None:
    all_pairs = {
        ((one, value), (other, second))
        for one, other in combinations(sorted(DIMENSIONS), 2)
        for value, second in product(DIMENSIONS[one], DIMENSIONS[other])
    }
    not_met = all_pairs - possible_pairs()
    excluded_pairs = {
        tuple(sorted(zip(exclusion.values, values, strict=True)))
        for exclusion in EXCLUSIONS
        for values in product(*exclusion.values.values())
    }
    assert not_met == excluded_pairs


def test_an_exclusion_says_why() -> None:
    row = {**rows(0)[0], "producer": "redis", "topology": "cluster"}
    assert excluded(row) == "kombu's redis:// cannot use a cluster"


def test_the_same_seed_has_the_same_rows_and_another_one_others() -> None:
    assert rows(1) == rows(1)
    assert rows(1) != rows(2)


def test_a_value_can_be_left_out() -> None:
    dimensions = {**DIMENSIONS, "pool": ("solo", "gevent")}
    all_rows = rows(3, dimensions)
    assert {row["pool"] for row in all_rows} == {"solo", "gevent"}
    assert missing(all_rows, dimensions) == set()
