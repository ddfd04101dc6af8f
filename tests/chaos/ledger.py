"""What the workers did, in a file that the broker has no part in."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from tools.harness.journal import add_line, whole_lines

TAKE, START, ACK, END = "take", "start", "ack", "end"


@dataclass(frozen=True)
class Entry:
    """One event in the life of a task.

    Attributes:
        event: ``TAKE``: Celery has got the task from the broker; ``START``; ``END``; or ``ACK``: Celery is
            about to tell the broker to forget it.
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
        add_line(self.path, json.dumps(asdict(entry)))

    def entries(self) -> list[Entry]:
        """All entries so far, in the order in which they were written."""
        return [Entry(**json.loads(line)) for line in whole_lines(self.path)]
