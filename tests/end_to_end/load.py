"""A process that publishes until it is told to end, and writes down what it has published.

python -m tests.end_to_end.load <name> <file>
"""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType

from celery import Celery

from tests.end_to_end.environment import Environment
from tools.harness.journal import add_line, whole_lines
from tools.harness.process import ChildProcess

#: Seconds between two messages.
PAUSE = 0.02


class Load(ChildProcess):
    """Such a process.

    Arguments:
        python: of the environment whose Celery publishes.
    """

    def __init__(self, name: str, environment: Environment, cwd: Path, python: str = sys.executable) -> None:
        super().__init__()
        self._name = name
        self._environment = environment
        self._cwd = cwd
        self._python = python
        self._sent = environment.ledger.with_name(f"sent by {name}")

    def command(self) -> Sequence[str]:
        return [self._python, "-m", "tests.end_to_end.load", self._name, str(self._sent)]

    def environment(self) -> Mapping[str, str]:
        return {**super().environment(), **self._environment.variables()}

    def working_directory(self) -> Path | None:
        return self._cwd

    def is_ready(self) -> bool:
        return bool(self.sent())

    def sent(self) -> list[str]:
        """The tasks that were published so far."""
        return whole_lines(self._sent)


def main(name: str, sent: Path) -> None:
    environment = Environment.of_this_process()
    app = Celery("load", broker=environment.broker)
    app.conf.update(environment.settings)
    is_over = False

    def end(number: int, frame: FrameType | None) -> None:
        nonlocal is_over
        is_over = True

    signal.signal(signal.SIGTERM, end)
    number = 0
    while not is_over:
        number += 1
        task = f"{name} {number}"
        countdown = (None, 1, None, 3, None, 6)[number % 6]
        app.send_task("work_late", [task, 0.01], countdown=countdown, priority=number % 10)
        add_line(sent, task)
        time.sleep(PAUSE)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
