"""Tells the publisher of a message with a key what became of it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from kombu_redisdelay import metrics
from kombu_redisdelay.broker.unique import DROPPED, REPLACED, Conflict


class Fate:
    """What became of the message with this *id* in the queues that it went to.

    Attributes:
        learned: called with the result when a batch has published the message.
    """

    def __init__(self, id: str) -> None:
        self.id = id
        self.learned: Callable[[Conflict | None], object] | None = None
        self._outcomes: list[Conflict | None] = []

    def note(self, conflict: Conflict | None) -> None:
        """Note what became of it in one more queue."""
        self._outcomes.append(conflict)

    @property
    def conflict(self) -> Conflict | None:
        """The result for all queues: it counts as dropped only if it was dropped in each of them."""
        conflicts = [each for each in self._outcomes if each is not None]
        dropped = [each for each in conflicts if each.outcome == DROPPED]
        if dropped and len(dropped) == len(self._outcomes):
            return dropped[0]
        return next((each for each in conflicts if each.outcome == REPLACED), None)


_wanted: ContextVar[Fate | None] = ContextVar("redisdelay_fate", default=None)


@contextmanager
def fate_of(id: str) -> Iterator[Fate]:
    """What becomes of the message with this *id*, which is published in the ``with`` block."""
    fate = Fate(id)
    token = _wanted.set(fate)
    try:
        yield fate
    finally:
        _wanted.reset(token)


def wanted_fate(id: str) -> Fate | None:
    """Where to note what becomes of the message with this *id*; ``None`` if no block of :func:`fate_of` is
    for it."""
    fate = _wanted.get()
    return fate if fate is not None and fate.id == id else None


def tell(queue: str, headers: dict[str, Any], id: str, conflict: Conflict | None, fate: Fate | None) -> None:
    """Note what became of a message in one queue.

    Arguments:
        fate: where to note it; ``None`` if the task was sent without its class.
    """
    if fate is not None:
        fate.note(conflict)
    if conflict is None:
        return
    metrics.unique_conflict(queue, conflict.outcome)
    if "celery" in sys.modules:
        # It needs Celery, which need not be there.
        from kombu_redisdelay.transport.unique_results import tell_celery

        tell_celery(headers, id, conflict, is_by_hand=fate is None)
