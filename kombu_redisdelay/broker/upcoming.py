"""Reads what is due first in many queues."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from math import inf, nextafter

from kombu_redisdelay.broker.schedule import Schedule, Scheduled
from kombu_redisdelay.broker.server.replies import answers
from kombu_redisdelay.broker.server.wire import first_score
from kombu_redisdelay.broker.store import Store


@dataclass(frozen=True, slots=True)
class Place:
    """Where a message is among those of several queues. The attributes are those of
    :class:`~kombu_redisdelay.broker.schedule.Scheduled`."""

    due_ms: float
    queue: str
    member: bytes


def upcoming(
    store: Store,
    queues: Sequence[str],
    from_ms: float | None = None,
    before_ms: float | None = None,
    after: Place | None = None,
) -> Iterator[Scheduled]:
    """The scheduled messages of all *queues*, in due order. Of those that are due at the same time, those of
    the first queue come first. A queue is read only once its first message is the next one, so that the first
    messages of many queues are cheap.

    Arguments:
        from_ms, before_ms: see :meth:`Schedule.count <kombu_redisdelay.broker.schedule.Schedule.count>`.
        after: only messages that come after this place. Its queue is one of *queues*.
    """
    starts = [(from_ms, b"")] * len(queues) if after is None else _starts(queues, from_ms, after)
    end = "+inf" if before_ms is None else f"({before_ms}"
    heads = answers(
        store.server,
        (
            ("ZRANGEBYSCORE", store.keys(queue).schedule, _low(start), end, "LIMIT", 0, 1, "WITHSCORES")
            for queue, (start, _) in zip(queues, starts, strict=True)
        ),
    )
    # The number tells apart what is due at the same time: messages cannot be compared.
    waiting: list[tuple[float, int, Scheduled | None, Iterator[Scheduled]]] = [
        (due_ms, number, None, Schedule(store).iter(queue, start, before_ms, name))
        for number, (queue, (start, name), head) in enumerate(zip(queues, starts, heads, strict=True))
        if (due_ms := first_score(head)) is not None
    ]
    heapify(waiting)
    while waiting:
        _, number, message, others = heappop(waiting)
        if message is not None:
            yield message
        following = next(others, None)
        if following is not None:
            heappush(waiting, (following.due_ms, number, following, others))


def _starts(queues: Sequence[str], from_ms: float | None, after: Place) -> list[tuple[float | None, bytes]]:
    """Where to begin in each queue: a due time, and after which of the names that are due then."""
    if from_ms is not None and from_ms > after.due_ms:
        return [(from_ms, b"")] * len(queues)
    at = queues.index(after.queue)
    return [
        *((nextafter(after.due_ms, inf), b"") for _ in queues[:at]),
        (after.due_ms, after.member),
        *((after.due_ms, b"") for _ in queues[at + 1 :]),
    ]


def _low(start: float | None) -> float | str:
    return "-inf" if start is None else start
