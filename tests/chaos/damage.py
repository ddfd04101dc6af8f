"""The harm that was done: when, and to which workers."""

from __future__ import annotations

from dataclasses import dataclass

from tests.chaos.schedule import Harm
from tests.chaos.site import Course


@dataclass(frozen=True)
class Damage:
    """One harm that was done.

    Attributes:
        workers: by name, those that may have felt it.
        at: when it began, and
        until: when it was over, seconds since the epoch.
        isolated: for a worker that was killed, whether the others could not tell that it is dead.
        course: for what happened to the servers, how that went.
    """

    harm: Harm
    workers: tuple[str, ...]
    at: float
    until: float
    isolated: bool = False
    course: Course | None = None
