"""What it costs to schedule, to take, and to wake up, with more and more messages scheduled.

`DelayedMessages.cancel` belongs here as soon as there is one: a figure "cancel", like "schedule".
"""

from __future__ import annotations

import random
from collections.abc import Callable
from time import monotonic, perf_counter

from kombu.messaging import Producer

from benchmarks.peers import OURS
from benchmarks.redis_info import script_time
from benchmarks.results import percentile
from benchmarks.site import BODY, Drain, Site
from benchmarks.workload import Case, Measured, Sizes, Workload
from benchmarks.workloads.lateness import schedule_far_ahead

SCHEDULED = (1_000, 100_000, 1_000_000)

_HOUR_MS = 3_600_000
#: How long ahead a message is scheduled that shall wake the consumer up.
_SHORTLY_MS = 20


def measure(site: Site, sizes: Sizes) -> Measured:
    schedule_far_ahead(site, sizes["scheduled"])
    chance = random.Random(4)
    with site.connect() as connection, site.redis() as redis:
        producer = Producer(connection.default_channel)
        drain = Drain(site, connection, prefetch=16)

        def publish(headers: dict[str, float]) -> None:
            producer.publish(BODY, routing_key=site.queue, headers=headers)

        def schedule() -> int:
            for _ in range(sizes["calls"]):
                # Anywhere among those that are there.
                publish({"x-delay": _HOUR_MS + chance.random() * sizes["scheduled"] * 1000})
            return sizes["calls"]

        def take() -> int:
            drain.until(drain.seen + sizes["calls"])
            return sizes["calls"]

        def cost(do: Callable[[], int], name: str) -> dict[str, float]:
            before, began = script_time(redis), perf_counter()
            count = do()
            seconds, scripts = perf_counter() - began, script_time(redis) - before
            return {name: seconds / count * 1e6, f"{name}, server": scripts.microseconds / count}

        def wake_up() -> float:
            due = monotonic() + _SHORTLY_MS / 1000
            publish({"x-delay": _SHORTLY_MS})
            drain.until(drain.seen + 1)
            return (monotonic() - due) * 1e6

        publish({})
        with drain.consumer:
            drain.until(1)
            figures = cost(schedule, "schedule")
            before = script_time(redis)
            figures["wake-up"] = percentile([wake_up() for _ in range(sizes["wake-ups"])], 50)
            scripts = script_time(redis) - before
            figures["wake-up, server"] = scripts.microseconds / sizes["wake-ups"]
            site.fill(sizes["calls"], connection)
            figures |= cost(take, "take")
    return Measured(figures)


WORKLOAD = Workload(
    name="growth",
    about="what a message costs beside so many scheduled: to schedule it, to take and ack it, to wake up",
    cases=[Case(f"{count:,} scheduled", OURS, {"scheduled": count}) for count in SCHEDULED],
    units={
        name: "us" for figure in ("schedule", "take", "wake-up") for name in (figure, f"{figure}, server")
    },
    measure=measure,
    sizes={"calls": 3000, "wake-ups": 40},
    quick_sizes=None,
    rounds=2,
)
