"""Every pool of Celery, with early and late acks and three prefetch multipliers: stock and ours in turn."""

from __future__ import annotations

import random
import time
from dataclasses import replace
from typing import Any

from kombu_redisdelay import Queues
from tools.benchmarks.app import counted
from tools.benchmarks.celery_site import PATIENCE, CelerySite, open_site
from tools.benchmarks.peers import OURS, REDIS
from tools.benchmarks.results import percentile
from tools.benchmarks.site import Site
from tools.benchmarks.workload import Case, Measured, Sizes, Workload

#: Pool and concurrency.
POOLS = (
    ("prefork", 2),
    ("solo", 1),
    ("threads", 1),
    ("threads", 8),
    ("gevent", 1),
    ("gevent", 50),
    ("eventlet", 50),
)

PREFETCH = (1, 4, 0)

#: Those that run more than two tasks at a time.
LIMITED = (("threads", 8), ("gevent", 50), ("eventlet", 50))

#: A queue is limited to so many tasks at a time.
LIMIT = 2

#: A task that takes as long says that it ran then.
_SECONDS = 0.005

#: Lone tasks are sent for so many seconds at most: with some settings, each waits for two.
_LONE_FOR = 5.0


def name(pool: tuple[str, int], late: int, prefetch: int) -> str:
    """Of a case."""
    return f"{pool[0]} {pool[1]}, {'late' if late else 'early'}, prefetch {prefetch}"


def measure(site: Site, sizes: Sizes) -> Measured:
    stock = replace(
        site,
        peer=REDIS.name,
        url=REDIS.scheme + site.url.removeprefix(OURS.scheme),
        queue=f"{site.queue}-stock",
    )
    ours, theirs = _measure(site, sizes), _measure(stock, sizes)
    return Measured({**ours, **{f"{figure}, {REDIS.name}": value for figure, value in theirs.items()}})


def _measure(site: Site, sizes: Sizes) -> dict[str, float]:
    pool, concurrency = POOLS[sizes["pool"]]
    worker: dict[str, Any] = {
        "concurrency": concurrency,
        "prefetch_multiplier": sizes["prefetch"],
        "task_acks_late": bool(sizes["late"]),
    }
    with open_site(site) as celery, celery.worker(pool, **worker):
        lone = _lone_ms(celery, sizes["pings"])
        return {
            "rate": _rate(site, celery, sizes),
            "p50": percentile(lone, 50),
            "p90": percentile(lone, 90),
        }


def _lone_ms(celery: CelerySite, count: int) -> list[float]:
    took: list[float] = []
    for _ in range(3):
        celery.send(("mark", ("warm",)))
        celery.postbox.wait("warm", PATIENCE)
    until = time.monotonic() + _LONE_FOR
    while len(took) < count and time.monotonic() < until:
        # For the worker to be idle again.
        time.sleep(random.uniform(0.01, 0.03))
        sent = time.monotonic()
        celery.send(("mark", ("pong",)))
        took.append((celery.postbox.wait("pong", PATIENCE) - sent) * 1000)
    return took


def _rate(site: Site, celery: CelerySite, sizes: Sizes, seconds: float = 0) -> float:
    """Tasks a second, of those that wait when the last one was published."""
    with site.redis() as redis:

        def ran() -> int:
            return int(redis.get(counted(site)) or 0)

        all_ = ran() + sizes["tasks"]
        celery.send(*[("count", (seconds,))] * sizes["tasks"])
        before, began = ran(), time.monotonic()
        until = began + sizes["ms"] / 1000
        while ran() < all_ and time.monotonic() < until:
            time.sleep(0.002)
        return (ran() - before) / (time.monotonic() - began)


def limited(site: Site, sizes: Sizes) -> Measured:
    pool, concurrency = LIMITED[sizes["pool"]]
    figures = {}
    for figure, slots in {"two slots": LIMIT, "limited": concurrency}.items():
        mine = replace(site, queue=f"{site.queue}-{slots}")
        with open_site(mine) as celery, Queues(celery.app) as queues:
            if slots != LIMIT:
                queues.limit(mine.queue, concurrency=LIMIT)
            with celery.worker(pool, slots, 1, task_acks_late=True):
                figures[figure] = _rate(mine, celery, sizes, _SECONDS)
    return Measured({**figures, "share": figures["limited"] / figures["two slots"]})


_UNITS = {"rate": "tasks/s", "p50": "ms", "p90": "ms"}

WORKLOADS = (
    Workload(
        name="pools",
        about="each pool, early and late acks, three prefetch multipliers: tasks of one INCR, and lone ones",
        cases=[
            Case(name(pool, late, prefetch), OURS, {"pool": number, "late": late, "prefetch": prefetch})
            for number, pool in enumerate(POOLS)
            for late in (0, 1)
            for prefetch in PREFETCH
        ],
        units={f"{figure}{of}": unit for figure, unit in _UNITS.items() for of in ("", f", {REDIS.name}")},
        measure=measure,
        sizes={"tasks": 4000, "ms": 3000, "pings": 25},
        quick_sizes=None,
        rounds=2,
    ),
    Workload(
        name="pools-limited",
        about=f"late acks, a queue that is limited to {LIMIT} tasks of 5 ms at a time; beside {LIMIT} slots",
        cases=[
            Case(f"{pool} {concurrency}", OURS, {"pool": number})
            for number, (pool, concurrency) in enumerate(LIMITED)
        ],
        units={"limited": "tasks/s", "two slots": "tasks/s", "share": "of two slots"},
        measure=limited,
        sizes={"tasks": 2000, "ms": 4000},
        quick_sizes=None,
        rounds=3,
    ),
)
