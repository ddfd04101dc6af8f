"""A slow line to the server: how fast one consumer takes, and for how long an event loop stands still."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from time import perf_counter

from kombu.asynchronous import Hub
from kombu.connection import Connection
from kombu.entity import Queue

from tools.benchmarks.peers import OURS, REDIS, Peer
from tools.benchmarks.site import BODY, Drain, Site
from tools.benchmarks.workload import Case, Measured, Sizes, Workload
from tools.harness.proxy import HOST, Proxy

#: Round trips, in ms.
ROUND_TRIPS = (0, 1, 5, 20)

PREFETCH = 16

#: Seconds between two turns that the event loop is asked for.
_TICK = 0.005


def case(peer: Peer, round_trip_ms: int) -> str:
    """The name of the case."""
    return f"{peer.name}, {round_trip_ms} ms"


def rate(site: Site, connection: Connection, messages: int) -> float:
    """Messages a second that a consumer takes and acks."""
    site.fill(messages)
    drain = Drain(site, connection, prefetch=PREFETCH)
    with drain.consumer:
        drain.until(1)
        began = perf_counter()
        drain.until(messages)
        seconds = perf_counter() - began
    drain.channel.close()
    return (messages - 1) / seconds


def standstill(site: Site, connection: Connection, queues: int, ms: int) -> float:
    """The longest time, in ms, between two turns of an event loop that are 5 ms apart otherwise: while a
    consumer of so many queues starts, gets a message, and waits."""
    names = [f"{site.queue}-{number}" for number in range(queues)]
    drain = Drain(site, connection, prefetch=PREFETCH, queues=[Queue(name) for name in names])
    ticks = [perf_counter()]
    hub = Hub()
    connection.register_with_event_loop(hub)
    hub.call_repeatedly(_TICK, lambda: ticks.append(perf_counter()))
    drain.consumer.consume()
    loop: Iterator[object] = hub.create_loop()
    with site.connect() as direct:
        while perf_counter() - ticks[0] < ms / 1000 or not drain.seen:
            next(loop)
            if perf_counter() - ticks[0] > ms / 2000 and drain.seen == 0:
                direct.Producer().publish(BODY, routing_key=names[-1])
    drain.channel.close()
    return max(later - earlier for earlier, later in pairwise(ticks)) * 1000


def measure(site: Site, sizes: Sizes) -> Measured:
    with Proxy(site.redis_port) as proxy:
        proxy.delay(sizes["round trip ms"] / 2000)
        url = f"{site.transport.scheme}://{HOST}:{proxy.port}/{site.database}"
        with Connection(url) as connection:
            figures = {"rate": rate(site, connection, site.scaled(sizes["messages"]))}
        with Connection(url) as connection:
            figures["stands still"] = standstill(site, connection, sizes["queues"], sizes["ms"])
    return Measured(figures)


WORKLOAD = Workload(
    name="line",
    about=f"over a line with such a round trip: consume with prefetch {PREFETCH}, ack; "
    "and the longest stand-still of an event loop with 200 queues",
    cases=[Case(case(peer, ms), peer, {"round trip ms": ms}) for ms in ROUND_TRIPS for peer in (OURS, REDIS)],
    units={"rate": "messages/s", "stands still": "ms"},
    measure=measure,
    sizes={"messages": 200, "queues": 200, "ms": 6000},
    quick_sizes=None,
    rounds=1,
)
