"""Queues that an operator has paused or limited: what that costs, and whether a rate is used."""

from __future__ import annotations

from itertools import pairwise
from time import perf_counter
from typing import Any

from kombu.message import Message

from kombu_redisdelay import Queues
from tools.benchmarks.peers import OURS
from tools.benchmarks.redis_info import cpu_seconds
from tools.benchmarks.results import percentile
from tools.benchmarks.schedule import keys
from tools.benchmarks.site import Drain, Site
from tools.benchmarks.workload import Case, Measured, Sizes, Turns, Workload, cases
from tools.benchmarks.workloads.idle import server_cpu

PREFETCH = 16

#: Neither keeps anybody from anything.
NO_CONTROL, CONCURRENCY, RATE = "no control", "concurrency", "rate"
_LIMITS: dict[str, dict[str, Any]] = {
    NO_CONTROL: {"concurrency": None},
    CONCURRENCY: {"concurrency": 1000},
    RATE: {"rate": 1_000_000, "burst": 1000},
}


def not_binding(site: Site, sizes: Sizes) -> Turns:
    limit = _LIMITS[[*_LIMITS][sizes["limit"]]]
    turns, count, warm = sizes["turns"], sizes["messages"], sizes["warm"]
    site.fill(warm + turns * count)
    seconds = cpu = 0.0
    with site.connect() as connection, site.redis() as redis, Queues(connection) as queues:
        queues.limit(site.queue, **limit)
        drain = Drain(site, connection, prefetch=PREFETCH)
        with drain.consumer:
            drain.until(warm)
            for _ in range(turns):
                yield
                cpu_before, began = cpu_seconds(redis), perf_counter()
                drain.until(drain.seen + count)
                seconds += perf_counter() - began
                cpu += cpu_seconds(redis) - cpu_before
        drain.channel.close()
    messages = turns * count
    return Measured({"rate": messages / seconds, "server CPU": cpu / messages * 1e6})


def binding(site: Site, sizes: Sizes) -> Measured:
    site.fill(sizes["messages"])
    with site.connect() as connection, Queues(connection) as queues:
        queues.pause(site.queue)
        figures = {"paused, server CPU": server_cpu(site, sizes)}
        queues.resume(site.queue)

        rate, count = sizes["rate"], sizes["messages"] // 2
        # All that may be taken at once is taken first.
        queues.limit(site.queue, rate=rate, burst=sizes["burst"])
        drain = Drain(site, connection, prefetch=PREFETCH)
        with drain.consumer:
            drain.until(2 * sizes["burst"])
            began = perf_counter()
            drain.until(drain.seen + count)
            figures["share"] = count / (perf_counter() - began) / rate
        drain.channel.close()

        queues.limit(site.queue, rate=rate, burst=1)
        late = _lateness_ms(site, connection, rate, sizes["alone"])
    return Measured(
        {**figures, "p50": percentile(late, 50), "p99": percentile(late, 99)},
        late,
    )


def _lateness_ms(site: Site, connection: Any, rate: int, count: int) -> list[float]:
    """By how much each message was taken later than it was allowed, by the clock of Redis. The burst is 1, so
    the next one is allowed one interval after a take."""
    full_at_us: list[float] = []
    control = keys(site.queue).limits
    with site.redis() as redis:

        def note(body: Any, message: Message) -> None:
            full_at_us.append(float(redis.hget(control, "full_at_us") or 0))

        drain = Drain(site, connection, prefetch=PREFETCH)
        drain.consumer.register_callback(note)
        with drain.consumer:
            drain.until(count + 2)
        drain.channel.close()
    interval_us = 1e6 / rate
    # The first one was allowed long before.
    pairs = pairwise(full_at_us[1:])
    return [(later - earlier - interval_us) / 1000 for earlier, later in pairs]


WORKLOADS = (
    Workload(
        name="control",
        about=f"as consume, prefetch {PREFETCH}, with limits that do not bind: 1,000 held; 1,000,000/s",
        cases=[Case(name, OURS, {"limit": number}) for number, name in enumerate(_LIMITS)],
        units={"rate": "messages/s", "server CPU": "us/message"},
        measure=not_binding,
        sizes={"warm": 200, "turns": 20, "messages": 500},
        quick_sizes={"warm": 200, "turns": 5, "messages": 400},
        in_turns=True,
        apart=True,
    ),
    Workload(
        name="control-binding",
        about="10 consumers of a paused queue with messages; then 1 consumer, 200 messages a second",
        cases=cases(OURS),
        units={"paused, server CPU": "% of a core", "share": "of the rate", "p50": "ms", "p99": "ms"},
        measure=binding,
        sizes={
            "consumers": 10,
            "warm ms": 1500,
            "ms": 5000,
            "rate": 200,
            "burst": 20,
            "messages": 2400,
            "alone": 800,
        },
        quick_sizes=None,
        rounds=3,
    ),
)
