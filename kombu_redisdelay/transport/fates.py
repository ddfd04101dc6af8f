"""Tells the publisher of a message with a key what became of it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from functools import partial
from typing import Any

from kombu_redisdelay import metrics
from kombu_redisdelay.broker.unique import REPLACED, Conflict


class Fate:
    """What became of the message with this *id* in the queues that it went to.

    Attributes:
        learned: called with this when the message is published.
        channel: that it was published over; ``None`` before that.
        properties: those that it was published with.
    """

    def __init__(self, id: str) -> None:
        self.id = id
        self.learned: Callable[[Fate], object] | None = None
        self.channel: Any = None
        self.properties: Mapping[str, Any] = {}
        self._outcomes: list[Conflict | None] = []

    def note(self, conflict: Conflict | None) -> None:
        """Note what became of it in one more queue."""
        self._outcomes.append(conflict)

    @property
    def is_accepted(self) -> bool:
        """Whether a queue has accepted it."""
        return None in self._outcomes

    @property
    def conflict(self) -> Conflict | None:
        """The result for all queues: none if one of them has accepted it, and it counts as dropped only if it
        was dropped in each of them."""
        if not self._outcomes or self.is_accepted:
            return None
        conflicts = [each for each in self._outcomes if each is not None]
        return next((each for each in conflicts if each.outcome == REPLACED), conflicts[0])

    @property
    def has_ended(self) -> bool:
        """Whether no task will run under its id: it was dropped, or runs under the id of the task that it has
        replaced, and no other task is known to have its id."""
        conflict = self.conflict
        return conflict is not None and not any(each and each.is_of(self.id) for each in self._outcomes)

    def tell(self) -> None:
        """Tell the result to the publisher that waits for it."""
        if self.learned is not None:
            self.learned(self)


_wanted: ContextVar[Fate | None] = ContextVar("redisdelay_fate", default=None)


class Noting:
    """What becomes of the message of *fate* is noted there, if it is published in the ``with`` block.

    Each task with a key is published in one: :func:`contextlib.contextmanager` takes three times as long.
    """

    __slots__ = ("_fate", "_token")

    def __init__(self, fate: Fate | None) -> None:
        self._fate = fate

    def __enter__(self) -> None:
        self._token = _wanted.set(self._fate)

    def __exit__(self, *exc_info: object) -> None:
        _wanted.reset(self._token)


def fate_by_hand(headers: Mapping[str, Any]) -> Fate | None:
    """What becomes of a task that is sent without its class: if it was dropped in each queue, its id ends as
    revoked. ``None`` if it is no task, or another caller waits for it already."""
    id = headers.get("id")
    if "task" not in headers or not isinstance(id, str) or "celery" not in sys.modules:
        return None
    if wanted_fate(id) is not None:
        return None
    # It needs Celery, which need not be there.
    from kombu_redisdelay.transport.unique_results import end_by_hand

    fate = Fate(id)
    fate.learned = partial(end_by_hand, bool(headers.get("ignore_result")))
    return fate


def wanted_fate(id: str) -> Fate | None:
    """Where to note what becomes of the message with this *id*; ``None`` if no block of :class:`Noting` is
    for it."""
    fate = _wanted.get()
    return fate if fate is not None and fate.id == id else None


def tell(queue: str, headers: dict[str, Any], id: str, conflict: Conflict | None, fate: Fate | None) -> None:
    """Note what became of a message in one queue.

    Arguments:
        fate: where to note it; ``None`` if nothing waits for it.
    """
    if fate is not None:
        fate.note(conflict)
    if conflict is None:
        return
    metrics.unique_conflict(queue, conflict.outcome)
    if "celery" in sys.modules:
        # It needs Celery, which need not be there.
        from kombu_redisdelay.transport.unique_results import tell_celery

        tell_celery(headers, id, conflict)
