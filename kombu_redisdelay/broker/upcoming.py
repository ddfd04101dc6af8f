"""Reads the first due messages of many queues."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from math import inf, isinf, nextafter

from kombu_redisdelay.broker.schedule import Schedule, Scheduled
from kombu_redisdelay.broker.server.wire import Command, answers, first_score
from kombu_redisdelay.broker.store import Store


@dataclass(frozen=True, slots=True)
class ScheduleCursor:
    """Says where a message is among those of several queues. The attributes are those of
    :class:`~kombu_redisdelay.broker.schedule.Scheduled`."""

    due_ms: float
    queue: str
    member: bytes


def upcoming(
    store: Store,
    queues: Sequence[str],
    from_ms: float | None = None,
    before_ms: float | None = None,
    after: ScheduleCursor | None = None,
    *,
    last_first: bool = False,
    texts: Sequence[str] = (),
) -> Iterator[Scheduled]:
    """The scheduled messages of all *queues*, in due order. Of those that are due at the same time, those of
    the first queue come first. A queue is read only once its first message is the next one, so that the first
    messages of many queues are cheap.

    Arguments:
        from_ms, before_ms: see :meth:`Schedule.count <kombu_redisdelay.broker.schedule.Schedule.count>`.
        after: only messages that come after this cursor. Its queue is one of *queues*.
        last_first: whether they come in exactly the other order.
        texts: only messages that contain one of these; in place of others,
            :attr:`~kombu_redisdelay.broker.schedule.Scheduled.left_out`.
    """
    spans = _spans(queues, from_ms, before_ms, after, last_first)
    firsts: list[Command] = [
        ("ZRANGE", store.keys(queue).schedule, *span.bounds(last_first), "LIMIT", 0, 1, "WITHSCORES")
        for queue, span in zip(queues, spans, strict=True)
    ]
    heads = answers(store.server, firsts)
    sign = -1 if last_first else 1
    # The number tells apart what is due at the same time: messages cannot be compared.
    waiting: list[tuple[float, int, Scheduled | None, Iterator[Scheduled]]] = [
        (sign * due_ms, sign * number, None, span.read(store, queue, last_first, texts))
        for number, (queue, span, head) in enumerate(zip(queues, spans, heads, strict=True))
        if (due_ms := first_score(head)) is not None
    ]
    heapify(waiting)
    while waiting:
        _, number, message, others = heappop(waiting)
        if message is not None:
            yield message
        following = next(others, None)
        if following is not None:
            heappush(waiting, (sign * following.due_ms, number, following, others))


@dataclass(frozen=True, slots=True)
class _Span:
    """The part of a queue that is read.

    Attributes:
        from_ms, before_ms: as for :func:`upcoming`.
        name: where it begins among those that are due at its first time: those that come before this name are
            left out, and so is this one itself; if the last one comes first, those that come after it.
    """

    from_ms: float | None
    before_ms: float | None
    name: bytes = b""

    def bounds(self, last_first: bool) -> tuple[str, ...]:
        low = "-inf" if self.from_ms is None else str(self.from_ms)
        if self.before_ms is None:
            high = "+inf"
        else:
            # Some that are due at that very time may come.
            high = f"{'' if last_first and self.name else '('}{self.before_ms}"
        return (high, low, "BYSCORE", "REV") if last_first else (low, high, "BYSCORE")

    def read(self, store: Store, queue: str, last_first: bool, texts: Sequence[str]) -> Iterator[Scheduled]:
        read = Schedule(store).iter_back if last_first else Schedule(store).iter
        return read(queue, self.from_ms, self.before_ms, self.name, texts)


#: Nothing is due in it.
_NOTHING = _Span(inf, -inf)


def _spans(
    queues: Sequence[str],
    from_ms: float | None,
    before_ms: float | None,
    after: ScheduleCursor | None,
    last_first: bool,
) -> list[_Span]:
    """The part of each queue that is read."""
    is_before_all = after is None or (
        before_ms is not None and before_ms <= after.due_ms
        if last_first
        else from_ms is not None and from_ms > after.due_ms
    )
    if after is None or is_before_all:
        return [_Span(from_ms, before_ms)] * len(queues)
    at = queues.index(after.queue)
    # Of those that are due at the same time, those of these queues come before the cursor.
    if isinf(after.due_ms):
        # What waits for its key: no time comes after it.
        earlier = [_Span(from_ms, None) if last_first else _NOTHING] * at
    else:
        past = nextafter(after.due_ms, inf)
        earlier = [_Span(from_ms, past) if last_first else _Span(past, before_ms)] * at
    if last_first:
        here, later = _Span(from_ms, after.due_ms, after.member), _Span(from_ms, after.due_ms)
    else:
        here, later = _Span(after.due_ms, before_ms, after.member), _Span(after.due_ms, before_ms)
    return [*earlier, here, *[later] * (len(queues) - at - 1)]
