"""Says in words what an operator allows for a queue."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from kombu_redisdelay.operations.control import QueueControl
from kombu_redisdelay.words import span


def limits(control: QueueControl) -> str:
    """The limits of a queue, such as ``100/m, 10 at once; 20 held together``; empty if there are none."""
    parts = []
    if control.rate is not None:
        parts.append(f"{control.rate}, {control.burst} at once")
    if control.concurrency is not None:
        parts.append(f"{control.concurrency:,} held together")
    return "; ".join(parts)


def remarks(queue: str, control: QueueControl, now: datetime) -> Iterator[str]:
    """Lines to show beside the figures of a queue."""
    if control.paused_since is not None:
        yield f"{queue} is paused, for {span(max(0.0, (now - control.paused_since).total_seconds()))}"
    if control.is_limited:
        yield f"{queue} is limited: {limits(control)}"
