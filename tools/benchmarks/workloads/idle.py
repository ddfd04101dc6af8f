"""What consumers with nothing to do cost Redis."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from time import monotonic

from kombu.connection import Connection
from kombu.entity import Queue

from tools.benchmarks.peers import OURS, REDIS, REDIS_PLUS
from tools.benchmarks.redis_info import cpu_seconds
from tools.benchmarks.site import Drain, Site
from tools.benchmarks.workload import Measured, Sizes, Workload, cases


def server_cpu(site: Site, sizes: Sizes, queues: Sequence[Queue] = ()) -> float:
    """Per cent of a core that Redis uses for so many consumers of empty queues."""
    with site.connect() as connection, site.redis() as redis:
        site.declare(connection)
        # A channel is what has connections to Redis; one process drains them all.
        drains = [Drain(site, connection, prefetch=16, queues=queues) for _ in range(sizes["consumers"])]
        for drain in drains:
            drain.consumer.consume()
        drain_for(connection, sizes["warm ms"] / 1000)
        before, began = cpu_seconds(redis), monotonic()
        drain_for(connection, sizes["ms"] / 1000)
        return (cpu_seconds(redis) - before) / (monotonic() - began) * 100


def measure(site: Site, sizes: Sizes) -> Measured:
    return Measured({"server CPU": server_cpu(site, sizes)})


def drain_for(connection: Connection, seconds: float) -> None:
    """Drain events for so long."""
    deadline = monotonic() + seconds
    while (left := deadline - monotonic()) > 0:
        with suppress(TimeoutError):
            connection.drain_events(timeout=left)


WORKLOAD = Workload(
    name="idle",
    about="100 consumers of an empty queue",
    cases=cases(OURS, REDIS, REDIS_PLUS),
    units={"server CPU": "% of a core"},
    measure=measure,
    sizes={"consumers": 100, "warm ms": 1500, "ms": 5000},
    quick_sizes=None,
    rounds=1,
)
