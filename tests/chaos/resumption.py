"""How soon workers take from the queues again when the servers were away."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from tests.chaos.damage import Damage
from tests.chaos.ledger import TAKE, Entry
from tests.chaos.producer import Submission


@dataclass(frozen=True)
class Resumption:
    """How it went on after one damage, in the queue that came last.

    Attributes:
        after_damage: seconds from the damage to the first task that was taken after the servers were back.
        after_served: seconds from when the servers were back. In these somebody has to publish, too.
    """

    after_damage: float
    after_served: float


def resumptions(
    damage: Sequence[Damage], submissions: Sequence[Submission], entries: Sequence[Entry]
) -> list[Resumption]:
    """One for each damage after which the servers came back."""
    queues = {submission.task: submission.queue for submission in submissions}
    taken: defaultdict[str, list[float]] = defaultdict(list)
    for entry in sorted(entries, key=lambda entry: entry.at):
        if entry.event == TAKE:
            taken[queues[entry.task]].append(entry.at)
    found = []
    for each in damage:
        served = each.course.served if each.course else None
        if served is not None:
            last = max(times[bisect_left(times, served)] for times in taken.values() if times[-1] >= served)
            found.append(Resumption(last - each.at, last - served))
    return found
