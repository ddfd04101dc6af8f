"""The columns of lists of keys. The command line and the page read them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from kombu_redisdelay.operations.access import natural
from kombu_redisdelay.operations.fair import KeyLimits
from kombu_redisdelay.operations.key_stats import KeyStats
from kombu_redisdelay.operations.limits import in_words
from kombu_redisdelay.operations.states import READY, SCHEDULED, UNACKED
from kombu_redisdelay.words import span

#: What a column shows: the key, a number, for how long it has been so, the limits that a key has for itself,
#: or why its messages wait.
KEY, NUMBER, AGE, LIMITS, REASON = "key", "number", "age", "limits", "reason"


@dataclass(frozen=True, slots=True)
class KeyColumn:
    """
    Attributes:
        label: what stands above it.
        kind: how its values are shown, such as :data:`NUMBER`.
        value: that of a key; ``None`` if it is unknown; for the limits, those of the key.
        state: if it is a number of messages, the name of their state.
    """

    label: str
    kind: str
    value: Callable[[KeyStats], Any]
    state: str = ""

    @property
    def is_sorted_by(self) -> bool:
        return self.kind in (KEY, NUMBER, AGE)


#: A key whose messages wait is paused, or at a limit.
PAUSED, AT_LIMIT = "paused", "at its limit"


def _reason(key: KeyStats) -> str:
    if not key.is_at_limit:
        return ""
    return AT_LIMIT if key.limits.paused_since is None else PAUSED


#: Name -> column.
KEY_COLUMNS = {
    "key": KeyColumn("Key", KEY, lambda key: key.key),
    READY: KeyColumn(READY.capitalize(), NUMBER, lambda key: key.ready, READY),
    "waiting": KeyColumn("Wait", AGE, lambda key: key.waiting),
    SCHEDULED: KeyColumn(SCHEDULED.capitalize(), NUMBER, lambda key: key.scheduled, SCHEDULED),
    UNACKED: KeyColumn(UNACKED.capitalize(), NUMBER, lambda key: key.unacked, UNACKED),
    "reason": KeyColumn("Reason", REASON, _reason),
    "limits": KeyColumn("Own limits", LIMITS, lambda key: key.own),
}

#: What lists of keys can be sorted by.
SORTS = tuple(name for name, column in KEY_COLUMNS.items() if column.is_sorted_by)

#: What they are sorted by, if nothing is said.
USUAL_SORT = READY


def sort_keys(keys: Iterable[KeyStats], by: str = USUAL_SORT) -> list[KeyStats]:
    """Sort *keys* by one of :data:`SORTS`: names in natural order, numbers from the greatest to the least,
    what is unknown at the end. Of equal ones, more ready messages come first."""
    column = KEY_COLUMNS[by]
    found = sorted(keys, key=lambda key: (-key.ready, natural(key.key)))
    if column.kind == KEY:
        return sorted(found, key=lambda key: natural(key.key))
    return sorted(found, key=lambda key: -1 if column.value(key) is None else column.value(key), reverse=True)


def own_limits(limits: KeyLimits, now: datetime) -> str:
    """What a key has for itself, in words: its limits, and for how long it has been paused."""
    parts = [in_words(limits)] if limits.is_limited else []
    if limits.paused_since is not None:
        parts.append(f"paused for {span(max(0.0, (now - limits.paused_since).total_seconds()))}")
    return ", ".join(parts)
