"""Work that takes several round trips, in steps of one each: a consumer does other things in between."""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeVar

_Result = TypeVar("_Result")

#: A generator that yields between two round trips, and returns their result.
Steps = Generator[None, None, _Result]


def finish(steps: Steps[_Result]) -> _Result:
    """Make all round trips, one after the other. Returns their result."""
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            result: _Result = stop.value
            return result
