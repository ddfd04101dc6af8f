"""What a side of a row has shown: all that the checks look at."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tests.chaos.damage import Damage
from tests.chaos.ledger import Entry
from tests.chaos.producer import Submission
from tests.combinations.plan import Plan


@dataclass(frozen=True)
class Window:
    """While a queue, or a key, was paused, or its limit bound. Times are seconds since the epoch.

    Attributes:
        key: that is meant; ``None`` for all.
        ended: until then it certainly was, and
        over: from then on it certainly was not. In between, Redis was told.
    """

    queue: str
    began: float
    ended: float
    over: float
    key: str | None = None

    def concerns(self, submission: Submission) -> bool:
        return self.queue == submission.queue and self.key in (None, submission.key)


@dataclass(frozen=True)
class History:
    """What has happened.

    Attributes:
        began: when the publishing began, and
        ended: when all was done or given up, seconds since the epoch.
        paused: when the controlled queue was paused.
        died: workers that ended by themselves.
        hung: processes that did not end when they were told to.
        idle: workers that got nothing more to do when the harm was over.
        unready: processes that should work at the end, and do not; a text for each.
        logs: by the name of the worker.
        wrong: id -> where it is in the end: a state, or "gone"; and why it is there.
        results: id -> the state in the result backend, of all that have ended.
        left: what is left in Redis in the end and should not be.
    """

    plan: Plan
    submissions: Sequence[Submission]
    entries: Sequence[Entry]
    damage: Sequence[Damage]
    began: float
    ended: float
    paused: Sequence[Window] = ()
    died: Sequence[str] = ()
    hung: Sequence[str] = ()
    idle: Sequence[str] = ()
    unready: Sequence[str] = ()
    logs: Mapping[str, str] = field(default_factory=dict)
    wrong: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    results: Mapping[str, str] = field(default_factory=dict)
    left: Sequence[str] = ()
