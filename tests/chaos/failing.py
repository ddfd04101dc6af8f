"""What became of tasks that failed: each is kept, once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from celery import Celery

from kombu_redisdelay import Messages, Selection
from tests.chaos.damage import Damage
from tests.chaos.ledger import END, Entry
from tests.chaos.producer import Submission
from tests.chaos.schedule import FAILOVERS
from tests.chaos.verdict import IN_FLIGHT

#: How many of the tasks fail.
SHARE = 0.3


@dataclass(frozen=True)
class FailedVerdict:
    """What a run has shown.

    Attributes:
        failed: tasks that have ended, which is with an exception.
        kept: entries of failed tasks.
        lost: tasks with late ack of these that are not kept. The ack itself keeps them.
        missing: those with early ack that are not kept, and whose worker was killed, or that a failover may
            have lost: a copy of each is sent when it has failed.
        unexplained: those with early ack that are not kept, for no such reason.
        twice: tasks that are kept more often than they have ended.
    """

    failed: int
    kept: int
    lost: Sequence[str]
    missing: Sequence[str]
    unexplained: Sequence[str]
    twice: Sequence[str]


def kept(app: Celery) -> Counter[str]:
    """Id -> how often it is kept."""
    with Messages(app) as messages:
        return Counter(message.id for message in messages.select(Selection(state="failed")))


def judge(
    submissions: Iterable[Submission],
    entries: Iterable[Entry],
    kept: Mapping[str, int],
    damage: Iterable[Damage],
    dead: Collection[str],
) -> FailedVerdict:
    """
    Arguments:
        dead: workers that were killed, or have died.
    """
    ends: dict[str, list[Entry]] = {}
    for entry in entries:
        if entry.event == END:
            ends.setdefault(entry.task, []).append(entry)
    failing = {each.task: each for each in submissions if each.fails and each.task in ends}
    courses = [(each.at, each.course) for each in damage if each.harm in FAILOVERS and each.course]

    def is_explained(task: str) -> bool:
        return any(
            entry.worker in dead
            or any(at - IN_FLIGHT <= entry.at <= course.forgetful_until for at, course in courses)
            for entry in ends[task]
        )

    gone = [task for task in failing if not kept.get(task)]
    early = [task for task in gone if not failing[task].late]
    return FailedVerdict(
        failed=len(failing),
        kept=sum(kept.values()),
        lost=[task for task in gone if failing[task].late],
        missing=[task for task in early if is_explained(task)],
        unexplained=[task for task in early if not is_explained(task)],
        twice=[task for task, count in kept.items() if count > len(ends.get(task, ()))],
    )
