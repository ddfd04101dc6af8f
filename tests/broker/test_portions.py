"""How much one script gets at a time."""

from __future__ import annotations

import pytest

from kombu_redisdelay.broker.portions import portions


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ([], []),
        ([1, 1, 1, 1, 1], [[1, 1, 1], [1, 1]]),
        ([4, 6, 1], [[4, 6], [1]]),
        ([50, 1, 50, 50], [[50], [1, 50], [50]]),
        ([9, 50], [[9, 50]]),
    ],
)
def test_end_with_the_item_that_fills_them(sizes: list[int], expected: list[list[int]]) -> None:
    assert list(portions(sizes, lambda size: size, 3, 10)) == expected
