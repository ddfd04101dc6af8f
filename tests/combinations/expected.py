"""What must have run: what was published, and what the tasks have published themselves."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from tests.chaos.damage import Damage
from tests.chaos.ledger import END, Entry
from tests.chaos.producer import Submission
from tests.combinations.attempts import attempt
from tests.combinations.plan import RETRY_AFTER, WRONG_ONE, Plan

#: A primary may not have told its replicas yet what it had been told so many seconds before its end.
IN_FLIGHT = 1.0


def expected(plan: Plan, submissions: Iterable[Submission], entries: Iterable[Entry]) -> list[Submission]:
    """Each healthy task, and each retry that one has published: those that are confirmed must have run."""
    ended = {entry.task: entry.at for entry in reversed([*entries]) if entry.event == END}
    again = {send.id for send in plan.sends if send.args[1:] == [True]}
    found = [each for each in submissions if not each.task.startswith(WRONG_ONE)]
    retries = [
        replace(each, task=attempt(each.task, 1), at=ended[each.task], countdown=RETRY_AFTER, confirmed=True)
        for each in found
        if each.task in again and each.task in ended
    ]
    return [*found, *retries]


def without_replicas(submissions: Sequence[Submission], damage: Iterable[Damage]) -> list[Submission]:
    """The submissions of a producer that does not wait for replicas: a failover may have lost the last ones,
    so they are not confirmed."""
    courses = [(each.at, each.course) for each in damage if each.course is not None]
    return [
        replace(
            each,
            confirmed=each.confirmed
            and not any(at - IN_FLIGHT <= each.at <= course.forgetful_until for at, course in courses),
        )
        for each in submissions
    ]
