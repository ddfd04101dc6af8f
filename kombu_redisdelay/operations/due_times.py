"""The due times by which scheduled messages are picked, and those that they get."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from math import nextafter
from typing import Any

from kombu_redisdelay.broker.schedule import Scheduled
from kombu_redisdelay.broker.store import Store
from kombu_redisdelay.broker.times import LATEST_MS
from kombu_redisdelay.operations.access import moment_ms
from kombu_redisdelay.operations.content import with_due

#: From which due time on and before which one, in ms since the epoch; ``None`` is no limit.
Span = tuple[float | None, float | None]


@dataclass(frozen=True, slots=True)
class Move:
    """What scheduled messages become.

    Attributes:
        due_ms: their new due time, in ms since the epoch; 0 for now.
        rewrite: makes of a message the payload to replace it by.
    """

    due_ms: float
    rewrite: Callable[[Scheduled], bytes]


def moving_to(store: Store, countdown: Any = None, eta: object = None) -> Move:
    """The move to another time: in *countdown* seconds, or at *eta*.

    Raises:
        ValueError: neither or both of the times are given, or one has a wrong type or is in the past.
    """
    now_ms = store.now_ms()
    due_ms = new_due_ms(now_ms, countdown, eta)
    return Move(due_ms, lambda message: with_due(message.payload, due_ms, now_ms))


def span_ms(due_after: datetime | None, due_before: datetime | None) -> Span:
    return moment_ms("due_after", due_after), moment_ms("due_before", due_before)


def apart(span: Span, due_ms: float) -> Iterator[Span]:
    """Parts of a *span*, so that a message of one of them, which is to be due at *due_ms*, is in none of
    those that come later."""
    low = float("-inf") if span[0] is None else span[0]
    high = float("inf") if span[1] is None else span[1]
    beyond_ms = nextafter(due_ms, float("inf"))
    for start, end in ((due_ms, beyond_ms), (low, due_ms), (beyond_ms, high)):
        start, end = max(start, low), min(end, high)
        if start < end:
            yield start, end


def new_due_ms(now_ms: float, countdown: Any, eta: object) -> float:
    due_ms = moment_ms("eta", eta)
    if (countdown is None) == (due_ms is None):
        raise ValueError("give either a countdown or an eta")
    if due_ms is not None:
        if due_ms < now_ms:
            raise ValueError(f"eta must be in the future, not {eta}")
        return due_ms
    longest = (LATEST_MS - now_ms) / 1000
    # NaN is in no range.
    is_number = isinstance(countdown, (int, float)) and not isinstance(countdown, bool)
    if not is_number or not 0 <= countdown <= longest:
        raise ValueError(
            "countdown must be a number of seconds, not negative and not beyond the year 9999, "
            f"not {countdown!r}"
        )
    return now_ms + float(countdown) * 1000
