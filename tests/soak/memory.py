"""Runs very many tasks through one worker of each pool, and looks at its memory meanwhile."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from uuid import uuid4

import psutil
from redis import Redis

from tests.end_to_end.fuzz.wellformed import protocol_2, written
from tools.harness.celery_worker import CeleryWorker
from tools.harness.process import wait_until
from tools.harness.redis_server import RedisServer

#: With the concurrency of each.
POOLS = {"prefork": 2, "solo": 1, "threads": 2, "gevent": 10}

#: Tasks until everything is there that a worker makes once: buffers, caches, Celery's 50,000 revoked ids.
WARM = 100_000

#: MB that the memory of a worker may grow by from then on. A single pointer that is kept of each task is 7 MB
#: with a million of them. An idle interpreter takes and gives back arenas of one MB, in each process.
TOLERANCE = 5.0

#: Samples that are made of the first and of the last memory. The median forgets a moment.
SAMPLES = 9

QUEUE = "celery"

#: Celery's own.
BROKER = "CELERY_BROKER_URL"

#: Messages that are put into the queue together, and that are in there at most.
_PORTION = 1_000
_MOST_READY = 10_000


@dataclass(frozen=True)
class Growth:
    """What a worker has taken, in MB: when it was warm, and in the end."""

    pool: str
    tasks: int
    seconds: float
    warm: float
    end: float

    @property
    def is_flat(self) -> bool:
        return self.end - self.warm < TOLERANCE

    def __str__(self) -> str:
        per_task = (self.end - self.warm) * 1e6 / (self.tasks - WARM)
        rate = self.tasks / self.seconds
        sizes = f"{self.warm:>9.1f} {self.end:>9.1f} {self.end - self.warm:>+7.1f} {per_task:>+8.2f}"
        return f"{self.pool:8} {self.tasks:>9,} {rate:>8,.0f} {sizes}   {'flat' if self.is_flat else 'GROWS'}"


def measure(pools: Sequence[str], number: int, scheme: str) -> bool:
    """Run so many tasks in each of *pools*. Returns whether no worker grows."""
    growths = []
    for pool in pools:
        print(f"{number:,} tasks, {pool}", flush=True)
        growths.append(_of(pool, number, scheme))
    print(scheme)
    print(f"{'pool':8} {'tasks':>9} {'tasks/s':>8} {'MB warm':>9} {'MB end':>9} {'MB more':>7} {'B/task':>8}")
    print("\n".join(map(str, growths)))
    return all(growth.is_flat for growth in growths)


def _of(pool: str, number: int, scheme: str) -> Growth:
    with RedisServer() as server, server.client() as client:
        worker = CeleryWorker(
            "tests.soak.app", pool=pool, concurrency=POOLS[pool], env={BROKER: server.url(scheme)}
        )
        with worker:
            began = time.monotonic()
            _run(client, WARM - SAMPLES * _PORTION)
            warm = _memory(client, worker)
            _run(client, number - WARM - SAMPLES * _PORTION)
            end = _memory(client, worker)
            return Growth(pool, number, time.monotonic() - began, warm, end)


def _memory(client: Redis, worker: CeleryWorker) -> float:
    """What the worker and its children take, in MB, while it runs some tasks more."""
    samples = []
    for _ in range(SAMPLES):
        _run(client, _PORTION)
        leader = psutil.Process(worker.pid)
        processes = [leader, *leader.children(recursive=True)]
        samples.append(sum(process.memory_info().rss for process in processes) / 1e6)
    return statistics.median(samples)


def _run(client: Redis, number: int) -> None:
    """Have the worker run so many tasks."""
    for first in range(0, number, _PORTION):
        wait_until(lambda: client.llen(QUEUE) < _MOST_READY, 60, "room in the queue")
        # As a foreign producer does it: one that is slower than the worker would be measured, too.
        client.lpush(QUEUE, *(_message() for _ in range(min(_PORTION, number - first))))
    wait_until(lambda: not client.llen(QUEUE), 60, "an empty queue")


def _message() -> bytes:
    id = str(uuid4())
    return written(id, protocol_2(id, "nothing"))
