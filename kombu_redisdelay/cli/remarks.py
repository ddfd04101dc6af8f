"""What there is to say of a queue beside its figures."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from kombu_redisdelay.operations.fair import KeyLimits
from kombu_redisdelay.operations.fairness import Fairness
from kombu_redisdelay.operations.limits import QueueLimits
from kombu_redisdelay.operations.stats import QueueStats
from kombu_redisdelay.words import number_of, span


def in_words(limits: QueueLimits | KeyLimits) -> str:
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


def fairness_remarks(queue: str, fairness: Fairness, ready: int) -> Iterator[str]:
    """The same of a fair queue.

    Arguments:
        ready: how many ready messages it has.
    """
    waiting = f"{number_of(fairness.keys, 'key')} wait{'s' if fairness.keys == 1 else ''}"
    if fairness.keys_at_limit:
        waiting += f", {fairness.keys_at_limit:,} of them at a limit"
    if fairness.state == "off":
        yield f"{queue} is not to be fair any more, and workers move its messages back: {waiting}"
    elif ready and not fairness.keys:
        yield f"{queue} is fair, and workers have not sorted its {number_of(ready, 'message')} by key yet"
    else:
        yield f"{queue} is fair: {waiting}"
    yield from limits_of_keys(queue, fairness.limits)


def limits_of_keys(queue: str, limits: KeyLimits) -> Iterator[str]:
    """The same of the limits of every key."""
    if limits.is_limited:
        yield f"each key of {queue} is limited: {in_words(limits)}"


def conflicts(queue: QueueStats) -> str:
    """What became of messages that met another one with their unique key; empty if there were none."""
    each = {"dropped": queue.dropped, "replaced": queue.replaced}
    said = [f"{number_of(count)} {what}" for what, count in each.items() if count]
    if not said:
        return ""
    return f"{queue.queue}: because of unique keys, {' and '.join(said)} since its history began"
