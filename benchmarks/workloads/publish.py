"""Publish one message after the other, each confirmed by the server, and many at once with a batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta, timezone
from time import perf_counter, time
from typing import Any

from kombu import Producer

from benchmarks.peers import MEMORY, OURS, RABBITMQ, REDIS, REDIS_PLUS, Peer
from benchmarks.site import BODY, Site, batch
from benchmarks.workload import Measured, Sizes, Workload, cases

DELAY = 3600.0


def later(peer: Peer) -> dict[str, Any]:
    """What a message that is due in an hour is published with."""
    if peer is OURS:
        return {"headers": {"x-delay": DELAY * 1000}}
    if peer is REDIS_PLUS:
        return {"eta": time() + DELAY}
    # A worker would wait for it; the transport does not look.
    return {"headers": {"eta": (datetime.now(timezone.utc) + timedelta(seconds=DELAY)).isoformat()}}


def measure(site: Site, sizes: Sizes) -> Measured:
    connection = site.connect()
    queue = site.declare(connection)
    producer = Producer(connection.default_channel)
    delayed = later(site.transport)

    def publish(properties: Mapping[str, Any]) -> None:
        producer.publish(BODY, routing_key=queue.name, **properties)

    def publish_batch(properties: Mapping[str, Any]) -> None:
        with batch(producer):
            for _ in range(sizes["batch"]):
                producer.publish(BODY, routing_key=queue.name, **properties)

    def rate(publish: Callable[[Mapping[str, Any]], None], properties: Mapping[str, Any]) -> float:
        publish(properties)
        calls = 0
        began = perf_counter()
        while (seconds := perf_counter() - began) < sizes["ms"] / 1000:
            publish(properties)
            calls += 1
        queue.purge()
        return calls / seconds

    figures = {"immediate": rate(publish, {}), "scheduled": rate(publish, delayed)}
    if site.transport in (OURS, REDIS):
        figures["batch"] = rate(publish_batch, {}) * sizes["batch"]
        figures["scheduled batch"] = rate(publish_batch, delayed) * sizes["batch"]
    queue.delete()
    connection.close()
    return Measured(figures)


WORKLOAD = Workload(
    name="publish",
    about="publish small messages, due at once and in an hour, one by one and in batches",
    cases=cases(OURS, REDIS, REDIS_PLUS, RABBITMQ, MEMORY),
    units=dict.fromkeys(("immediate", "scheduled", "batch", "scheduled batch"), "messages/s"),
    measure=measure,
    sizes={"ms": 500, "batch": 200},
    quick_sizes={"ms": 250, "batch": 200},
)
