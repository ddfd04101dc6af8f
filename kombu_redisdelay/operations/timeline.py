"""When the work comes: how many scheduled messages become due in which span from now on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from kombu_redisdelay.broker.server.replies import checked
from kombu_redisdelay.broker.server.wire import Command
from kombu_redisdelay.broker.store import Store

_MINUTE, _HOUR, _DAY = 60, 3600, 86_400

#: Where one span ends and the next one begins, seconds from now.
EDGES = (
    0,
    _MINUTE,
    5 * _MINUTE,
    15 * _MINUTE,
    _HOUR,
    3 * _HOUR,
    12 * _HOUR,
    _DAY,
    2 * _DAY,
    7 * _DAY,
    28 * _DAY,
)


@dataclass(frozen=True, slots=True)
class Span:
    """A span of time and what becomes due in it.

    Attributes:
        start: seconds from now, ``None`` for the span that holds what is overdue.
        end: seconds from now, ``None`` for the last span, which has no end.
    """

    start: int | None
    end: int | None
    messages: int


def span_index(due_ms: float, now_ms: float) -> int:
    """Which of the spans between the :data:`EDGES` a message belongs to."""
    return sum(now_ms + edge * 1000 < due_ms for edge in EDGES)


def spans(counts: Sequence[int]) -> list[Span]:
    """The spans, given the number of messages in each."""
    return [
        Span(start, end, messages)
        for start, end, messages in zip((None, *EDGES), (*EDGES, None), counts, strict=True)
    ]


def timeline(store: Store, queues: Sequence[str]) -> list[Span]:
    """Count what is scheduled in *queues*, by span. One round trip, whatever is in them."""
    now_ms = store.now_ms()
    limits: list[str | float] = ["-inf", *(now_ms + edge * 1000 for edge in EDGES), "+inf"]
    counts = [0] * (len(EDGES) + 1)
    commands: list[Command] = [
        ("ZCOUNT", store.keys(queue).schedule, f"({start}", end)
        for queue in queues
        for start, end in pairwise(limits)
    ]
    for position, count in enumerate(checked(store.server.call_all(*commands))):
        counts[position % len(counts)] += count
    return spans(counts)
