"""By how much countdown tasks start too late on an idle Celery worker."""

from __future__ import annotations

import random

from kombu.messaging import Producer

from tools.benchmarks.celery_site import PATIENCE, open_site
from tools.benchmarks.peers import OURS, REDIS, REDIS_PLUS
from tools.benchmarks.results import percentile
from tools.benchmarks.schedule import multiply, now_ms
from tools.benchmarks.site import BODY, Site
from tools.benchmarks.workload import Case, Measured, Sizes, Workload, cases

#: Our transport while a million other messages of the queue wait.
CROWDED = Case(f"{OURS.name}, 1,000,000 scheduled", OURS, {"scheduled": 1_000_000})

_DAY_MS = 86_400_000


def schedule_far_ahead(site: Site, count: int) -> None:
    """Have *count* messages of ours wait in the queue, due from tomorrow on, one a second."""
    with site.connect() as connection, site.redis() as redis:
        queue = site.declare(connection)
        Producer(connection.default_channel).publish(
            BODY, routing_key=queue.name, headers={"x-delay": _DAY_MS}
        )
        multiply(redis, site.queue, count, now_ms(redis) + _DAY_MS, step_ms=1000)


def measure(site: Site, sizes: Sizes) -> Measured:
    if sizes["scheduled"]:
        schedule_far_ahead(site, sizes["scheduled"])
    chance = random.Random(4)
    with open_site(site) as celery, celery.worker("solo"):
        for _ in range(sizes["tasks"]):
            celery.send(("late", ()), countdown=chance.uniform(sizes["first ms"], sizes["last ms"]) / 1000)
        late = [celery.postbox.wait("late", PATIENCE) * 1000 for _ in range(sizes["tasks"])]
    return Measured({"p50": percentile(late, 50), "p99": percentile(late, 99)}, late)


WORKLOAD = Workload(
    name="lateness",
    about="countdown tasks on an idle Celery worker (solo): from the eta to the start of the task",
    cases=(*cases(OURS, REDIS), CROWDED, *cases(REDIS_PLUS)),
    units={"p50": "ms", "p99": "ms"},
    measure=measure,
    sizes={"tasks": 320, "first ms": 1500, "last ms": 4500, "scheduled": 0},
    quick_sizes=None,
    rounds=2,
)
