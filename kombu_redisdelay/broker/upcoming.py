"""Reads what is due first in many queues."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from heapq import heapify, heappop, heappush

from kombu_redisdelay.broker.schedule import Schedule, Scheduled
from kombu_redisdelay.broker.server.replies import checked
from kombu_redisdelay.broker.server.wire import first_score
from kombu_redisdelay.broker.store import Store


def upcoming(store: Store, queues: Sequence[str]) -> Iterator[Scheduled]:
    """The scheduled messages of all *queues*, in due order. A queue is read only once its first message is
    the next one, so that the first messages of many queues are cheap."""
    heads = checked(
        store.server.call_all(
            *(("ZRANGE", store.keys(queue).schedule, 0, 0, "WITHSCORES") for queue in queues)
        )
    )
    # The number tells apart what is due at the same time: messages cannot be compared.
    waiting: list[tuple[float, int, Scheduled | None, Iterator[Scheduled]]] = [
        (due_ms, number, None, Schedule(store).iter(queue, None, None))
        for number, (queue, head) in enumerate(zip(queues, heads, strict=True))
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
