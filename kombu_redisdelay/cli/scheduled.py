"""What the commands share that change scheduled messages."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from kombu_redisdelay.operations.delayed import DelayedMessages
from kombu_redisdelay.operations.moments import from_now


@dataclass(frozen=True)
class Picked:
    """The scheduled messages that options have picked."""

    queues: tuple[str, ...]
    task: str | None
    due_before: datetime | None
    due_after: datetime | None

    @classmethod
    def by(
        cls,
        queues: tuple[str, ...],
        task: str | None,
        before: datetime | timedelta | None,
        after: datetime | timedelta | None,
    ) -> Picked:
        return cls(queues, task, from_now(before), from_now(after))

    @property
    def span(self) -> dict[str, Any]:
        """The times, as arguments of a method of :class:`DelayedMessages`."""
        return {"due_before": self.due_before, "due_after": self.due_after}

    @property
    def arguments(self) -> dict[str, Any]:
        """All of it, in the same way."""
        return {"queue": self.queues or None, "task": self.task, **self.span}

    def count(self, delayed: DelayedMessages) -> int:
        """How many there are. Reads them only if they are those of a task."""
        if self.task is None:
            return delayed.count(self.queues or None, **self.span)
        return sum(1 for _ in delayed.iter(**self.arguments))
