"""What Celery tells of a broker with several URLs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from celery.app.utils import bugreport

from tests.end_to_end.installation import Installation
from tools.harness.cluster import Cluster
from tools.harness.sentinel import MASTER, PASSWORD, SentinelSite

SERVERS: dict[str, Callable[[], SentinelSite | Cluster]] = {
    "redisdelay-sentinel": lambda: SentinelSite(replicas=0),
    "redisdelay-cluster": lambda: Cluster(requirepass=PASSWORD),
}


@pytest.mark.parametrize("scheme", SERVERS)
def test_the_addresses_and_no_password(scheme: str, tmp_path: Path) -> None:
    options = {"master_name": MASTER} if scheme == "redisdelay-sentinel" else {}
    with (
        SERVERS[scheme]() as server,
        Installation(server, tmp_path, broker_transport_options=options) as site,
    ):
        worker = site.worker(scheme=scheme)
        app = site.producer(scheme)
        # As `celery inspect stats`, which gets an error otherwise, as a text.
        [stats] = app.control.inspect(timeout=20, limit=1).stats().values()
        assert addresses(stats["broker"]["alternates"]) == addresses(server.url(scheme).split(";"))
        report = bugreport(app)
        assert scheme in report
        for told in (json.dumps(stats), report, worker.log(), repr(app.connection_for_write())):
            assert PASSWORD not in told


def addresses(urls: Any) -> list[str]:
    return [url.rpartition("//")[2].rpartition("@")[2].partition("/")[0] for url in urls]
