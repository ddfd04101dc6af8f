"""The two workers of a row, and what is done to them."""

from __future__ import annotations

import itertools
import os
import signal
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import TYPE_CHECKING

from tests.chaos.damage import Damage
from tests.chaos.environment import Environment
from tests.chaos.schedule import Harm
from tests.combinations import stacks
from tests.combinations.interpreters import ROOT
from tools.harness.celery_worker import STOP_PATIENCE, CeleryWorker
from tools.harness.process import wait_until

if TYPE_CHECKING:
    # In `typing` from Python 3.11 on.
    from typing_extensions import Self

WORKERS = 2
#: Seconds for which a worker is stopped so that another one gets something.
MOMENT = 2.0
#: Pool -> how many tasks a worker runs at the same time: so few that one that stays taken for long is missed.
SLOTS = {"prefork": 2, "solo": 1, "threads": 4, "gevent": 4, "eventlet": 4}


class Worker(CeleryWorker):
    """A worker with a name that no other one of the row has or had."""

    def __init__(self, label: str, pool: str, environment: Environment, python: str) -> None:
        super().__init__(
            "tests.combinations.app",
            pool=pool,
            concurrency=SLOTS[pool],
            env=environment.variables(),
            cwd=ROOT,
            python=python,
        )
        self.label = label


class Fleet:
    """Two workers, each of which is replaced when it ends, for as long as the ``with`` block lasts.

    Attributes:
        died: workers that ended by themselves.
        hung: workers that were told to end, and did not.
        damage: what was done to them.
        logs: of the workers that have ended, by their names.

    Arguments:
        environment: makes what a worker of a name is told.
    """

    def __init__(self, pool: str, environment: Callable[[str], Environment], python: str) -> None:
        self._pool = pool
        self._environment = environment
        self._python = python
        self._numbers = itertools.count(1)
        self._terminated: dict[Worker, float] = {}
        self.workers: list[Worker] = []
        self.damage: list[Damage] = []
        self.died: list[str] = []
        self.hung: list[str] = []
        self.logs: dict[str, str] = {}

    def wait_ready(self) -> None:
        for worker in self.workers:
            worker.wait_ready(timeout=120)

    def kill_one(self) -> None:
        worker = self.workers[0]
        at = time.time()
        worker.kill()
        self.damage.append(Damage(Harm.KILL, (worker.label,), at, time.time()))
        self._replace(worker)

    def terminate_one(self) -> None:
        self._terminate(self.workers[0])

    def stop_for_a_moment(self, labels: Collection[str]) -> None:
        """Leave what comes to the others. It is so short that no lease ends."""
        stopped = [worker for worker in self.workers if worker.label in labels and worker.running]
        for worker in stopped:
            os.kill(worker.pid, signal.SIGSTOP)
        time.sleep(MOMENT)
        for worker in stopped:
            os.kill(worker.pid, signal.SIGCONT)

    def note(self, harm: Harm, at: float) -> None:
        """What was done to the servers, and so to all workers."""
        labels = tuple(worker.label for worker in self.workers)
        self.damage.append(Damage(harm, labels, at, time.time()))

    def look_after(self) -> None:
        """Replace those that have ended, and those that should have."""
        for worker in [*self.workers]:
            asked = self._terminated.get(worker)
            if worker.running:
                if asked is not None and time.time() - asked > STOP_PATIENCE:
                    self._note_hung(worker)
                    worker.kill()
                    self._replace(worker)
                continue
            if asked is None:
                self.died.append(worker.label)
            else:
                self.damage.append(Damage(Harm.TERMINATE, (worker.label,), asked, time.time()))
            self._replace(worker)

    @property
    def settled(self) -> bool:
        """Whether all workers that there should be are there."""
        return not self._terminated and all(worker.running and worker.is_ready() for worker in self.workers)

    def stop(self) -> None:
        """Ask all to end, and wait for them."""
        for worker in self.workers:
            self._terminate(worker)
        deadline = time.monotonic() + STOP_PATIENCE
        while any(worker.running for worker in self.workers) and time.monotonic() < deadline:
            time.sleep(0.05)
        for worker in [*self.workers]:
            if worker.running:
                self._note_hung(worker)
            self._dispose(worker)

    def __enter__(self) -> Self:
        for _ in range(WORKERS):
            self._start()
        return self

    def __exit__(self, *error: object) -> None:
        for worker in [*self.workers]:
            self._dispose(worker)

    def _start(self) -> None:
        label = f"worker-{next(self._numbers)}"
        worker = Worker(label, self._pool, self._environment(label), self._python)
        self.workers.append(worker)
        worker.start()

    def _terminate(self, worker: Worker) -> None:
        with suppress(ProcessLookupError):
            os.kill(worker.pid, signal.SIGTERM)
        self._terminated[worker] = time.time()

    def _note_hung(self, worker: Worker) -> None:
        self.hung.append(worker.label)
        # Its log says what it hangs in, if it still can.
        with suppress(ProcessLookupError, TimeoutError):
            os.kill(worker.pid, stacks.SIGNAL)
            wait_until(lambda: stacks.END in worker.log(), 30, "the stacks")

    def _replace(self, worker: Worker) -> None:
        self._dispose(worker)
        self._start()

    def _dispose(self, worker: Worker) -> None:
        self.workers.remove(worker)
        self._terminated.pop(worker, None)
        # What it wrote while it was killed, too.
        worker.kill()
        self.logs[worker.label] = worker.log()
        worker.__exit__(None, None, None)
