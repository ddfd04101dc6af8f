"""Limits on the queues of a run, and an operator who pauses and resumes them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import cycle
from threading import Event, Thread
from typing import TYPE_CHECKING

from celery import Celery
from kombu.exceptions import OperationalError
from redis.exceptions import RedisError

from kombu_redisdelay import Queues

if TYPE_CHECKING:
    # In `typing` from Python 3.11 on.
    from typing_extensions import Self

#: Seconds from one pause to the next, and how long each lasts.
PAUSE_INTERVAL = 1.5
PAUSED_FOR = 1.0
#: Before the operator tries again: Redis may be starting.
RETRY_AFTER = 0.1


@dataclass(frozen=True)
class Limit:
    """What is allowed for a queue; ``None`` is no limit.

    Attributes:
        rate: messages a second.
    """

    rate: float | None = None
    burst: int | None = None
    concurrency: int | None = None


def limits(queues: Sequence[str], rate: float) -> dict[str, Limit]:
    """For each queue a limit that binds if *rate* tasks a second go to all of them: by rate, by concurrency,
    by both, and so on."""
    allowed = round(0.8 * rate / len(queues), 2)
    kinds = (Limit(allowed, 5), Limit(concurrency=3), Limit(allowed, 5, concurrency=4))
    return dict(zip(queues, cycle(kinds), strict=False))


class Operator:
    """Limits the queues, and pauses one after the other, from the ``with`` block's beginning to
    :meth:`calm_down`.

    Arguments:
        app: of a producer.
    """

    def __init__(self, app: Celery, limits: Mapping[str, Limit]) -> None:
        self._app = app
        self._limits = limits
        self._stopped = Event()
        self._thread = Thread(target=self._run, name="chaos-operator")
        self.pauses = 0

    def calm_down(self) -> None:
        """Pause no queue any more. All are resumed when this returns."""
        self._stopped.set()
        if self._limits:
            self._thread.join()

    def clear(self) -> None:
        """End all limits."""
        with Queues(self._app) as queues:
            for queue in self._limits:
                queues.limit(queue, rate=None, concurrency=None)

    def __enter__(self) -> Self:
        with Queues(self._app) as queues:
            for queue, limit in self._limits.items():
                queues.limit(queue, **asdict(limit))
        if self._limits:
            self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.calm_down()

    def _run(self) -> None:
        for queue in cycle(self._limits):
            if self._stopped.wait(PAUSE_INTERVAL):
                return
            self._until_it_works(Queues.pause, queue)
            self.pauses += 1
            self._stopped.wait(PAUSED_FOR)
            self._until_it_works(Queues.resume, queue)

    def _until_it_works(self, action: Callable[[Queues, str], None], queue: str) -> None:
        while True:
            try:
                with Queues(self._app) as queues:
                    action(queues, queue)
                return
            except (OperationalError, RedisError, OSError):
                time.sleep(RETRY_AFTER)
