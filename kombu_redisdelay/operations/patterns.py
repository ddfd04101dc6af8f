"""Compares texts with patterns, in which ``*``, ``?`` and ``[...]`` are wildcards."""

from __future__ import annotations

import re
from fnmatch import translate
from functools import lru_cache

#: The longest pattern with wildcards, in characters. To compare a text with it may take as many steps for
#: each character of the text.
LONGEST = 500


def check_pattern(name: str, pattern: str) -> None:
    """Check the argument *name*, a pattern.

    Raises:
        ValueError: it is too long.
    """
    if len(pattern) > LONGEST and _has_wildcards(pattern):
        raise ValueError(
            f"{name}: a text with wildcards has at most {LONGEST} characters, not {len(pattern)}"
        )


def fits(text: str, pattern: str) -> bool:
    """Whether *text* as a whole fits *pattern*, which was checked. Upper and lower case differ."""
    if not _has_wildcards(pattern):
        return text == pattern
    return _compiled(pattern).match(text) is not None


def _has_wildcards(pattern: str) -> bool:
    return any(wildcard in pattern for wildcard in "*?[")


# The cache of fnmatch keeps so many patterns that they fill the memory.
@lru_cache(maxsize=32)
def _compiled(pattern: str) -> re.Pattern[str]:
    # For each bracket that is not closed, translate() reads the rest of the pattern.
    closed = pattern.rfind("]") + 1
    return re.compile(translate(pattern[:closed] + pattern[closed:].replace("[", "[[]")))
