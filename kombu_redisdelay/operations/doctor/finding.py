"""The findings of the doctor."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

#: What :attr:`Finding.check` of one queue begins with. The name of the queue follows.
OF_QUEUE = "queue "


class Level(str, Enum):
    """How serious a finding is."""

    OK = "ok"
    #: It works now, but may cause a problem later.
    WARNING = "warning"
    #: Messages are late, stuck or in danger now.
    WRONG = "wrong"


@dataclass(frozen=True, slots=True)
class Finding:
    """The outcome of one check.

    Attributes:
        level: how serious it is.
        check: what was checked, in a word or two.
        found: the result.
        advice: what to do about it; empty if there is nothing to do.
        server: which of several servers it is of; empty for all of them, or if there is one.
        mended_by: what an operator can do to its queue about it: ``"resume"`` or ``"limit"``; or the name of
            a state, among whose messages there is something to do; empty if neither mends it.
    """

    level: Level
    check: str
    found: str
    advice: str = ""
    server: str = ""
    mended_by: str = ""

    @property
    def queue(self) -> str:
        """The queue that it is of; empty for none, or all."""
        return self.check.removeprefix(OF_QUEUE) if self.check.startswith(OF_QUEUE) else ""


def ok(check: str, found: str) -> Finding:
    return Finding(Level.OK, check, found)


def warning(check: str, found: str, advice: str, mended_by: str = "") -> Finding:
    return Finding(Level.WARNING, check, found, advice, mended_by=mended_by)


def wrong(check: str, found: str, advice: str, mended_by: str = "") -> Finding:
    return Finding(Level.WRONG, check, found, advice, mended_by=mended_by)
