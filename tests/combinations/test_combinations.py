"""A few rows, short and without kombu's transport beside them; ``python -m tests.combinations`` runs all."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence

import pytest

from tests.combinations.dimensions import DIMENSIONS, Row
from tests.combinations.interpreters import ask
from tests.combinations.rows import pairs, rows
from tests.combinations.scenario import run

SEED = 1
#: So many in each run, and so many more in a thorough one.
ROWS, MORE = 1, 5
#: For how many seconds is published in a row.
SECONDS = 4.0


def most_pairs(candidates: Sequence[Row], number: int) -> list[Row]:
    """Some of the rows: those in which the most pairs meet."""
    chosen: list[Row] = []
    for _ in range(number):
        met = {pair for row in chosen for pair in pairs(row)}
        chosen.append(max(candidates, key=lambda row: len({*pairs(row)} - met)))
    return chosen


def rows_of_this_environment() -> list[Row]:
    hiredis = "with" if importlib.util.find_spec("hiredis") else "without"
    return rows(SEED, {**DIMENSIONS, "celery": ("newest",), "hiredis": (hiredis,)})


@pytest.mark.parametrize(
    "number",
    [*range(ROWS), *(pytest.param(each, marks=pytest.mark.thorough) for each in range(ROWS, ROWS + MORE))],
)
def test_nothing_is_lost_and_nothing_ends(number: int) -> None:
    # Not above: to choose rows takes a second, and each process of xdist collects all tests.
    row = most_pairs(rows_of_this_environment(), number + 1)[number]
    interpreter = ask(sys.executable)
    assert interpreter is not None

    assert run(row, f"{SEED} {row}", interpreter, SECONDS, alone=True).problems == {}
