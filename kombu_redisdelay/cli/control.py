"""Says in words what an operator allows for a queue."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime

from kombu_redisdelay.operations.control import QueueControl
from kombu_redisdelay.words import span


def limits(control: QueueControl) -> str:
    """The limits of a queue, such as ``100/m, burst 10, concurrency 20``; empty if there are none."""
    parts = []
    if control.rate is not None:
        parts.append(f"{control.rate}, burst {control.burst:,}")
    if control.concurrency is not None:
        parts.append(f"concurrency {control.concurrency:,}")
    return ", ".join(parts)


def dropped(before: QueueControl, after: QueueControl) -> str:
    """The limits of a queue *before* that it has not *after*, in the same way."""
    return limits(
        replace(
            before,
            rate=before.rate if after.rate is None else None,
            concurrency=before.concurrency if after.concurrency is None else None,
        )
    )


def remarks(queue: str, control: QueueControl, now: datetime) -> Iterator[str]:
    """Lines to show beside the figures of a queue."""
    if control.paused_since is not None:
        yield f"{queue} has been paused for {span(max(0.0, (now - control.paused_since).total_seconds()))}"
    if control.is_limited:
        yield f"{queue} is limited: {limits(control)}"
