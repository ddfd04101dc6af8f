"""What there is to say of a queue beside its figures."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from kombu_redisdelay.operations.limits import QueueLimits
from kombu_redisdelay.operations.stats import QueueStats
from kombu_redisdelay.words import number_of, span


def in_words(limits: QueueLimits) -> str:
    """Such as ``100/m, burst 10, concurrency 20``, or ``no limits``."""
    parts = []
    if limits.rate is not None:
        parts.append(f"{limits.rate}, burst {limits.burst:,}")
    if limits.concurrency is not None:
        parts.append(f"concurrency {limits.concurrency:,}")
    return ", ".join(parts) or "no limits"


def remarks(queue: str, limits: QueueLimits, now: datetime) -> Iterator[str]:
    """Lines to show beside the figures of a queue."""
    if limits.paused_since is not None:
        yield f"{queue} has been paused for {span(max(0.0, (now - limits.paused_since).total_seconds()))}"
    if limits.is_limited:
        yield f"{queue} is limited: {in_words(limits)}"


def conflicts(queue: QueueStats) -> str:
    """What became of messages that met another one with their key; empty if there were none."""
    if not (queue.dropped or queue.replaced):
        return ""
    return f"{queue.queue}: {number_of(queue.dropped)} dropped for their key, {queue.replaced:,} replaced"
