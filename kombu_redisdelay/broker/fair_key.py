"""The key by which fair queues take turns: what a message says of it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

#: Header that has the key: a text.
KEY_HEADER = "x-key"

#: Header that has the weight of the key: a number. A key of weight 2 has twice as many turns as one of
#: weight 1.
WEIGHT_HEADER = "x-key-weight"

DEFAULT_WEIGHT = 1
LEAST_WEIGHT, GREATEST_WEIGHT = 0.001, 1000

#: The longest key, in bytes.
LONGEST_KEY = 64

#: What a text of JSON writes in another way, and control characters.
_FORBIDDEN = re.compile('[\x00-\x1f\x7f-\x9f"\\\\]')


def check_key(key: object, what: str) -> None:
    """Raise a ``ValueError`` about *what* if *key* cannot be a key."""
    if not isinstance(key, str):
        raise ValueError(f"{what} must be a text, not {key!r}")
    if _FORBIDDEN.search(key):
        raise ValueError(
            f"{what} must have no control characters, quotation marks or backslashes: {key[:LONGEST_KEY]!r}"
        )
    try:
        size = len(key.encode())
    except UnicodeEncodeError:
        raise ValueError(f"{what} cannot be written as UTF-8: {key[:LONGEST_KEY]!r}") from None
    if size > LONGEST_KEY:
        raise ValueError(f"{what} must have {LONGEST_KEY} bytes at most, not {size}: {key[:40]!r}...")


def check_weight(weight: object, what: str) -> None:
    """Raise a ``ValueError`` about *what* if *weight* cannot be a weight."""
    is_number = isinstance(weight, (int, float)) and not isinstance(weight, bool)
    # NaN is in no range.
    if not is_number or not LEAST_WEIGHT <= weight <= GREATEST_WEIGHT:  # type: ignore[operator]
        raise ValueError(f"{what} must be a number from {LEAST_WEIGHT} to {GREATEST_WEIGHT}, not {weight!r}")


def member_of(headers: Mapping[str, Any]) -> str | None:
    """What a message with these *headers* says of its key to the scripts; ``None`` if it has none.

    Raises:
        ValueError: a header is invalid. The error names it and the value.
    """
    key = headers.get(KEY_HEADER)
    weight = headers.get(WEIGHT_HEADER)
    if key is None:
        if weight is not None:
            raise ValueError(f"header {WEIGHT_HEADER!r} needs header {KEY_HEADER!r}")
        return None
    check_key(key, f"header {KEY_HEADER!r}")
    if weight is None:
        return f"{DEFAULT_WEIGHT} {key}"
    check_weight(weight, f"header {WEIGHT_HEADER!r}")
    return f"{weight:.10g} {key}"
