"""Kills the connections of a busy worker of each pool again and again, and looks at its prefetch count."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import cycle
from threading import Event, Thread
from typing import Any

from celery import Celery
from kombu.exceptions import OperationalError
from redis import Redis
from redis.exceptions import RedisError

from tools.harness.celery_worker import CeleryWorker
from tools.harness.process import wait_until
from tools.harness.redis_server import RedisServer

#: With the concurrency of each.
POOLS = {"prefork": 4, "solo": 1, "threads": 8, "gevent": 20, "eventlet": 20}

#: Celery's own.
BROKER = "CELERY_BROKER_URL"

#: Seconds between two kills of all connections.
KILL_EVERY = 45.0

#: Seconds from one task that is published to the next.
PUBLISH_EVERY = 0.02

#: Seconds until a worker has done all that was published.
PATIENCE = 120.0


@dataclass
class Counts:
    """The prefetch counts of one worker: when it was new, while it was busy, and in the end."""

    pool: str
    first: int
    busy: list[int] = field(default_factory=list)
    kills: int = 0
    last: int = -1

    @property
    def has_drifted(self) -> bool:
        return self.last != self.first

    def __str__(self) -> str:
        span = f"{min(self.busy)} to {max(self.busy)}" if self.busy else "-"
        verdict = "DRIFTS" if self.has_drifted else "stays"
        return f"{self.pool:8} {self.kills:>5} {self.first:>5} {span:>12} {self.last:>5}   {verdict}"


def watch(pools: Sequence[str], seconds: float, scheme: str, reduction: bool) -> bool:
    """Keep a worker of each of *pools* busy for so many seconds. Returns whether no prefetch count drifts.

    Arguments:
        reduction: ``worker_enable_prefetch_count_reduction`` of Celery.
    """
    every = []
    for pool in pools:
        print(f"{seconds:g} s, {pool}", flush=True)
        every.append(_of(pool, seconds, scheme, reduction))
    print(f"{scheme}, worker_enable_prefetch_count_reduction = {reduction}")
    print(f"{'pool':8} {'kills':>5} {'first':>5} {'busy':>12} {'last':>5}")
    print("\n".join(map(str, every)))
    return not any(counts.has_drifted for counts in every)


def _of(pool: str, seconds: float, scheme: str, reduction: bool) -> Counts:
    with RedisServer() as server, server.client() as client:
        url = server.url(scheme)
        env = {BROKER: url, "REDUCTION": str(int(reduction))}
        worker = CeleryWorker("tests.soak.prefetch_app", pool=pool, concurrency=POOLS[pool], env=env)
        with worker, Celery(broker=url, set_as_current=False) as app:
            counts = Counts(pool, _prefetch_count(app))
            is_end = Event()
            publisher = Thread(target=_publish, args=(app, is_end))
            publisher.start()
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                if is_end.wait(min(KILL_EVERY, max(0.0, end - time.monotonic()))):
                    break
                counts.busy.append(_prefetch_count(app))
                client.client_kill_filter(_type="normal", skipme=True)
                counts.kills += 1
            is_end.set()
            publisher.join()
            wait_until(lambda: _is_done(client), PATIENCE, "nothing to do")
            counts.last = _prefetch_count(app)
            return counts


def _publish(app: Celery, is_end: Event) -> None:
    kinds = cycle(
        (
            lambda: app.send_task("slow"),
            lambda: app.send_task("slow", countdown=2),
            lambda: app.send_task("flaky"),
            lambda: app.send_task("limited"),
        )
    )
    while not is_end.wait(PUBLISH_EVERY):
        # Its connections are killed, too.
        with suppress(OperationalError, RedisError, OSError):
            next(kinds)()


def _is_done(client: Redis) -> bool:
    waiting = client.llen("celery") + client.zcard("redisdelay:{celery}:schedule")
    held = sum(client.hlen(key) for key in client.scan_iter("redisdelay:{celery}:unacked:*"))
    # The last one is the hash of redis://.
    return waiting + held + client.hlen("unacked") == 0


def _prefetch_count(app: Celery) -> int:
    """What the worker says, asked until it answers."""
    answers: list[dict[str, Any]] = []

    def has_answered() -> bool:
        with suppress(OperationalError, RedisError, OSError):
            answers.extend((app.control.inspect(timeout=2).stats() or {}).values())
        return bool(answers)

    wait_until(has_answered, PATIENCE, "an answer of the worker")
    return int(answers[0]["prefetch_count"])
