"""One consumer of many queues: how fast it takes, and how long a lone message waits."""

from __future__ import annotations

import random
from contextlib import suppress
from statistics import median
from time import perf_counter

from kombu.entity import Queue

from tools.benchmarks.peers import OURS, REDIS, REDIS_PLUS, Peer
from tools.benchmarks.redis_info import cpu_seconds
from tools.benchmarks.site import BODY, Drain, Site
from tools.benchmarks.workload import Case, Measured, Sizes, Workload
from tools.benchmarks.workloads.burst import longest_script_ms

COUNTS = (1, 10, 100, 500, 1000)

PREFETCH = 16

#: Seconds after which a consumer that got nothing waits at the server.
_SETTLED = 0.01


def case(peer: Peer, queues: int) -> str:
    """The name of the case."""
    return f"{peer.name}, {queues:,} queue{'s' if queues > 1 else ''}"


def measure(site: Site, sizes: Sizes) -> Measured:
    names = [f"{site.queue}-{number}" for number in range(sizes["queues"])]
    count, warm = site.scaled(sizes["messages"]), sizes["warm"]
    site.fill(warm + count, names)
    with site.connect() as connection, site.connect() as publishing, site.redis() as redis:
        redis.config_set("slowlog-log-slower-than", 500)
        drain = Drain(site, connection, prefetch=PREFETCH, queues=[Queue(name) for name in names])
        with drain.consumer:
            drain.until(warm)
            redis.slowlog_reset()
            cpu, began = cpu_seconds(redis), perf_counter()
            drain.until(warm + count)
            seconds, cpu = perf_counter() - began, cpu_seconds(redis) - cpu
            longest = longest_script_ms(redis)

            producer = publishing.Producer()
            waited = []
            for name in random.choices(names, k=sizes["alone"]):
                with suppress(TimeoutError):
                    connection.drain_events(timeout=_SETTLED)
                published = perf_counter()
                producer.publish(BODY, routing_key=name)
                drain.until(drain.seen + 1)
                waited.append((perf_counter() - published) * 1000)
        drain.channel.close()
    figures = {"rate": count / seconds, "server CPU": cpu / count * 1e6, "lone message": median(waited)}
    if site.transport is OURS:
        figures["longest script"] = longest
    return Measured(figures)


WORKLOAD = Workload(
    name="queues",
    about=f"one consumer of many queues, prefetch {PREFETCH}; then one message at a time, in any of them",
    cases=[
        Case(case(peer, queues), peer, {"queues": queues})
        for queues in COUNTS
        for peer in (OURS, REDIS, REDIS_PLUS)
        if peer is not REDIS_PLUS or queues in (1, 500)
    ],
    units={
        "rate": "messages/s",
        "server CPU": "us/message",
        "lone message": "ms",
        "longest script": "ms",
    },
    measure=measure,
    sizes={"messages": 2000, "warm": 500, "alone": 200},
    quick_sizes=None,
    rounds=2,
    apart=True,
)
