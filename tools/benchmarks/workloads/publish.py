"""Publish one message after the other, each confirmed by the server, and many at once with a batch.

Through the default exchange, as Celery publishes to its queues unless it is told otherwise, and through a
named one, whose bindings have to be looked up.

Beside it the least that it can cost (:class:`benchmarks.limits.PublishLimits`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta, timezone
from functools import partial
from time import perf_counter, time
from typing import Any

from kombu.connection import Connection
from kombu.entity import Exchange, Queue
from kombu.messaging import Producer

from tools.benchmarks.limits import PublishLimits
from tools.benchmarks.peers import MEMORY, OURS, RABBITMQ, REDIS, REDIS_PLUS, Peer
from tools.benchmarks.site import BODY, Site, batch
from tools.benchmarks.workload import Measured, Sizes, Turns, Workload, cases

DELAY = 3600.0

#: In the names of figures, for what does not go through the default exchange.
NAMED = "named exchange"

#: A publish that goes nowhere, and then a round trip.
AFTER_KOMBU = "round trip after kombu's part"

#: The same, with what it takes at least to store a message with a due time.
SCHEDULE_AFTER_KOMBU = "two commands that schedule, after kombu's part"


def later(peer: Peer) -> dict[str, Any]:
    """What a message that is due in an hour is published with."""
    if peer is OURS:
        return {"headers": {"x-delay": DELAY * 1000}}
    if peer is REDIS_PLUS:
        return {"eta": time() + DELAY}
    # A worker would wait for it; the transport does not look.
    return {"headers": {"eta": (datetime.now(timezone.utc) + timedelta(seconds=DELAY)).isoformat()}}


def measure(site: Site, sizes: Sizes) -> Turns:
    delayed = later(site.transport)
    with site.connect() as connection, Connection("memory://") as memory:
        channel = connection.default_channel
        exchange = Exchange(site.queue, "direct")(channel)
        # The default exchange needs no binding.
        queue = Queue(site.queue, exchange, site.queue)(channel)
        queue.declare()
        producer = Producer(channel)

        def publish(properties: Mapping[str, Any], exchange: str = "") -> int:
            producer.publish(BODY, exchange=exchange, routing_key=queue.name, **properties)
            return 1

        def publish_batch(properties: Mapping[str, Any]) -> int:
            with batch(producer):
                for _ in range(sizes["batch"]):
                    publish(properties)
            return sizes["batch"]

        properties = (
            {"immediate": {}} if site.transport is RABBITMQ else {"immediate": {}, "scheduled": delayed}
        )
        actions: dict[str, Callable[[], int]] = {}
        for name, each in properties.items():
            actions[name] = partial(publish, each)
            actions[f"{name}, {NAMED}"] = partial(publish, each, exchange.name)
        limits = PublishLimits(site, memory)
        if site.transport is OURS:
            actions["round trip"] = limits.round_trip
            actions[AFTER_KOMBU] = limits.publish
            actions[SCHEDULE_AFTER_KOMBU] = limits.schedule
        if site.transport in (OURS, REDIS):
            actions["batch"] = partial(publish_batch, {})
            actions["scheduled batch"] = partial(publish_batch, delayed)

        pace = {name: Pace() for name in actions}
        for _ in range(sizes["turns"]):
            yield
            for name, action in actions.items():
                pace[name].go(action, sizes["ms"] / 1000)
                queue.purge()
        limits.close()
        queue.delete()
        exchange.delete()
    return Measured({name: each.rate for name, each in pace.items()})


class Pace:
    """How often something can be done in a second."""

    def __init__(self) -> None:
        self._count = 0
        self._seconds = 0.0

    def go(self, action: Callable[[], int], seconds: float) -> None:
        """Do it for about so many *seconds*; it returns how many it did."""
        # What happens at the first time only is not what is asked for.
        action()
        count, elapsed, began = 0, 0.0, perf_counter()
        while elapsed < seconds:
            count += action()
            elapsed = perf_counter() - began
        self._count += count
        self._seconds += elapsed

    @property
    def rate(self) -> float:
        return self._count / self._seconds


WORKLOAD = Workload(
    name="publish",
    about="publish small messages, due at once and in an hour, one by one and in batches",
    cases=cases(OURS, REDIS, REDIS_PLUS, RABBITMQ, MEMORY),
    units={
        **dict.fromkeys(
            (
                "immediate",
                "scheduled",
                f"immediate, {NAMED}",
                f"scheduled, {NAMED}",
                "batch",
                "scheduled batch",
            ),
            "messages/s",
        ),
        "round trip": "1/s",
        AFTER_KOMBU: "1/s",
        SCHEDULE_AFTER_KOMBU: "1/s",
    },
    measure=measure,
    sizes={"turns": 8, "ms": 25, "batch": 200},
    quick_sizes={"turns": 5, "ms": 25, "batch": 200},
    rounds=3,
    in_turns=True,
    apart=True,
)
