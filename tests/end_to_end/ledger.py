"""What workers did, written outside the broker, whose loss or repetition is what the tests look for."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict, dataclass
from datetime import timezone
from pathlib import Path
from threading import Lock

from dateutil.parser import isoparse

from tools.harness.journal import add_line, lines_after


@dataclass(frozen=True)
class Entry:
    """One event in the life of a task.

    Attributes:
        event: "started" or "ended".
        task: the label that the test gave to the task.
        at: by the clock of this machine, seconds since the epoch.
        eta: the task's, in ISO 8601.
        deliveries: the header ``x-delivery-count``.
    """

    event: str
    task: str
    at: float
    pid: int
    eta: str | None
    redelivered: bool
    deliveries: int | None


class Ledger:
    """Reads each line once, however often it is asked: who waits for tasks asks again and again."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._position = 0
        self._entries: list[Entry] = []
        self._lock = Lock()

    def write(self, entry: Entry) -> None:
        add_line(self.path, json.dumps(asdict(entry)))

    def entries(self, event: str | None = None) -> list[Entry]:
        """The entries for *event*, or for all events, in the order in which they were written."""
        with self._lock:
            lines, self._position = lines_after(self.path, self._position)
            self._entries += [Entry(**json.loads(line)) for line in lines]
            return [entry for entry in self._entries if event is None or entry.event == event]

    def started(self) -> list[str]:
        """The tasks that were started, as often as they were."""
        return [entry.task for entry in self.entries("started")]

    def ended(self) -> list[str]:
        """The tasks that ended, as often as they did."""
        return [entry.task for entry in self.entries("ended")]

    def run_twice(self) -> dict[str, int]:
        """The tasks that were started more than once, and how often."""
        return {task: count for task, count in Counter(self.started()).items() if count > 1}

    def early(self) -> list[Entry]:
        """The starts of tasks that came before the task's ETA."""
        return [entry for entry in self.entries("started") if entry.eta and entry.at < _seconds(entry.eta)]


def _seconds(eta: str) -> float:
    moment = isoparse(eta)
    return (moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)).timestamp()
