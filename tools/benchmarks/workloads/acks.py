"""What acks cost: consuming with and without them, with one consumer and with ten processes; and what they
cost at least."""

from __future__ import annotations

import multiprocessing
from multiprocessing.queues import SimpleQueue
from multiprocessing.synchronize import Barrier
from time import monotonic

from tools.benchmarks.limits import LIMIT, consume_rate
from tools.benchmarks.peers import OURS, REDIS
from tools.benchmarks.site import Drain, Site
from tools.benchmarks.workload import Measured, Sizes, Workload, cases

PREFETCH = 16

#: Seconds without a message after which there are no more.
_QUIET = 0.5


def consume(site: Site, no_ack: bool, start: Barrier, ends: SimpleQueue[tuple[int, float]]) -> None:
    """Be one of the consumers: until all is quiet, then say how many messages came and when the last did."""
    with site.connect() as connection:
        drain = Drain(site, connection, prefetch=PREFETCH, no_ack=no_ack)
        with drain.consumer:
            start.wait()
            last = monotonic()
            while True:
                try:
                    connection.drain_events(timeout=_QUIET)
                except TimeoutError:
                    break
                last = monotonic()
        ends.put((drain.seen, last))


def rate(site: Site, messages: int, consumers: int, no_ack: bool) -> float:
    """Messages a second that the *consumers* take together.

    Raises:
        RuntimeError: they did not get all of them.
    """
    site.fill(messages)
    fork = multiprocessing.get_context("fork")
    start, ends = fork.Barrier(consumers + 1), fork.SimpleQueue()
    processes = [fork.Process(target=consume, args=(site, no_ack, start, ends)) for _ in range(consumers)]
    for process in processes:
        process.start()
    start.wait()
    began = monotonic()
    results: list[tuple[int, float]] = [ends.get() for _ in processes]
    for process in processes:
        process.join()
    seen = sum(count for count, _ in results)
    if seen != messages:
        raise RuntimeError(f"{messages} messages were published, and {seen} came")
    return messages / (max(last for _, last in results) - began)


def measure(site: Site, sizes: Sizes) -> Measured:
    messages = site.scaled(sizes["messages"])
    figures = {
        f"{how}, {consumers}": rate(site, messages, consumers, no_ack=how == "no ack")
        for how in ("ack", "no ack")
        for consumers in (1, 10)
    }
    if site.transport is OURS:
        site.fill(messages)
        figures[f"ack, {LIMIT}"] = consume_rate(site, messages, batch=PREFETCH, acks=True)
        figures[f"no ack, {LIMIT}"] = consume_rate(site, messages, batch=PREFETCH, acks=False)
    return Measured(figures)


WORKLOAD = Workload(
    name="acks",
    about=f"consume with prefetch {PREFETCH}, with and without acks, 1 and 10 processes",
    cases=cases(OURS, REDIS),
    units=dict.fromkeys(
        (f"{how}, {which}" for which in ("1", "10", LIMIT) for how in ("ack", "no ack")), "messages/s"
    ),
    measure=measure,
    sizes={"messages": 1000},
    quick_sizes=None,
    rounds=3,
)
