"""What a fair queue costs: consume and ack messages of one key, of many, and from a plain queue, in one run,
and publish messages with keys and without.

What is consumed is pushed as producers push it. To sort it in is measured apart.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import nullcontext
from itertools import cycle, islice, product
from statistics import median
from time import perf_counter
from typing import Any

from kombu.connection import Connection
from kombu.messaging import Producer

from kombu_redisdelay.broker.fair_keys import StoredKeyLimits
from kombu_redisdelay.broker.limits import FairQueues
from kombu_redisdelay.broker.mover import forwarding
from kombu_redisdelay.broker.store import Store
from tools.benchmarks.peers import OURS
from tools.benchmarks.redis_info import cpu_seconds, used_memory
from tools.benchmarks.site import BODY, Drain, Site, batch
from tools.benchmarks.workload import Measured, Sizes, Workload, cases

#: With the last one, a take asks for as much as it may.
PREFETCHES = (16, 64, 500)

#: Case -> how many keys its messages have.
PLAIN, MANY = "plain", "many keys"
KEYS = {PLAIN: 0, "1 key": 1, "1,000 keys": 1000}

#: Shares of keys with these weights.
WEIGHTS = (1, 2, 5, 10)

#: How it is published -> how many messages together.
PUBLISHED = {"alone": 1, "in a batch": 200}

_PUSHED_TOGETHER = 500

#: In each of so many turns, those with many keys have theirs, too.
_TURNS_OF_LARGE = 4


def message(queue: str, number: int, key: str | None, weight: int = 1) -> str:
    """One of 1.2 KB, as Celery and our publishers write it."""
    member, header = "", ""
    if key is not None:
        member, header = f'"redisdelay-key": "{weight} {key}", ', f', "x-key": "{key}"'
    headers = f'{{"id": "{number:036}"{header}}}'
    delivery = f'{{"exchange": "", "routing_key": "{queue}"}}'
    return (
        f'{{"redisdelay-due": 1795711764997, {member}"body": "{"x" * 800}", "content-encoding": "utf-8", '
        f'"content-type": "text/plain", "headers": {headers}, "properties": {{"delivery_mode": 2, '
        f'"delivery_info": {delivery}, "priority": 0, '
        f'"delivery_tag": "{number:036}"}}}}'
    )


class Bench:
    """One queue of a measurement."""

    def __init__(self, site: Site, connection: Connection, redis: Any) -> None:
        self.site, self.connection, self.redis = site, connection, redis
        self.queue = site.declare(connection)
        self.store: Store = connection.default_channel.store  # type: ignore[attr-defined]
        self.fair = FairQueues(self.store)
        self.keys = self.store.keys(site.queue)

    def empty(self, *, is_fair: bool) -> None:
        self.redis.flushdb()
        self.redis.slowlog_reset()
        if is_fair:
            self.fair.switch_on([self.site.queue])

    def fill(self, texts: Iterator[str]) -> None:
        while some := list(islice(texts, _PUSHED_TOGETHER)):
            self.redis.lpush(self.keys.ready, *some)

    def sort_by_key(self) -> None:
        """As a consumer does that has no room."""
        self.redis.zadd(self.keys.consumers, {"who has no room": "inf"})
        script, keys, args = forwarding(self.store, self.site.queue)
        while self.redis.llen(self.keys.ready):
            script(self.store.server, keys, args)
        self.redis.delete(self.keys.consumers)

    def drain(self, count: int, prefetch: int) -> tuple[float, float]:
        """Seconds, and seconds of CPU of the server."""
        drain = Drain(self.site, self.connection, prefetch=prefetch)
        with drain.consumer:
            began, cpu = perf_counter(), cpu_seconds(self.redis)
            drain.until(count)
            seconds = perf_counter() - began
        drain.channel.close()
        return seconds, cpu_seconds(self.redis) - cpu

    def longest_ms(self) -> float:
        """Of all scripts since the queue was emptied; 1 if none took longer."""
        entries = self.redis.slowlog_get(-1)
        durations = [entry["duration"] / 1000 for entry in entries if entry["command"].startswith(b"EVAL")]
        return max(durations, default=1.0)


def measure(site: Site, sizes: Sizes) -> Measured:
    connection = Connection(site.url, transport_options={"max_batch": PREFETCHES[-1]})
    with connection, site.redis() as redis:
        redis.config_set("slowlog-log-slower-than", 1000)
        redis.config_set("slowlog-max-len", 10_000)
        bench = Bench(site, connection, redis)
        figures = _in_turns(bench, sizes)
        figures |= _memory(bench, sizes)
        figures["error of shares"] = _error_of_shares(bench, sizes)
        bench.empty(is_fair=False)
    return Measured(figures)


def _in_turns(bench: Bench, sizes: Sizes) -> dict[str, float]:
    """The cases in turns, and the median of each figure: some slow seconds of the machine must not decide.
    While the machine takes the CPU away, a single pop takes as long as the longest script. What a script
    needs, it needs in each turn."""
    found: defaultdict[str, list[float]] = defaultdict(list)
    longest: defaultdict[str, list[float]] = defaultdict(list)
    for turn in range(sizes["turns"]):
        # To fill these queues takes long.
        has_large = turn % _TURNS_OF_LARGE == 0
        keys_of = KEYS | ({MANY: sizes["keys"]} if has_large else {})
        measured = {
            f"prefetch {prefetch}, {name}": _consume(bench, prefetch, name, how_many, sizes["messages"])
            for prefetch, (name, how_many) in product(PREFETCHES, keys_of.items())
        }
        measured["publish"] = _publish(bench, sizes["published"])
        if has_large:
            measured["one at a time"] = _limited(bench, sizes["limited keys"])
        for case, (figures, longest_ms) in measured.items():
            longest[case].append(longest_ms)
            for name, figure in figures.items():
                found[name].append(figure)
    figures = {name: median(some) for name, some in found.items()}
    return figures | {"longest script": max(median(some) for some in longest.values())}


def _consume(
    bench: Bench, prefetch: int, name: str, how_many: int, count: int
) -> tuple[dict[str, float], float]:
    """Figures of *count* messages with so many keys, and how long the longest script took."""
    figures: dict[str, float] = {}
    queue, ready = bench.site.queue, max(2 * count, how_many)
    bench.empty(is_fair=how_many > 0)
    keys = cycle([f"tenant-{number}" for number in range(how_many)] or [None])
    bench.fill(message(queue, number, key) for number, key in zip(range(ready), keys, strict=False))
    if how_many:
        before = cpu_seconds(bench.redis)
        bench.sort_by_key()
        figures[f"sort in, {name}"] = (cpu_seconds(bench.redis) - before) / ready * 1e6
    # Not all: there are as many keys at the end as at the beginning.
    seconds, cpu = bench.drain(count, prefetch)
    figures[f"consume, prefetch {prefetch}, {name}"] = count / seconds
    figures[f"CPU, prefetch {prefetch}, {name}"] = cpu / count * 1e6
    return figures, bench.longest_ms()


def _publish(bench: Bench, count: int) -> tuple[dict[str, float], float]:
    """Microseconds for a message: without a key, and with one of 1,000 to a fair queue."""
    figures: dict[str, float] = {}
    producer = Producer(bench.connection.default_channel)
    for how, name in product(PUBLISHED, (PLAIN, "1,000 keys")):
        how_many, together = KEYS[name], PUBLISHED[how]
        bench.empty(is_fair=how_many > 0)
        began = perf_counter()
        for first in range(0, count, together):
            with batch(producer) if together > 1 else nullcontext():
                for number in range(first, first + together):
                    headers = {"x-key": f"tenant-{number % how_many}"} if how_many else {}
                    producer.publish(BODY, routing_key=bench.site.queue, headers=headers)
        figures[f"publish {how}, {name}"] = (perf_counter() - began) / count * 1e6
    return figures, bench.longest_ms()


def _limited(bench: Bench, keys: int) -> tuple[dict[str, float], float]:
    """The same of many keys, three messages each, one at a time."""
    queue = bench.site.queue
    bench.empty(is_fair=True)
    bench.fair.limit([queue], StoredKeyLimits(concurrency=1))
    bench.fill(message(queue, number, f"tenant-{number // 3}") for number in range(3 * keys))
    bench.sort_by_key()
    seconds, cpu = bench.drain(3 * keys, 16)
    figures = {"consume, one at a time": 3 * keys / seconds, "CPU, one at a time": cpu / keys / 3 * 1e6}
    return figures, bench.longest_ms()


def _memory(bench: Bench, sizes: Sizes) -> dict[str, float]:
    """Bytes of a message in a fair queue beside the same in a ready list."""
    used = {}
    count, queue = sizes["stored"], bench.site.queue
    for name, of_each in {"20 a key": 20, "1 a key": 1}.items():
        bench.empty(is_fair=True)
        before = used_memory(bench.redis)
        bench.fill(message(queue, number, f"tenant-{number // of_each}") for number in range(count))
        plain = used_memory(bench.redis) - before
        bench.sort_by_key()
        used[name] = (used_memory(bench.redis) - before, plain)
    twenty, alone = used.values()
    return {"memory, 20 a key": twenty[0] / twenty[1], "memory, 1 a key": (alone[0] - alone[1]) / count}


def _error_of_shares(bench: Bench, sizes: Sizes) -> float:
    """The greatest difference from its share of a key, in percent of all that was taken."""
    count, queue = sizes["shares"], bench.site.queue
    bench.empty(is_fair=True)
    for weight in WEIGHTS:
        texts = (message(queue, number, f"w{weight}", weight) for number in range(count))
        bench.fill(texts)
    bench.sort_by_key()
    got: Counter[str] = Counter()

    def see(body: Any, received: Any) -> None:
        got[received.headers["x-key"]] += 1
        received.ack()

    drain = Drain(bench.site, bench.connection, prefetch=16)
    drain.consumer.callbacks = [see]
    with drain.consumer:
        while got.total() < count:
            bench.connection.drain_events(timeout=10)
    drain.channel.close()
    shares = {f"w{weight}": weight / sum(WEIGHTS) for weight in WEIGHTS}
    return max(abs(got[key] / got.total() - share) for key, share in shares.items()) * 100


_NAMES = (*KEYS, MANY)
_CASES = [f"{prefetch}, {name}" for prefetch in PREFETCHES for name in _NAMES]

WORKLOAD = Workload(
    name="fair",
    about="consume and ack messages of one key, of many, and from a plain queue",
    cases=cases(OURS),
    units={
        **{f"consume, prefetch {case}": "messages/s" for case in _CASES},
        **{f"CPU, prefetch {case}": "us" for case in _CASES},
        **{f"sort in, {name}": "us" for name in _NAMES[1:]},
        **{f"publish {how}, {name}": "us" for how in PUBLISHED for name in (PLAIN, "1,000 keys")},
        "consume, one at a time": "messages/s",
        "CPU, one at a time": "us",
        "longest script": "ms",
        "memory, 20 a key": "x",
        "memory, 1 a key": "bytes",
        "error of shares": "%",
    },
    measure=measure,
    sizes={
        "turns": 12,
        "messages": 5_000,
        "keys": 100_000,
        "limited keys": 10_000,
        "published": 2_000,
        "stored": 20_000,
        "shares": 10_000,
    },
    quick_sizes={
        "turns": 1,
        "messages": 500,
        "keys": 1000,
        "limited keys": 100,
        "published": 200,
        "stored": 500,
        "shares": 1000,
    },
    rounds=3,
    apart=True,
)
