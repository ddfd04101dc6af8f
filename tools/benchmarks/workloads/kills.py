"""Workers are killed again and again: how many tasks that were acked early begin twice."""

from __future__ import annotations

import random
import time
from collections import Counter

from tools.benchmarks.app import begun
from tools.benchmarks.celery_site import PATIENCE, open_site
from tools.benchmarks.peers import OURS
from tools.benchmarks.schedule import keys
from tools.benchmarks.site import Site
from tools.benchmarks.workload import Case, Measured, Sizes, Workload
from tools.harness.process import wait_until

#: Pool and concurrency.
POOLS = (("prefork", 2), ("solo", 1), ("threads", 8), ("gevent", 20), ("eventlet", 20))

#: Seconds that a task takes. Nobody knows at which moment of it a worker is killed.
_SECONDS = 0.02


def measure(site: Site, sizes: Sizes) -> Measured:
    pool, concurrency = POOLS[sizes["pool"]]
    with open_site(site) as celery, site.redis() as redis:
        sent = 0

        def is_over() -> bool:
            # An early ack loses what has not reached its first line, so not all begin.
            held = sum(redis.hlen(key) for key in redis.keys(keys(site.queue).unacked("*")))
            return not held and not redis.llen(site.queue)

        for _ in range(sizes["kills"]):
            # So many that they do not all run before the kill.
            count = sizes["tasks"] * concurrency
            celery.send(*[("begin", (sent + number, _SECONDS)) for number in range(count)])
            sent += count
            with celery.worker(pool, concurrency, sizes["prefetch"]):
                before = redis.llen(begun(site))
                wait_until(lambda before=before: redis.llen(begun(site)) > before + 5, PATIENCE, "tasks")  # type: ignore[misc]
                time.sleep(random.uniform(0, 5 * _SECONDS))
        with celery.worker(pool, concurrency):
            wait_until(is_over, PATIENCE, "that the rest begins")
        times = Counter(redis.lrange(begun(site), 0, -1))
    return Measured({"begun twice": sum(count - 1 for count in times.values()), "begun": len(times)})


WORKLOAD = Workload(
    name="kills",
    about="a worker is killed (SIGKILL) 20 times while it runs tasks of 20 ms that were acked early",
    cases=[
        Case(f"{pool} {concurrency}", OURS, {"pool": number})
        for number, (pool, concurrency) in enumerate(POOLS)
    ],
    units={"begun twice": "tasks", "begun": "tasks"},
    measure=measure,
    sizes={"kills": 20, "tasks": 30, "prefetch": 4},
    quick_sizes=None,
    rounds=5,
)
