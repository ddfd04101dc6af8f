"""The workers of a run, each of which is replaced as soon as it is gone."""

from __future__ import annotations

import itertools
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tests.chaos.damage import Damage
from tests.chaos.environment import Environment
from tests.chaos.schedule import Harm
from tests.chaos.worker import Kind, Worker

if TYPE_CHECKING:
    # In `typing` from Python 3.11 on.
    from typing_extensions import Self

#: Seconds until a worker that was asked to end is killed. It has a long task to finish at most.
TERMINATION_TIMEOUT = 20.0


class Fleet:
    """One worker of each kind, from the ``with`` block's beginning to its end.

    Arguments:
        environment: makes what a worker of a kind and a name is told.
        logs: where to keep the workers' logs; ``None`` for nowhere.
    """

    def __init__(
        self,
        kinds: Sequence[Kind],
        environment: Callable[[Kind, str], Environment],
        logs: Path | None,
    ) -> None:
        self._kinds = kinds
        self._environment = environment
        self._logs = logs
        self._numbers = itertools.count(1)
        self._workers: list[Worker] = []
        self._terminated: dict[Worker, float] = {}
        self._frozen: set[Worker] = set()
        self._missing: list[Kind] = []
        #: Whether nobody is started for now in the place of one that is gone.
        self.is_held = False
        self.damage: list[Damage] = []
        #: Names of workers that ended and were not asked to.
        self.died: list[str] = []
        #: Names of workers that were asked to end, and had to be killed.
        self.hung: list[str] = []

    @property
    def workers(self) -> list[Worker]:
        """Those that run, or are about to."""
        return list(self._workers)

    def targets(self) -> list[Worker]:
        """Those that work, and may be harmed now."""
        return [
            w
            for w in self._workers
            if w.ready and not w.kind.stock and w not in self._frozen and w not in self._terminated
        ]

    def labels(self, *, proxied: bool = False) -> tuple[str, ...]:
        return tuple(w.label for w in self._workers if w.kind.proxied or not proxied)

    def labels_of_stock(self) -> set[str]:
        """Those of the workers of ``redis://``."""
        return {w.label for w in self._workers if w.kind.stock}

    # -- harm ------------------------------------------------------------------------------------------

    def kill(self, worker: Worker) -> None:
        at = time.time()
        worker.kill()
        self.damage.append(Damage(Harm.KILL, (worker.label,), at, time.time(), worker.isolated))
        self._replace(worker)

    def terminate(self, worker: Worker) -> None:
        worker.terminate()
        self._terminated[worker] = time.time()

    def freeze(self, worker: Worker) -> Callable[[], None]:
        """Stop *worker*; call what is returned to have it go on."""
        self._frozen.add(worker)
        at = time.time()
        worker.freeze()

        def thaw() -> None:
            worker.thaw()
            self._frozen.discard(worker)
            self.damage.append(Damage(Harm.STOP, (worker.label,), at, time.time()))

        return thaw

    def look_after(self) -> None:
        """Replace the workers that have ended, and kill those that should have."""
        for worker in self.workers:
            asked_at = self._terminated.get(worker)
            if worker.running:
                if asked_at is not None and time.time() - asked_at > TERMINATION_TIMEOUT:
                    self.hung.append(worker.label)
                    self.kill(worker)
            else:
                if asked_at is None:
                    self.died.append(worker.label)
                else:
                    self.damage.append(Damage(Harm.TERMINATE, (worker.label,), asked_at, time.time()))
                self._replace(worker)
        self._fill_up()

    # -- the end ---------------------------------------------------------------------------------------

    def stop(self) -> None:
        """Ask all workers to end, and wait for them."""
        for worker in self._workers:
            worker.terminate()
        deadline = time.monotonic() + TERMINATION_TIMEOUT
        while any(worker.running for worker in self._workers) and time.monotonic() < deadline:
            time.sleep(0.05)

    def __enter__(self) -> Self:
        for kind in self._kinds:
            self._start(kind)
        return self

    def __exit__(self, *error: object) -> None:
        for worker in self.workers:
            self._dispose(worker)

    def _start(self, kind: Kind) -> None:
        name = f"{next(self._numbers)}-{kind.pool}"
        worker = Worker(kind, name, self._environment(kind, name))
        self._workers.append(worker)
        worker.start()

    def _replace(self, worker: Worker) -> None:
        self._dispose(worker)
        self._missing.append(worker.kind)
        self._fill_up()

    def _fill_up(self) -> None:
        while self._missing and not self.is_held:
            self._start(self._missing.pop())

    def _dispose(self, worker: Worker) -> None:
        self._workers.remove(worker)
        self._terminated.pop(worker, None)
        self._frozen.discard(worker)
        if self._logs is not None:
            shutil.copy(worker.directory / "log", self._logs / f"worker-{worker.label}.log")
        worker.__exit__(None, None, None)
