"""Clusters of their own: how the work is shared, and what many queues cost a consumer that waits."""

from __future__ import annotations

from collections.abc import Callable
from resource import RUSAGE_SELF, getrusage
from time import monotonic
from typing import Any

from kombu.connection import Connection
from kombu.entity import Queue

from tools.benchmarks.peers import OURS
from tools.benchmarks.redis_info import cpu_seconds
from tools.benchmarks.site import BODY, Drain, Site
from tools.benchmarks.workload import Case, Measured, Sizes, Workload
from tools.benchmarks.workloads.idle import drain_for
from tools.harness.cluster import Cluster

PREFETCH = 16


def share(site: Site, sizes: Sizes) -> Measured:
    queues = [Queue(f"{site.queue}-{number}") for number in range(sizes["queues"])]
    count, warm = sizes["messages"], sizes["warm"]
    with Cluster(sizes["primaries"]) as cluster, Connection(cluster.url()) as connection:
        servers = [node.client() for node in cluster.nodes]
        drain = Drain(site, connection, prefetch=PREFETCH, queues=queues)
        producer = connection.Producer()

        def publish() -> None:
            for number in range(count + warm):
                producer.publish(BODY, routing_key=queues[number % len(queues)].name)

        published = _cpu_of(servers, publish)
        with drain.consumer:
            drain.until(warm)
            taken = _cpu_of(servers, lambda: drain.until(warm + count))
        drain.channel.close()
    shares = [used / sum(taken) for used in taken]
    return Measured(
        {
            "published": sum(published) / (count + warm) * 1e6,
            "taken": sum(taken) / count * 1e6,
            "least share": min(shares),
            "largest share": max(shares),
        }
    )


def idle(site: Site, sizes: Sizes) -> Measured:
    queues = [Queue(f"{site.queue}-{number}") for number in range(sizes["queues"])]
    with Cluster(sizes["primaries"]) as cluster:
        servers = [node.client() for node in cluster.nodes]
        nobody = _connections(servers)
        with Connection(cluster.url()) as connection:
            drain = Drain(site, connection, prefetch=PREFETCH, queues=queues)
            with drain.consumer:
                drain_for(connection, sizes["warm ms"] / 1000)
                began, own = monotonic(), _own_cpu_seconds()
                used = _cpu_of(servers, lambda: drain_for(connection, sizes["ms"] / 1000))
                seconds, own = monotonic() - began, _own_cpu_seconds() - own
                connections = _connections(servers) - nobody
            drain.channel.close()
    return Measured(
        {
            "connections": connections,
            "consumer CPU": own / seconds * 100,
            "server CPU": sum(used) / seconds * 100,
        }
    )


def _cpu_of(servers: list[Any], work: Callable[[], None]) -> list[float]:
    """Seconds of CPU time that each of the servers uses for *work*."""
    before = [cpu_seconds(server) for server in servers]
    work()
    return [cpu_seconds(server) - used for server, used in zip(servers, before, strict=True)]


def _own_cpu_seconds() -> float:
    used = getrusage(RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _connections(servers: list[Any]) -> int:
    return sum(int(server.info("clients")["connected_clients"]) for server in servers)


def _case(count: int, one: str, many: str) -> str:
    return f"{count} {one if count == 1 else many}"


WORKLOADS = (
    Workload(
        name="cluster-share",
        about="one producer and one consumer of 100 queues of a cluster",
        cases=[Case(_case(count, "primary", "primaries"), OURS, {"primaries": count}) for count in (1, 2, 3)],
        units={
            "published": "us of Redis CPU/message",
            "taken": "us of Redis CPU/message",
            "least share": "of that CPU",
            "largest share": "of that CPU",
        },
        measure=share,
        sizes={"queues": 100, "messages": 5000, "warm": 1000},
        quick_sizes=None,
        rounds=3,
    ),
    Workload(
        name="cluster-idle",
        about="a consumer of empty queues of a cluster of three primaries",
        cases=[Case(_case(count, "queue", "queues"), OURS, {"queues": count}) for count in (1, 10, 100)],
        units={"connections": "", "consumer CPU": "% of a core", "server CPU": "% of a core"},
        measure=idle,
        sizes={"primaries": 3, "warm ms": 3000, "ms": 10_000},
        quick_sizes=None,
        rounds=1,
    ),
)
