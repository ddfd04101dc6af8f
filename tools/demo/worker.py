"""A worker process of the demo, and what is to be shown of it."""

from __future__ import annotations

import itertools
from pathlib import Path

from tools.harness.celery_worker import CeleryWorker

#: A stranger's machine has few cores, but a task that sleeps needs none.
CONCURRENCY = 10

_numbers = itertools.count(1)


class Worker(CeleryWorker):
    def __init__(self) -> None:
        root = Path(__file__).parents[2]
        super().__init__("tools.demo.tasks", pool="prefork", concurrency=CONCURRENCY, cwd=root)
        self.title = f"worker {next(_numbers)}"
        self._was_ready = False

    @property
    def ready(self) -> bool:
        # Its log, which grows with every task, need not be searched again and again.
        self._was_ready = self._was_ready or self.is_ready()
        return self._was_ready

    @property
    def state(self) -> str:
        if not self.running:
            return "dead"
        return "up" if self.ready else "starting"
