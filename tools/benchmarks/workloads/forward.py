"""`celery delayed forward`: how late it is, and how fast, for a queue that nobody consumes from."""

from __future__ import annotations

import os
import random
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from kombu.messaging import Producer
from redis import Redis

from tools.benchmarks.app import variables
from tools.benchmarks.celery_site import PATIENCE, ROOT
from tools.benchmarks.peers import OURS
from tools.benchmarks.results import percentile
from tools.benchmarks.schedule import keys, multiply, now_ms
from tools.benchmarks.site import BODY, Site
from tools.benchmarks.workload import Measured, Sizes, Workload, cases
from tools.harness.process import ChildProcess, wait_until

#: Until the first message is due: enough to schedule them all, and for the forwarder to be idle again.
_AHEAD_MS = 1500


class Forwarder(ChildProcess):
    """The command, for the queue of *site*."""

    def __init__(self, site: Site) -> None:
        super().__init__()
        self._site = site

    def command(self) -> Sequence[str]:
        return [sys.executable, "-m", "celery", "-A", "tools.benchmarks.app", "delayed", "forward"]

    def environment(self) -> Mapping[str, str]:
        # No task runs, so nothing is posted.
        return {**os.environ, **variables(self._site, postbox="", settings={})}

    def working_directory(self) -> Path:
        return ROOT

    def is_ready(self) -> bool:
        """Whether it waits for a token of the queue."""
        with self._site.redis() as redis:
            return bool(redis.info("clients")["blocked_clients"])


def lateness(site: Site, redis: Redis, producer: Producer, count: int, gap_ms: int) -> list[float]:
    """By how many ms each of *count* messages was late that were due one after the other."""
    due_ms = float(_AHEAD_MS)
    for _ in range(count):
        # From the end of the last one's way on, the forwarder is idle.
        due_ms += random.uniform(0.5, 1.5) * gap_ms
        producer.publish(BODY, routing_key=site.queue, headers={"x-delay": due_ms})
    late = []
    due_times = dict(redis.zscan_iter(keys(site.queue).schedule))
    for due in sorted(due_times.values()):
        if redis.blpop(site.queue, PATIENCE) is None:
            raise TimeoutError("a message was due, and is not ready")
        late.append(time.time() * 1000 - due)
    return late


def rate(site: Site, redis: Redis, producer: Producer, count: int) -> float:
    """Messages a second, from the time at which *count* of them were due until all of them were ready."""
    producer.publish(BODY, routing_key=site.queue, headers={"x-delay": _AHEAD_MS * 1000})
    # Copying them takes about a second for each 100,000.
    due_ms = now_ms(redis) + _AHEAD_MS + count // 50
    multiply(redis, site.queue, count, due_ms, step_ms=0)
    if now_ms(redis) >= due_ms:
        raise RuntimeError("the messages were due before all of them were scheduled")
    wait_until(lambda: redis.llen(site.queue) == count, PATIENCE, "that all messages are ready")
    return count / (time.time() - due_ms / 1000)


def measure(site: Site, sizes: Sizes) -> Measured:
    with site.connect() as connection, site.redis() as redis, Forwarder(site):
        site.declare(connection)
        producer = Producer(connection.default_channel)
        late = lateness(site, redis, producer, sizes["singles"], sizes["gap ms"])
        figures = {"rate": rate(site, redis, producer, sizes["messages"])}
    return Measured({**figures, "p50": percentile(late, 50), "p99": percentile(late, 99)}, late)


WORKLOAD = Workload(
    name="forward",
    about="`celery delayed forward`, without consumers: messages due in the same instant, and one by one",
    cases=cases(OURS),
    units={"rate": "messages/s", "p50": "ms", "p99": "ms"},
    measure=measure,
    sizes={"messages": 100_000, "singles": 300, "gap ms": 15},
    quick_sizes=None,
    rounds=1,
)
