"""Many consumers: what they cost Redis while nothing happens, and what happens when many die at once."""

from __future__ import annotations

import multiprocessing
from time import monotonic, perf_counter, sleep
from typing import TYPE_CHECKING

from kombu.connection import Connection
from kombu.entity import Queue
from kombu.messaging import Consumer
from redis import Redis

from tools.benchmarks.peers import OURS, REDIS
from tools.benchmarks.schedule import keys, now_ms
from tools.benchmarks.site import Site
from tools.benchmarks.workload import Case, Measured, Sizes, Workload, cases
from tools.benchmarks.workloads.burst import longest_script_ms
from tools.benchmarks.workloads.idle import drain_for, server_cpu

if TYPE_CHECKING:
    # In `typing` from Python 3.11 on.
    from typing_extensions import Self

#: The idle fleets: consumers, and queues of each.
FLEETS = ((100, 1), (1000, 1), (200, 50))

#: The fleet that dies: consumers, and messages that each holds.
LOST = (200, 50)

#: Consumers that live on.
_SURVIVORS = 3


def case(consumers: int, queues: int, scheme: str) -> str:
    """The name of the case of an idle fleet."""
    return f"{scheme}, {consumers:,} x {queues} queue{'s' if queues > 1 else ''}"


def idle(site: Site, sizes: Sizes) -> Measured:
    queues = [Queue(f"{site.queue}-{number}") for number in range(sizes["queues"])]
    used = server_cpu(site, sizes, queues)
    return Measured({"server CPU": used, "for 100": used / sizes["consumers"] * 100})


def hand_out(redis: Redis, queue: str, lease_ms: int) -> None:
    """Have consumers on another machine, which will not be heard of again, hold what is ready."""
    k, consumers, each = keys(queue), *LOST
    for number in range(consumers):
        name = f"elsewhere:1:{number}:1:x"
        for tag in range(number * each, (number + 1) * each):
            payload = redis.rpop(queue)
            assert isinstance(payload, bytes)
            redis.hset(k.unacked(name), str(tag), b"0:%b" % payload)
        redis.zadd(k.consumers, {name: now_ms(redis) + lease_ms})


def recover(site: Site, sizes: Sizes) -> Measured:
    consumers, each = LOST
    site.fill(consumers * each)
    lease_s = sizes["lease ms"] / 1000
    survivor = Connection(site.url, transport_options={"visibility_timeout": lease_s})
    with survivor as connection, site.redis() as redis:
        redis.config_set("slowlog-log-slower-than", 500)
        hand_out(redis, site.queue, sizes["lease ms"])
        died = monotonic()
        redis.slowlog_reset()
        for _ in range(_SURVIVORS):
            channel = connection.channel()
            channel.basic_qos(0, 1, False)
            Consumer(channel, [Queue(site.queue)], callbacks=[_keep]).consume()
        with Probe(site) as probe:
            while redis.llen(site.queue) < consumers * each - _SURVIVORS:
                drain_for(connection, 0.05)
                if monotonic() - died > 3 * lease_s:
                    raise TimeoutError("the messages of the dead do not come back")
            after = monotonic() - died
        return Measured(
            {
                "back after the lease": after - lease_s,
                "longest script": longest_script_ms(redis),
                "longest answer": probe.longest_ms,
            }
        )


def _keep(body: object, message: object) -> None:
    """Hold it."""


class Probe:
    """Asks Redis again and again, from a process of its own, and measures how long it takes to answer."""

    def __init__(self, site: Site) -> None:
        fork = multiprocessing.get_context("fork")
        self._stopped = fork.Event()
        self._longest_ms = fork.Value("d", 0.0)
        self._process = fork.Process(target=self._run, args=(site,))

    @property
    def longest_ms(self) -> float:
        return float(self._longest_ms.value)

    def _run(self, site: Site) -> None:
        with site.redis() as redis:
            redis.ping()
            while not self._stopped.is_set():
                began = perf_counter()
                redis.ping()
                took_ms = (perf_counter() - began) * 1000
                self._longest_ms.value = max(self.longest_ms, took_ms)
                sleep(0.0005)

    def __enter__(self) -> Self:
        self._process.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stopped.set()
        self._process.join()


WORKLOADS = (
    Workload(
        name="fleet-idle",
        about="consumers of empty queues",
        cases=[
            Case(case(consumers, queues, peer.name), peer, {"consumers": consumers, "queues": queues})
            for consumers, queues in FLEETS
            for peer in (OURS, REDIS)
        ],
        units={"server CPU": "% of a core", "for 100": "% of a core for 100 consumers"},
        measure=idle,
        sizes={"warm ms": 8_000, "ms": 8_000},
        quick_sizes=None,
        rounds=1,
    ),
    Workload(
        name="fleet-lost",
        about=f"{LOST[0]} consumers die at once, and each holds {LOST[1]} messages; {_SURVIVORS} live on",
        cases=cases(OURS),
        units={"back after the lease": "s", "longest script": "ms", "longest answer": "ms"},
        measure=recover,
        sizes={"lease ms": 10_000},
        quick_sizes=None,
        rounds=3,
    ),
)
