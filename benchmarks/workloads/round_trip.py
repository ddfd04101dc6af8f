"""The least that a confirmed operation can cost: a request and its reply over a connection of redis-py."""

from __future__ import annotations

from time import perf_counter

from benchmarks.peers import ROUND_TRIP
from benchmarks.site import Site
from benchmarks.workload import Measured, Sizes, Workload, cases


def measure(site: Site, sizes: Sizes) -> Measured:
    with site.redis() as client:
        connection = client.connection_pool.get_connection()
        began = perf_counter()
        for _ in range(sizes["pings"]):
            connection.send_command("PING")
            connection.read_response()
        seconds = perf_counter() - began
        client.connection_pool.release(connection)
    return Measured({"rate": sizes["pings"] / seconds})


WORKLOAD = Workload(
    name="round-trip",
    about="PING and its reply, over a connection of redis-py",
    cases=cases(ROUND_TRIP),
    units={"rate": "1/s"},
    measure=measure,
    sizes={"pings": 10_000},
    quick_sizes={"pings": 5_000},
)
