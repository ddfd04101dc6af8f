"""What users import, and what it calls itself."""

from __future__ import annotations

import pickle
from datetime import datetime
from typing import get_type_hints

import pytest

import kombu_redisdelay

#: A signal is neither a class nor a function.
NAMES = [name for name in kombu_redisdelay.__all__ if name != "unique_conflict"]


@pytest.mark.parametrize("name", NAMES)
def test_it_is_named_as_it_is_imported(name: str) -> None:
    one = getattr(kombu_redisdelay, name)
    assert f"{one.__module__}.{one.__qualname__}" == f"kombu_redisdelay.{name}"
    assert pickle.loads(pickle.dumps(one)) is one


@pytest.mark.parametrize("name", NAMES)
def test_its_annotations_can_be_looked_up(name: str) -> None:
    """As programs do that make a form or a schema of a dataclass."""
    hints = get_type_hints(getattr(kombu_redisdelay, name)) if name not in ("batch", "keys") else {}
    if name == "DelayedMessage":
        assert hints["due"] is datetime


def test_errors_outlive_a_pickle() -> None:
    error = pickle.loads(pickle.dumps(kombu_redisdelay.NotReplicatedError(1, 2)))
    assert (error.confirmed, error.wanted) == (1, 2)
