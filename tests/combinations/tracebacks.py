"""Tracebacks in the log of a worker that pass through our code."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from tests.chaos.damage import Damage
from tests.chaos.schedule import FAILOVERS, Harm
from tests.combinations.plan import CALLBACK_ERROR

_RECORD = re.compile(r"^\[(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d),(\d{3}): ")
_TRACEBACK = "Traceback (most recent call last)"
_OURS = "kombu_redisdelay/"

#: What ends a connection, and for how long after it workers may say so, seconds.
_OF_CONNECTIONS = (Harm.CLIENT_KILL, Harm.SILENCE, Harm.REFUSED, *FAILOVERS)
_AFTERMATH = 30.0
#: What is said of a lost connection or a server that does not serve just now.
_LOST = re.compile(
    r"^\S*(Connection\w*|Timeout\w*|BrokenPipe|Operational|ReadOnly|MasterDown|\w*NotFound|ClusterDown|NotReplicated"
    r"|BusyLoading|Moved|Ask|TryAgain|OS)Error\b|^\S*\.Refuses: ",
    re.MULTILINE,
)


@dataclass(frozen=True)
class Record:
    """What was logged at once.

    Attributes:
        at: seconds since the epoch; 0 for what stands before the first line with a time.
    """

    at: float
    text: str


def records(log: str) -> Iterator[Record]:
    """The log of a Celery worker, record for record."""
    at, lines = 0.0, list[str]()
    for line in log.splitlines():
        match = _RECORD.match(line)
        if match:
            yield Record(at, "\n".join(lines))
            at, lines = time.mktime(time.strptime(match[1], "%Y-%m-%d %H:%M:%S")) + int(match[2]) / 1000, []
        lines.append(line)
    yield Record(at, "\n".join(lines))


def unexplained(log: str, damage: Iterable[Damage], beside: str) -> list[str]:
    """Of each record with a traceback through our code that has no reason: what was said, and the error.

    Arguments:
        beside: what is wrong in the row.
    """
    harms = [each for each in damage if each.harm in _OF_CONNECTIONS]
    found = []
    for record in records(log):
        if _TRACEBACK not in record.text or _OURS not in record.text:
            continue
        wanted = beside == "raises" and CALLBACK_ERROR in record.text
        in_time = any(each.at <= record.at + 1 and record.at <= each.until + _AFTERMATH for each in harms)
        if not wanted and not (in_time and _LOST.search(record.text)):
            # Without the time: many say the same.
            lines = _RECORD.sub("[", record.text).splitlines()
            found.append(f"{lines[0][:160]} ... {lines[-1][:160]}")
    return found
