"""Many messages that are due in the same instant, and large ones; how long the longest script takes."""

from __future__ import annotations

from time import perf_counter, sleep

from kombu.messaging import Producer
from redis import Redis

from tools.benchmarks.peers import OURS
from tools.benchmarks.schedule import multiply, now_ms
from tools.benchmarks.site import BODY, Drain, Site
from tools.benchmarks.workload import Measured, Sizes, Workload, cases

MEGABYTE = 1_000_000

_SLOW_US = 1000
_DELAY_MS = 3000


def longest_script_ms(redis: Redis) -> float:
    """Of the scripts since the slow log was reset; 0 if none took more than a millisecond."""
    slow = [
        entry["duration"]
        for entry in redis.slowlog_get(-1)
        if entry["command"].upper().startswith((b"EVAL", b"FCALL"))
    ]
    return float(max(slow, default=0)) / 1000


def rate(drain: Drain, count: int) -> float:
    """Messages a second, from the first one's delivery on."""
    drain.until(drain.seen + 1)
    began = perf_counter()
    drain.until(drain.seen + count - 1)
    return (count - 1) / (perf_counter() - began)


def measure(site: Site, sizes: Sizes) -> Measured:
    figures = {}
    with site.connect() as connection, site.redis() as redis:
        redis.config_set("slowlog-log-slower-than", _SLOW_US)
        redis.config_set("slowlog-max-len", 10_000)
        producer = Producer(connection.default_channel)
        drain = Drain(site, connection, prefetch=16)

        site.fill(sizes["messages"] // 10)
        with drain.consumer:
            figures["ready"] = rate(drain, sizes["messages"] // 10)

        producer.publish(BODY, routing_key=site.queue, headers={"x-delay": _DELAY_MS * 1000})
        multiply(redis, site.queue, sizes["messages"], now_ms(redis) + _DELAY_MS, step_ms=0)
        redis.slowlog_reset()
        with drain.consumer:
            figures["due at once"] = rate(drain, sizes["messages"])
        figures["longest script"] = longest_script_ms(redis)

        redis.slowlog_reset()
        body = "x" * MEGABYTE
        for _ in range(sizes["large"]):
            producer.publish(body, routing_key=site.queue, headers={"x-delay": _DELAY_MS})
        figures["1 MB, longest publish"] = longest_script_ms(redis)
        redis.slowlog_reset()
        # All of them shall be due when the first is taken.
        sleep(_DELAY_MS / 1000)
        with drain.consumer:
            figures["1 MB, due at once"] = rate(drain, sizes["large"])
        figures["1 MB, longest script"] = longest_script_ms(redis)
    return Measured(figures)


WORKLOAD = Workload(
    name="burst",
    about="messages that are due in the same instant, taken by one consumer with prefetch 16 and acked",
    cases=cases(OURS),
    units={
        "ready": "messages/s",
        "due at once": "messages/s",
        "longest script": "ms",
        "1 MB, due at once": "messages/s",
        "1 MB, longest publish": "ms",
        "1 MB, longest script": "ms",
    },
    measure=measure,
    sizes={"messages": 100_000, "large": 100},
    quick_sizes=None,
    rounds=3,
)
