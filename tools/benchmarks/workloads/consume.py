"""Consume with a prefetch count of 16, and ack each message in its callback.

Beside it the most that can be had if each ack is with the server when its callback returns.
"""

from __future__ import annotations

from time import perf_counter

from tools.benchmarks.limits import LIMIT, consume_rate
from tools.benchmarks.peers import MEMORY, OURS, RABBITMQ, REDIS, REDIS_PLUS
from tools.benchmarks.redis_info import cpu_seconds
from tools.benchmarks.site import Drain, Site
from tools.benchmarks.workload import Measured, Sizes, Workload, cases

PREFETCH = 16


def measure(site: Site, sizes: Sizes) -> Measured:
    warm, count = sizes["warm"], site.scaled(sizes["messages"])
    with site.connect() as connection, site.redis() as redis:
        site.fill(warm + count)
        figures = {}
        if site.transport is OURS:
            figures[LIMIT] = consume_rate(site, count, batch=PREFETCH, acks=True)
        drain = Drain(site, connection, prefetch=PREFETCH)
        with drain.consumer:
            drain.until(warm)
            cpu = cpu_seconds(redis)
            began = perf_counter()
            drain.until(warm + count)
            seconds = perf_counter() - began
            cpu = cpu_seconds(redis) - cpu
        drain.channel.close()
        queue = site.declare(connection)
        if queue.get(no_ack=True) is not None:
            raise RuntimeError("all messages were acked, and there is one left")
        queue.delete()
    figures["rate"] = count / seconds
    if site.transport.server == "redis":
        figures["server CPU"] = cpu / count * 1e6
    return Measured(figures)


WORKLOAD = Workload(
    name="consume",
    about=f"consume with prefetch {PREFETCH}, ack each message in its callback",
    cases=cases(OURS, REDIS, REDIS_PLUS, RABBITMQ, MEMORY),
    units={"rate": "messages/s", LIMIT: "messages/s", "server CPU": "us/message"},
    measure=measure,
    sizes={"warm": 50, "messages": 800},
    quick_sizes={"warm": 50, "messages": 400},
    apart=True,
)
