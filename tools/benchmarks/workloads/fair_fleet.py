"""Fair queues with many processes: how long the quiet wait beside a backlog, and the rate where Redis is the
limit. Plain and fair queue are measured in the same run, with the same messages."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import cycle
from statistics import median
from time import monotonic, monotonic_ns, sleep
from typing import Any

from kombu.entity import Queue
from kombu.messaging import Consumer

from kombu_redisdelay.broker.delivery import Request
from tools.benchmarks.peers import OURS
from tools.benchmarks.results import percentile
from tools.benchmarks.site import Site
from tools.benchmarks.workload import Case, Measured, Sizes, Workload
from tools.benchmarks.workloads.fair import Bench, message

PROCESSES = 8

#: How many keys have the backlog.
NOISY = (1, 100, 10_000)
QUIET_KEYS = 1000

PLAIN = "plain"

#: All of the greatest number of noisy keys come at once, just before the quiet ones.
BURST = f"fair, burst of {NOISY[-1]:,} new keys"

_FORK = multiprocessing.get_context("fork")


def case(noisy: int) -> str:
    """The name of the case of a fair queue."""
    return f"fair, {noisy:,} noisy key{'s' if noisy > 1 else ''}"


@contextmanager
def _processes(target: Callable[..., None], *args: object) -> Iterator[None]:
    """Some that do the same, ended when the block is left."""
    processes = [_FORK.Process(target=target, args=args) for _ in range(PROCESSES)]
    for process in processes:
        process.start()
    try:
        yield
    finally:
        for process in processes:
            process.terminate()
            process.join()


def _work(site: Site, seconds: float, handled: Any, waits: Any) -> None:
    """Handle messages, each in so many seconds. Of the quiet ones, tell how long they have waited, ms."""

    def handle(body: Any, received: Any) -> None:
        if received.headers["x-key"].startswith("quiet"):
            waits.put((monotonic_ns() - int(received.headers["id"])) / 1e6)
        sleep(seconds)
        received.ack()
        with handled.get_lock():
            handled.value += 1

    with site.connect() as connection:
        consumer = Consumer(connection.channel(), [Queue(site.queue)], callbacks=[handle], prefetch_count=1)
        with consumer:
            while True:
                with suppress(TimeoutError):
                    connection.drain_events(timeout=1)


def wait(site: Site, sizes: Sizes) -> Measured:
    """While a backlog is worked off, send one message after the other of keys that have no others.

    In a plain queue, such a message waits for all that were there before. For how long is computed from the
    rate at which these are handled.
    """
    waits, handled = _FORK.SimpleQueue(), _FORK.Value("q", 0)
    noisy, ready = sizes["noisy"], sizes["ready"]
    with site.connect() as connection, site.redis() as redis:
        bench = Bench(site, connection, redis)
        bench.empty(is_fair=bool(sizes["fair"]))
        # So many takes give each of the noisy ones a turn: a newcomer and another one are served in turn.
        count = ready + 2 * noisy
        bench.fill(message(site.queue, number, f"noisy-{number % noisy}") for number in range(count))
        if sizes["fair"]:
            bench.sort_by_key()
        if not sizes["burst"]:
            bench.drain(2 * noisy, 64)
        with _processes(_work, site, sizes["task ms"] / 1000, handled, waits):
            # All of them are at work.
            while handled.value < 10 * PROCESSES:
                sleep(0.01)
            began, before = monotonic(), handled.value
            for number in range(sizes["quiet"]):
                sleep(sizes["each ms"] / 1000)
                text = message(site.queue, monotonic_ns(), f"quiet-{number % QUIET_KEYS}")
                bench.store.run(bench.store.put(site.queue, 0, text.encode()))
            rate = (handled.value - before) / (monotonic() - began)
            samples = [waits.get() for _ in range(sizes["quiet"])] if sizes["fair"] else []
        bench.empty(is_fair=False)
    if not samples:
        until_served = (ready - before) / rate * 1000
        return Measured({"rate": rate, "p50": until_served, "p99": until_served})
    return Measured({"rate": rate, "p50": median(samples), "p99": percentile(samples, 99)}, samples)


def _take(site: Site, barrier: Any, results: Any) -> None:
    """Take and ack all that there is, with nothing around it. Tell how much it was, and when it ended."""
    with site.connect() as connection:
        consumer = connection.default_channel.consumer
        barrier.wait()
        count, ended = 0, monotonic()
        while some := consumer.take(Request((site.queue,), 16)).deliveries:
            for delivery in some:
                consumer.ack(site.queue, delivery.tag)
            count, ended = count + len(some), monotonic()
        consumer.confirm_acks()
    results.put((count, ended))
    barrier.wait()


def limit(site: Site, sizes: Sizes) -> Measured:
    """The rate of processes that do nothing but take and ack."""
    figures: dict[str, float] = {}
    with site.connect() as connection, site.redis() as redis:
        bench = Bench(site, connection, redis)
        for name, keys in {PLAIN: 0, "1,000 keys": 1000}.items():
            bench.empty(is_fair=keys > 0)
            each = cycle([f"tenant-{number}" for number in range(keys or 1)])
            count = sizes["messages"]
            bench.fill(
                message(site.queue, number, key) for number, key in zip(range(count), each, strict=False)
            )
            if keys:
                bench.sort_by_key()
            barrier, results = _FORK.Barrier(PROCESSES + 1), _FORK.SimpleQueue()
            with _processes(_take, site, barrier, results):
                barrier.wait()
                began = monotonic()
                taken = [results.get() for _ in range(PROCESSES)]
                barrier.wait()
            figures[name] = sum(count for count, _ in taken) / (max(ended for _, ended in taken) - began)
        bench.empty(is_fair=False)
    return Measured(figures)


WORKLOADS = (
    Workload(
        name="fair-wait",
        about=f"messages of quiet keys beside a backlog of noisy ones; {PROCESSES} processes, prefetch 1",
        cases=[
            Case(PLAIN, OURS, {"fair": 0, "noisy": 1, "burst": 0, "quiet": 20}),
            *(Case(case(noisy), OURS, {"fair": 1, "noisy": noisy, "burst": 0}) for noisy in NOISY),
            Case(BURST, OURS, {"fair": 1, "noisy": NOISY[-1], "burst": 1}),
        ],
        units={"p50": "ms", "p99": "ms", "rate": "messages/s"},
        measure=wait,
        sizes={"ready": 200_000, "quiet": 100, "each ms": 250, "task ms": 20},
        quick_sizes={"ready": 5_000, "quiet": 20, "each ms": 50, "task ms": 20},
        rounds=1,
        apart=True,
    ),
    Workload(
        name="fair-limit",
        about=f"take and ack in {PROCESSES} processes with nothing around it: Redis is the limit",
        cases=[Case(OURS.name, OURS)],
        units={PLAIN: "messages/s", "1,000 keys": "messages/s"},
        measure=limit,
        sizes={"messages": 100_000},
        quick_sizes={"messages": 4_000},
        rounds=3,
        apart=True,
    ),
)
