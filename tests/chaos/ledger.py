"""What the workers did, in a file that the broker has no part in."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

START, ACK, END = "start", "ack", "end"


@dataclass(frozen=True)
class Entry:
    """One event in the life of a task.

    Attributes:
        event: ``START``, ``END``, or ``ACK``: Celery is about to tell the broker to forget the task.
        at: by the clock of this machine, seconds since the epoch.
        due: when the task was to start; ``None`` for at once.
        worker: the name of the worker, also where the PID is that of a process of its pool.
        redelivered: whether the broker said that it had delivered the message before.
    """

    event: str
    task: str
    at: float
    due: float | None
    worker: str
    pid: int
    redelivered: bool


class Ledger:
    """A file with a line for each entry, which any number of processes add to."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def write(self, entry: Entry) -> None:
        line = json.dumps(asdict(entry)) + "\n"
        # One write in append mode: the lines of different processes do not mix, and what was written
        # is there whatever happens to the process next.
        descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(descriptor, line.encode())
        finally:
            os.close(descriptor)

    def entries(self) -> list[Entry]:
        """All entries so far, in the order in which they were written."""
        if not self.path.exists():
            return []
        # What follows the last line break is a line that is being written.
        *lines, _ = self.path.read_text().split("\n")
        return [Entry(**json.loads(line)) for line in lines]
