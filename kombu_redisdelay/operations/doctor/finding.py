"""What the doctor finds."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Level(str, Enum):
    """How bad it is."""

    OK = "ok"
    #: It works, and may bite one day.
    WARNING = "warning"
    #: Messages are late, stuck or in danger now.
    WRONG = "wrong"


@dataclass(frozen=True, slots=True)
class Finding:
    """The outcome of one check.

    Attributes:
        check: what was looked at, in a word or two.
        found: what is the case.
        advice: what to do about it; empty if there is nothing to do.
    """

    level: Level
    check: str
    found: str
    advice: str = ""


def ok(check: str, found: str) -> Finding:
    return Finding(Level.OK, check, found)


def warning(check: str, found: str, advice: str) -> Finding:
    return Finding(Level.WARNING, check, found, advice)


def wrong(check: str, found: str, advice: str) -> Finding:
    return Finding(Level.WRONG, check, found, advice)
