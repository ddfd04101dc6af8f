"""Whether workers kept to the limits of a queue, and used what these allow."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from tests.chaos.ledger import TAKE, Entry
from tests.chaos.limits import Limit
from tests.chaos.producer import Submission
from tests.chaos.watch import Sample

#: Samples that are further apart, in seconds, say nothing of the time between them.
GAP = 0.5
#: Microseconds are rounded.
ROUNDING = 0.001


@dataclass(frozen=True)
class Restraint:
    """How it went with one queue, or one partition of a queue.

    Attributes:
        taken: messages.
        over_rate: how many more messages than the rate allows were taken, in the time in which that was most.
        most_held: at once.
        over_concurrency: how many more that was than were allowed.
        while_paused: messages that were taken while it was paused.
        unlimited: samples in which a limit was missing.
        share: of what the rate allows, how much was taken while messages waited and it was not paused;
            ``None`` if it was not limited by its rate alone.
        idle: the longest time, in seconds, in which a message could have been taken all the time, and nobody
            did.
    """

    queue: str
    taken: int
    over_rate: float
    most_held: int
    over_concurrency: int
    while_paused: int
    unlimited: int
    share: float | None
    idle: float


def restraint(queue: str, limit: Limit, samples: Sequence[Sample]) -> Restraint:
    pairs = [(a, b) for a, b in pairwise(_in_office(samples)) if b.at - a.at <= GAP]
    return Restraint(
        queue,
        samples[-1].delivered - samples[0].delivered,
        _over_rate(samples),
        max(sample.held for sample in samples),
        max([0, *(s.held - s.concurrency for s in samples if s.concurrency is not None)]),
        sum(
            max(0, b.delivered - a.delivered)
            for a, b in pairwise(samples)
            if a.paused_ms is not None and a.paused_ms == b.paused_ms
        ),
        sum(
            (limit.rate is not None and s.rate is None)
            or (limit.concurrency is not None and s.concurrency is None)
            for s in samples
        ),
        _share(pairs) if limit.concurrency is None else None,
        _idle(pairs),
    )


def unseen(
    queues: Mapping[str, str],
    rounds: Sequence[Mapping[str, Sample]],
    submissions: Sequence[Submission],
    entries: Sequence[Entry],
) -> int:
    """How many messages workers had got at any time that Redis had not counted as taken: without them, the
    samples prove nothing.

    Arguments:
        queues: each partition, and its queue.
    """
    queue_of = {submission.task: submission.queue for submission in submissions}
    most = 0
    for queue in set(queues.values()):
        times = sorted(e.at for e in entries if e.event == TAKE and queue_of[e.task] == queue)
        for samples in rounds:
            own = [sample for name, sample in samples.items() if queues[name] == queue]
            got = bisect_right(times, min(sample.at for sample in own))
            most = max(most, got - sum(sample.delivered for sample in own))
    return most


def _over_rate(samples: Sequence[Sample]) -> float:
    """From the start of the time to its end, no more than the burst and what the rate allows in that time.

    Each server is judged by itself. A replica that takes over may have missed the latest takes, and the old
    primary may go on for a while.
    """
    over, least, server = 0.0, float("inf"), b""
    for sample in samples:
        if sample.server != server:
            least, server = float("inf"), sample.server
        if sample.rate is None or sample.burst is None:
            least = float("inf")
            continue
        ahead = sample.delivered - sample.rate * sample.at
        least = min(least, ahead)
        over = max(over, ahead - least - sample.burst - ROUNDING)
    return over


def _in_office(samples: Sequence[Sample]) -> list[Sample]:
    """The samples without those of a server that was replaced, from the last take on: since then, it may have
    been cut off from the workers."""
    found: list[Sample] = []
    for sample in samples:
        if found and found[-1].server != sample.server:
            last = found[-1]
            while len(found) > 1 and (found[-2].server, found[-2].delivered) == (last.server, last.delivered):
                found.pop()
        found.append(sample)
    return found


def _share(pairs: Sequence[tuple[Sample, Sample]]) -> float | None:
    taken = allowed = 0.0
    for a, b in pairs:
        if a.rate is not None and a.ready > 0 and a.paused_ms is b.paused_ms is None:
            taken += b.delivered - a.delivered
            # What may still be taken is not lost, up to the burst.
            allowed += a.tokens + (b.at - a.at) * a.rate - b.tokens
    return taken / allowed if allowed else None


def _idle(pairs: Sequence[tuple[Sample, Sample]]) -> float:
    longest = idle = 0.0
    for a, b in pairs:
        is_idle = a.offers and b.offers and a.delivered == b.delivered
        idle = idle + b.at - a.at if is_idle else 0.0
        longest = max(longest, idle)
    return longest
