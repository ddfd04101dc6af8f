"""From `apply_async` to the running task, with a worker that has nothing else to do."""

from __future__ import annotations

import random
import time

from tools.benchmarks.celery_site import PATIENCE, open_site
from tools.benchmarks.peers import OURS, RABBITMQ, REDIS, REDIS_PLUS
from tools.benchmarks.results import percentile
from tools.benchmarks.site import Site
from tools.benchmarks.workload import Measured, Sizes, Turns, Workload, cases


def measure(site: Site, sizes: Sizes) -> Turns:
    took = []
    with open_site(site) as celery, celery.worker("solo"):

        def ping() -> float:
            # For the worker to be idle again.
            time.sleep(random.uniform(0.003, 0.008))
            sent = time.monotonic()
            celery.send(("mark", ("pong",)))
            return float(celery.postbox.wait("pong", PATIENCE) - sent) * 1000

        for _ in range(sizes["warm"]):
            ping()
        for _ in range(sizes["turns"]):
            yield
            took += [ping() for _ in range(sizes["pings"])]
    return Measured({"p50": percentile(took, 50), "p99": percentile(took, 99)}, took)


WORKLOAD = Workload(
    name="ping-pong",
    about="one task at a time for an idle Celery worker (solo): from apply_async to the start of the task",
    cases=cases(OURS, REDIS, REDIS_PLUS, RABBITMQ),
    units={"p50": "ms", "p99": "ms"},
    measure=measure,
    sizes={"warm": 10, "turns": 40, "pings": 5},
    quick_sizes={"warm": 10, "turns": 15, "pings": 5},
    rounds=3,
    in_turns=True,
)
