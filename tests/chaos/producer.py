"""Submits tasks at a steady rate, and remembers which ones the broker has confirmed."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from threading import Event, Thread
from typing import TYPE_CHECKING

from celery import Celery
from kombu.exceptions import OperationalError
from redis.exceptions import RedisError

from tests.chaos.tenants import Tenant, pick
from tests.chaos.transports import LONGEST_COUNTDOWN

if TYPE_CHECKING:
    # In `typing` from Python 3.11 on.
    from typing_extensions import Self

#: How long tasks run, seconds. Some are long enough to be met by most kills of their worker.
DURATIONS = (0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.1, 0.1, 0.3, 1.0)
#: After an attempt that failed, for Redis may be starting.
PAUSE = 0.1


@dataclass(frozen=True)
class Submission:
    """A task that was submitted.

    Attributes:
        late: acked when it has ended, not when it starts.
        at: when, seconds since the epoch.
        countdown: 0 for at once.
        queue: where it was sent to.
        confirmed: whether Redis said that it has it. Where it did not, it may have it all the same.
        key: that it has in a fair queue; ``None`` if there are none.
        fails: whether it ends with an exception.
    """

    task: str
    late: bool
    at: float
    countdown: float
    queue: str
    confirmed: bool
    key: str | None = None
    fails: bool = False


class Submitter(ABC):
    """Submits from a thread, for as long as the ``with`` block lasts.

    Arguments:
        rate: tasks a second.
        queues: each task goes to one of them.
    """

    def __init__(self, seed: int, rate: float, queues: Sequence[str]) -> None:
        self._queues = queues
        self._random = Random(seed)
        self._rate = rate
        self._stopped = Event()
        self._thread = Thread(target=self._run, name=f"chaos-{type(self).__name__}")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        due = time.monotonic()
        while not self._stopped.wait(max(0.0, due - time.monotonic())):
            confirmed = self._submit()
            due = max(due + 1 / self._rate, time.monotonic() - 1) + (0 if confirmed else PAUSE)

    @abstractmethod
    def _submit(self) -> bool:
        """Submit a task. Returns whether Redis has confirmed that it has it."""


class Producer(Submitter):
    """Submits tasks that are acked early and late, at once and with a countdown.

    Arguments:
        rate, queues: as for :class:`Submitter`.
        tenants: each task has the key of one of them; with none, tasks have no keys.
        failing: which share of the tasks fails.
        longest_countdown: in seconds.
    """

    def __init__(
        self,
        app: Celery,
        seed: int,
        rate: float,
        queues: Sequence[str],
        tenants: Sequence[Tenant] = (),
        failing: float = 0.0,
        longest_countdown: float = LONGEST_COUNTDOWN,
    ) -> None:
        super().__init__(seed, rate, queues)
        self._longest_countdown = longest_countdown
        self._app = app
        self._tenants = tenants
        self._failing = failing
        self.submissions: list[Submission] = []

    def _submit(self) -> bool:
        late = self._random.random() < 0.5
        countdown = self._random.uniform(1, self._longest_countdown) if self._random.random() < 0.5 else 0.0
        seconds = self._random.choice(DURATIONS)
        queue = self._random.choice(self._queues)
        tenant = pick(self._random, self._tenants) if self._tenants else None
        fails = bool(self._failing) and self._random.random() < self._failing
        at, name = time.time(), "late" if late else "early"
        task = f"{name}-{len(self.submissions)}"
        try:
            # Without Celery's retries, which after a lost reply would publish the message twice.
            self._app.send_task(
                name,
                [seconds, fails],
                task_id=task,
                countdown=countdown or None,
                queue=queue,
                headers=tenant.headers if tenant else None,
                retry=False,
            )
        except (OperationalError, RedisError, OSError):
            confirmed = False
        else:
            confirmed = True
        key = tenant.key if tenant else None
        self.submissions.append(Submission(task, late, at, countdown, queue, confirmed, key, fails))
        return confirmed
