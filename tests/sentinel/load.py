"""Producers that publish all the time, and what became of each task."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from threading import Thread
from typing import TYPE_CHECKING

from celery import Celery
from kombu.exceptions import OperationalError

from kombu_redisdelay import NotReplicatedError
from tests.end_to_end.installation import Installation
from tools.harness.process import wait_until

if TYPE_CHECKING:
    # In `typing` from Python 3.11 on.
    from typing_extensions import Self

#: Seconds between two rounds of a producer, in each of which every queue gets a task.
PAUSE = 0.02

#: Every so many tasks has a countdown of a second.
EVERY_DELAYED = 3


class Load:
    """Publishes tasks named ``work`` in a thread, from entering the ``with`` block to leaving it.

    Attributes:
        accepted: the labels of the tasks whose publishing was confirmed, in order.
        refused: the names of the errors of the others, and how often each came.
    """

    def __init__(self, producer: Celery, queues: Sequence[str], pause: float = PAUSE) -> None:
        self.accepted: list[str] = []
        self.refused: Counter[str] = Counter()
        self._producer = producer
        self._queues = queues
        self._pause = pause
        self._is_over = False
        self._thread = Thread(target=self._publish, name="load", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._is_over = True
        self._thread.join()

    def _publish(self) -> None:
        number = 0
        while not self._is_over:
            number += 1
            for queue in self._queues:
                label = f"{queue} {number}"
                countdown = None if number % EVERY_DELAYED else 1
                try:
                    self._producer.send_task("work", [label], queue=queue, countdown=countdown)
                except (OperationalError, NotReplicatedError) as exc:
                    self.refused[type(exc).__name__] += 1
                else:
                    self.accepted.append(label)
            time.sleep(self._pause)


def wait_all_work(site: Installation, load: Load, queues: Sequence[str], seconds: float, when: str) -> None:
    """Wait until the worker of each of *queues* has done a task that was published from now on.

    Raises:
        TimeoutError: after so many *seconds*. It says who works, and why publishing was refused.
    """
    before = len(load.accepted)

    def done() -> set[str]:
        published = load.accepted[before:]
        return {task.split()[0] for task in set(published).intersection(site.ledger.ended())}

    try:
        wait_until(lambda: done() == set(queues), seconds, when)
    except TimeoutError as error:
        raise TimeoutError(f"{error}: only {done()} work, {load.refused}") from None
