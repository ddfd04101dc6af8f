"""A group of tasks from one `apply_async`, over lines with different round trips; ours also in a block of
``batch(app)``."""

from __future__ import annotations

from contextlib import nullcontext
from statistics import median
from time import perf_counter

from celery import Celery, group

from kombu_redisdelay import batch
from tools.benchmarks.app import new_app
from tools.benchmarks.peers import MEMORY, OURS, RABBITMQ, REDIS, REDIS_PLUS, Peer
from tools.benchmarks.site import Site
from tools.benchmarks.workload import Case, Measured, Sizes, Workload
from tools.harness.proxy import HOST, Proxy

#: Round trips, in ms.
ROUND_TRIPS = (0, 1, 5)

#: Ours, in a block.
BLOCK = "redisdelay, batch(app)"

TASKS = 500


def case(name: str, round_trip_ms: int) -> str:
    """The name of the case."""
    return f"{name}, {round_trip_ms} ms"


def seconds_for(app: Celery, sizes: Sizes, options: dict[str, float]) -> float:
    """Seconds for one group, the median of some."""

    @app.task(name="nothing")
    def nothing(number: int) -> None:
        """Nobody runs it."""

    took = []
    for _ in range(1 + sizes["groups"]):
        tasks = group(nothing.s(number) for number in range(TASKS))
        began = perf_counter()
        with batch(app) if sizes.get("block") else nullcontext():
            tasks.apply_async(**options)
        took.append(perf_counter() - began)
    return median(took[1:])


def measure(site: Site, sizes: Sizes) -> Measured:
    with Proxy(_port(site)) as proxy:
        proxy.delay(sizes["round trip ms"] / 2000)
        app = new_app(site)
        if site.transport is not MEMORY:
            app.conf.broker_url = _through(site, proxy.port)
        figures = {"group": seconds_for(app, sizes, {})}
        if site.transport is OURS:
            figures["group, countdown"] = seconds_for(app, sizes, {"countdown": 3600})
        app.close()
    return Measured({name: seconds * 1000 for name, seconds in figures.items()})


def _port(site: Site) -> int:
    return int(site.url.rpartition(":")[2].partition("/")[0]) if site.transport.server else site.redis_port


def _through(site: Site, port: int) -> str:
    return site.url.replace(f":{_port(site)}", f":{port}").replace("localhost", HOST)


def _cases(peers: dict[str, Peer], ms: int) -> list[Case]:
    return [
        Case(case(name, ms), peer, {"round trip ms": ms, "block": int(name == BLOCK)})
        for name, peer in peers.items()
    ]


_PEERS = {peer.name: peer for peer in (OURS, REDIS, REDIS_PLUS, RABBITMQ)}

WORKLOAD = Workload(
    name="batch",
    about=f"a group of {TASKS} tasks that one apply_async publishes, over a line with such a round trip",
    cases=[
        *_cases({MEMORY.name: MEMORY}, 0),
        *(each for ms in ROUND_TRIPS for each in _cases({BLOCK: OURS, **_PEERS}, ms)),
    ],
    units={"group": "ms", "group, countdown": "ms"},
    measure=measure,
    sizes={"groups": 3},
    quick_sizes={"groups": 1},
    rounds=2,
)
