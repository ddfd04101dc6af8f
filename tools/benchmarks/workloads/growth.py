"""What it costs to schedule, to cancel, to take, and to wake up, with more and more messages scheduled."""

from __future__ import annotations

import random
from collections.abc import Callable
from time import perf_counter

from kombu.messaging import Producer

from kombu_redisdelay import Messages, Selection
from kombu_redisdelay.operations.timeline import timeline
from tools.benchmarks.peers import OURS
from tools.benchmarks.redis_info import script_us
from tools.benchmarks.site import BODY, Drain, Site
from tools.benchmarks.workload import Case, Measured, Sizes, Workload
from tools.benchmarks.workloads.lateness import schedule_far_ahead

SCHEDULED = (1_000, 100_000, 1_000_000, 3_000_000)

_DAY_MS = 86_400_000
#: How long ahead a message is scheduled that shall wake the consumer up.
_SHORTLY_MS = 20


def measure(site: Site, sizes: Sizes) -> Measured:
    schedule_far_ahead(site, sizes["scheduled"])
    chance = random.Random(4)
    scheduled: list[str] = []
    with site.connect() as connection, site.redis() as redis, Messages(connection) as delayed:
        producer = Producer(connection.default_channel)
        drain = Drain(site, connection, prefetch=16)

        def publish(delay_ms: float, message_id: str) -> None:
            headers = {"x-delay": delay_ms}
            producer.publish(BODY, routing_key=site.queue, headers=headers, message_id=message_id)

        def schedule() -> None:
            scheduled.append(str(len(scheduled)))
            # Anywhere among those that are there.
            publish(_DAY_MS + chance.random() * sizes["scheduled"] * 1000, scheduled[-1])

        def cancel() -> None:
            if not delayed.cancel(ids=[scheduled.pop()]):
                raise RuntimeError("a scheduled message was not found")

        def take() -> None:
            drain.until(drain.seen + 1)

        def wake_up() -> None:
            publish(_SHORTLY_MS, "shortly")
            take()

        def cost(action: Callable[[], object], name: str, per_block: int) -> dict[str, float]:
            client, server = [], []
            for _ in range(sizes["blocks"]):
                before, began = script_us(redis), perf_counter()
                for _ in range(per_block):
                    action()
                client.append((perf_counter() - began) / per_block * 1e6)
                server.append((script_us(redis) - before) / per_block)
            # As timeit does: the others differ by what else the machine did meanwhile.
            return {name: min(client), f"{name}, server": min(server)}

        looks: dict[str, Callable[[], object]] = {
            "count": lambda: delayed.count(Selection(state="scheduled", queue=site.queue)),
            "list 50": lambda: list(delayed.select(Selection(state="scheduled", queue=site.queue), limit=50)),
            "timeline": lambda: timeline(delayed.store, [site.queue]),
        }
        with drain.consumer:
            wake_up()
            figures = {}
            for name, look in looks.items():
                figures[name] = cost(look, name, sizes["looks"])[name]
            figures |= cost(schedule, "schedule", sizes["messages"])
            figures |= cost(cancel, "cancel", sizes["messages"])
            figures |= cost(wake_up, "wake-up", sizes["wake-ups"])
            figures["wake-up"] -= _SHORTLY_MS * 1000
            site.fill(sizes["blocks"] * sizes["messages"])
            figures |= cost(take, "take", sizes["messages"])
    return Measured(figures)


WORKLOAD = Workload(
    name="growth",
    about="what a message costs beside so many scheduled: to schedule, cancel, take and ack it, to wake up",
    cases=[Case(f"{count:,} scheduled", OURS, {"scheduled": count}) for count in SCHEDULED],
    units={
        name: "us"
        for figure in ("schedule", "cancel", "take", "wake-up")
        for name in (figure, f"{figure}, server")
    }
    | dict.fromkeys(("count", "list 50", "timeline"), "us"),
    measure=measure,
    sizes={"blocks": 15, "messages": 200, "wake-ups": 4, "looks": 30},
    quick_sizes=None,
    rounds=2,
)
