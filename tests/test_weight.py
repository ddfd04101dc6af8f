"""The package does not grow by itself, and no feature gets into more rooms than it has.

A budget is raised by hand, in the commit that needs it, which says why. Who folds something lowers it.
"""

from __future__ import annotations

import pytest

from tools.weight import CORE, FEATURES, figures, naming

pytestmark = pytest.mark.once

#: What ``python -m tools.weight`` prints, at most; lines with some room.
BUDGET = {
    "Python files": 211,
    "scripts": 46,
    "lines of Lua": 5_110,
    "lines of broker": 7_300,
    "lines of cli": 3_000,
    "lines of operations": 8_320,
    "lines of transport": 6_220,
    "lines of web": 2_160,
    "files of broker that name unique": 7,
    "files of transport that name unique": 3,
    "scripts that name unique": 1,
    "files of broker that name fair": 6,
    "files of transport that name fair": 3,
    "scripts that name fair": 2,
}


def test_it_does_not_grow_by_itself() -> None:
    found = figures()
    assert found.keys() == BUDGET.keys()
    assert {name: count for name, count in found.items() if count > BUDGET[name]} == {}


@pytest.mark.parametrize("feature", FEATURES)
def test_what_names_a_feature_is_found(feature: str) -> None:
    """Its queue's keys are in one table with all others, and its script is started by somebody."""
    files = naming(feature)
    assert "broker/keys.py" in files
    assert any(name.startswith("lua/") for name in files)
    assert {name.partition("/")[0] for name in files} == {*CORE, "lua"}
