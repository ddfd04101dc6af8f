"""Real Celery workers, each in a process of its own."""

from __future__ import annotations

import itertools
import os
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from tools.harness.forked_process import ForkedProcess
from tools.harness.process import ChildProcess, Started

_numbers = itertools.count(1)

#: Seconds that a worker may take to stop. A child of the prefork pool waits for half a minute until its last
#: result was read, and when a task ends while the worker stops, nobody reads it now and then; whatever the
#: broker is.
STOP_PATIENCE = 60.0


class CeleryWorker(ChildProcess):
    """``celery worker`` for an app, under a node name that no other worker has.

    Arguments:
        preloaded: fork it from a process that has imported Celery (``fork_server.py``), if it is a command of
            this interpreter. Not for an *env* with something that the interpreter or imports of Celery read.
    """

    def __init__(
        self,
        app: str,
        *,
        pool: str = "prefork",
        concurrency: int = 1,
        queues: Sequence[str] = (),
        prefetch_multiplier: int | None = None,
        args: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        python: str = sys.executable,
        preloaded: bool = False,
    ) -> None:
        super().__init__()
        self.name = f"worker{next(_numbers)}-{os.getpid()}"
        self._app = app
        self._env = {**os.environ, **(env or {})}
        self._cwd = cwd
        self._python = python
        self._preloaded = preloaded and pool != "eventlet"
        self._options = ["-P", pool, "-c", str(concurrency), "-n", f"{self.name}@%h", "-l", "INFO"]
        if queues:
            self._options += ["-Q", ",".join(queues)]
        if prefetch_multiplier is not None:
            self._options += ["--prefetch-multiplier", str(prefetch_multiplier)]
        self._options += args

    def command(self) -> Sequence[str]:
        return [self._python, "-m", "celery", "-A", self._app, "worker", *self._options]

    def launch(self, log: IO[bytes], environment: Mapping[str, str]) -> Started:
        *program, arguments = *self.command()[:3], self.command()[3:]
        if self._preloaded and program == [sys.executable, "-m", "celery"]:
            return ForkedProcess(arguments, log, environment, self._cwd or Path.cwd())
        return super().launch(log, environment)

    def environment(self) -> Mapping[str, str]:
        return self._env

    def working_directory(self) -> Path | None:
        return self._cwd

    def stop(self, timeout: float = STOP_PATIENCE) -> None:
        super().stop(timeout)

    def is_ready(self) -> bool:
        return re.search(r"@\S+ ready\.$", self.log(), re.MULTILINE) is not None
