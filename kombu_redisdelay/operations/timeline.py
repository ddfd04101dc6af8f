"""Counts how many scheduled messages become due in each span of time from now on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from kombu_redisdelay.broker.schedule import Schedule
from kombu_redisdelay.broker.server.wire import Command, answers
from kombu_redisdelay.broker.store import Store
from kombu_redisdelay.public import public

_MINUTE, _HOUR, _DAY = 60, 3600, 86_400

#: The limits between one span and the next, in seconds from now.
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


@public
@dataclass(frozen=True, slots=True)
class Span:
    """A span of time, and the messages that become due in it.

    Attributes:
        start: seconds from now, ``None`` for the span of overdue messages.
        end: seconds from now, ``None`` for the last span, which has no end.
        messages: the number of messages.
    """

    start: int | None
    end: int | None
    messages: int


def span_index(due_ms: float, now_ms: float) -> int:
    """The index of the span that a message belongs to.

    Arguments:
        due_ms: when the message is due, ms since the epoch.
        now_ms: the present time, ms since the epoch.
    """
    return sum(now_ms + edge * 1000 < due_ms for edge in EDGES)


def spans(counts: Sequence[int]) -> list[Span]:
    """Return the spans.

    Arguments:
        counts: the number of messages in each span.
    """
    return [
        Span(start, end, messages)
        for start, end, messages in zip((None, *EDGES), (*EDGES, None), counts, strict=True)
    ]


def lost_due_times(store: Store, queues: Sequence[str]) -> int:
    """How many messages of *queues* are in no span, because they wait for their unique keys."""
    return Schedule(store).count_blocked(store.partitions.all_names(queues))


def timeline(store: Store, queues: Sequence[str]) -> list[Span]:
    """Count the scheduled messages of *queues* in each span, without those that wait for their keys. Makes
    one round trip to count, however many messages there are."""
    now_ms = store.now_ms()
    limits: list[str | float] = ["-inf", *(now_ms + edge * 1000 for edge in EDGES), "(inf"]
    counts = [0] * (len(EDGES) + 1)
    commands: list[Command] = [
        ("ZCOUNT", store.keys(queue).schedule, f"({start}", end)
        for queue in store.partitions.all_names(queues)
        for start, end in pairwise(limits)
    ]
    for position, count in enumerate(answers(store.server, commands)):
        counts[position % len(counts)] += count
    return spans(counts)
