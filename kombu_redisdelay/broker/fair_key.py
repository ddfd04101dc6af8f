"""The key of a message in a fair queue: whose turn it takes.

In Redis, a message says so with a member of ours (lua/include/fair_key.lua), or with headers, where its
publisher is not ours.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, NamedTuple
from uuid import UUID

from kombu_redisdelay.broker.members import KEY, check_size
from kombu_redisdelay.broker.printable import shortened

#: Header that has the key: a text.
KEY_HEADER = "x-key"

#: Header that has the weight: a number. A key with twice the weight has twice the turns.
WEIGHT_HEADER = "x-key-weight"

#: The longest key, in bytes of UTF-8.
LONGEST_KEY = 64

DEFAULT_WEIGHT = 1
LEAST_WEIGHT, GREATEST_WEIGHT = 0.001, 1000

_UNUSABLE = re.compile(r'[\x00-\x1f\x7f-\x9f"\\]')
_VALUE = re.compile(r"([\d.]+) (.*)", re.DOTALL)


class FairKey(NamedTuple):
    """The key of a message, empty if it has none, and its weight."""

    key: str = ""
    weight: float = DEFAULT_WEIGHT

    @property
    def member(self) -> str:
        """What the message says of it."""
        # No exponent: it has four digits before the point at most, and three zeros behind it.
        return f"{float(self.weight):.10g} {self.key}"


def fair_key_of(headers: Mapping[str, Any]) -> FairKey | None:
    """What the *headers* of a message say of its key; ``None`` if it has none.

    Raises:
        ValueError: a header is invalid. The error names it and the value.
    """
    key, weight = headers.get(KEY_HEADER), headers.get(WEIGHT_HEADER)
    if key is None:
        if weight is not None:
            raise ValueError(f"header {WEIGHT_HEADER!r} needs header {KEY_HEADER!r}")
        return None
    task = headers.get("task")
    check_key(key, f"header {KEY_HEADER!r}{f' of task {shortened(task)}' if isinstance(task, str) else ''}")
    # What JSON makes of it: a member of an enumeration of texts may be formatted as its name.
    key = str.__str__(key)
    if weight is None:
        return FairKey(key)
    check_weight(weight, f"header {WEIGHT_HEADER!r}")
    return FairKey(key, weight)


def member_of(headers: Mapping[str, Any]) -> str | None:
    """The same as a message says it to the scripts.

    Raises:
        ValueError: as above.
    """
    found = fair_key_of(headers)
    return None if found is None else found.member


def check_key(key: object, what: str, kinds: str = "a text") -> None:
    """Raise a ``ValueError`` about *what* if *key* cannot be a key.

    Arguments:
        kinds: what it may be, in words. The caller has made a text of all that is none.
    """
    if not isinstance(key, str):
        hint = f": write str({shortened(key)})" if is_id(key) else ""
        raise ValueError(f"{what} must be {kinds}, not {shortened(key)}{hint}")
    if _UNUSABLE.search(key):
        raise ValueError(
            f"{what} must have no control characters, quotation marks or backslashes: {key[:LONGEST_KEY]!r}"
        )
    check_size(key, LONGEST_KEY, what)


def is_id(key: object) -> bool:
    """Whether *key* is a number or a UUID, as the ids of tenants often are in a database."""
    return isinstance(key, (int, UUID)) and not isinstance(key, bool)


def check_weight(weight: object, what: str) -> None:
    """Raise a ``ValueError`` about *what* if *weight* cannot be a weight."""
    if not _is_weight(weight):
        raise ValueError(
            f"{what} must be a number from {LEAST_WEIGHT} to {GREATEST_WEIGHT}, not {shortened(weight)}"
        )


def _is_weight(weight: object) -> bool:
    # NaN is in no range.
    is_number = isinstance(weight, (int, float)) and not isinstance(weight, bool)
    return is_number and LEAST_WEIGHT <= weight <= GREATEST_WEIGHT  # type: ignore[operator]


def read(message: Mapping[str, Any]) -> FairKey:
    """The key of a decoded *message*, as the scripts read it: what cannot be a key or a weight is none."""
    headers = message.get("headers")
    value, weight = message.get(KEY), None
    match = _VALUE.fullmatch(value) if isinstance(value, str) else None
    if match:
        key: Any = match[2]
        weight = _number(match[1])
    elif isinstance(headers, Mapping):
        key, weight = headers.get(KEY_HEADER), headers.get(WEIGHT_HEADER)
    else:
        key = None
    try:
        check_key(key, "")
    except ValueError:
        key = ""
    return FairKey(key, weight if _is_weight(weight) else DEFAULT_WEIGHT)  # type: ignore[arg-type]


def key_of(payload: bytes) -> FairKey:
    """The key of a message as it is in Redis."""
    try:
        message = json.loads(payload)
    except (ValueError, RecursionError):
        return FairKey()
    return read(message) if isinstance(message, dict) else FairKey()


def _number(digits: str) -> float | None:
    try:
        return float(digits)
    except ValueError:
        return None
