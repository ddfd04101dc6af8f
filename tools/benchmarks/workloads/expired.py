"""A Celery worker discards tasks that have expired, as fast as it can."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

from tools.benchmarks.celery_site import PATIENCE, open_site
from tools.benchmarks.peers import OURS, REDIS
from tools.benchmarks.site import Site
from tools.benchmarks.workload import Measured, Sizes, Workload, cases


def measure(site: Site, sizes: Sizes) -> Measured:
    expires = datetime.now(timezone.utc) - timedelta(hours=1)
    results = f"redis{site.url[site.url.index('://') :]}"
    with open_site(site) as celery:
        celery.send(("mark", ("begin",)))
        celery.send(*[("no_op", ())] * sizes["tasks"], expires=expires)
        celery.send(("mark", ("end",)))
        with celery.worker("prefork", task_ignore_result=False, result_backend=results):
            began = celery.postbox.wait("begin", PATIENCE)
            ended = celery.postbox.wait("end", PATIENCE)
    return Measured({"rate": sizes["tasks"] / (ended - began)})


WORKLOAD = Workload(
    name="expired",
    about="a Celery worker (prefork) discards tasks that have expired, and stores REVOKED in Redis",
    cases=cases(OURS, REDIS),
    units={"rate": "tasks/s"},
    measure=measure,
    sizes={"tasks": 5000},
    quick_sizes=None,
    rounds=3,
)
