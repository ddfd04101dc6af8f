"""Patterns, of which a person in a browser may send any."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import pytest

from kombu_redisdelay.operations.filters import FILTERS
from kombu_redisdelay.operations.selection import Selection
from kombu_redisdelay.operations.typed import LONGEST, fits


@pytest.mark.parametrize(
    ("pattern", "text", "is_fit"),
    [
        ("shop.*", "shop.close", True),
        ("shop.*", "SHOP.close", False),
        ("shop", "shop.close", False),
        ("sh?p", "shop", True),
        ("sh[io]p", "shop", True),
        ("sh[!i]p", "shop", True),
        ("sh[i]p", "shop", False),
        ("*", "a\nb", True),
        ("a[b]", "a[b]", False),
        ("a[[]b]", "a[b]", True),
        # What is not closed is no wildcard.
        ("a[b", "a[b", True),
        ("[a]b[c*[", "ab[cd[", True),
        ("[]", "[]", True),
        ("[!]", "[!]", True),
        ("[]a]", "]", True),
    ],
)
def test_wildcards(pattern: str, text: str, is_fit: bool) -> None:
    assert fits(text, pattern) is is_fit


def seconds(do: Callable[[], object]) -> float:
    began = time.process_time()
    do()
    return time.process_time() - began


def test_brackets_that_are_not_closed_take_no_longer_than_others() -> None:
    # fnmatch reads the rest of the pattern for each of them: a thousand times as long.
    assert seconds(lambda: fits("a", "[" * 10_000)) < 5 * seconds(lambda: fits("a", "[a]" * 10_000)) + 0.05


@pytest.mark.parametrize("name", [each.name for each in FILTERS if each.is_pattern])
def test_a_pattern_has_a_length(name: str) -> None:
    assert replace(Selection(), **cast(Any, {name: "*" * LONGEST})).filters
    with pytest.raises(
        ValueError, match=f"{name}: a text with wildcards has at most 500 characters, not 501"
    ):
        replace(Selection(), **cast(Any, {name: "[" * (LONGEST + 1)}))


def test_a_text_without_wildcards_may_be_of_any_length() -> None:
    assert Selection(args="x" * 3000).args == "x" * 3000
    assert fits("x" * 3000, "x" * 3000)
