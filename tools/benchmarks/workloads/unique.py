"""What a key costs: publish, consume and ack messages with a key beside others without, and hold many keys.

The keys are free, so each message is published and runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import count
from time import perf_counter
from typing import Any

from celery import Celery
from kombu.entity import Queue
from kombu.messaging import Producer

from kombu_redisdelay import Unique
from tools.benchmarks.peers import OURS
from tools.benchmarks.site import BODY, Drain, Site, batch
from tools.benchmarks.workload import Measured, Sizes, Workload, cases
from tools.benchmarks.workloads.publish import Pace

PREFETCH = 16

PLAIN = "plain"
WAITING = "waiting"
MODES = (WAITING, "done", "latest")

_numbers = count()


def headers(how: str) -> dict[str, Any]:
    """Those of a message with a key of 20 bytes that nobody holds, as :class:`Unique` makes them: without the
    usual mode; none for :data:`PLAIN`."""
    if how == PLAIN:
        return {}
    key = {"x-unique": f"{next(_numbers):020}"}
    return key if how == WAITING else {**key, "x-unique-while": how}


def measure(site: Site, sizes: Sizes) -> Measured:
    figures: dict[str, float] = {}
    with site.connect() as connection, site.redis() as redis:
        channel = connection.default_channel
        queue = site.declare(connection)
        producer = Producer(channel)

        def publish(how: str) -> int:
            producer.publish(BODY, exchange="", routing_key=queue.name, headers=headers(how))
            return 1

        pace = {how: Pace() for how in (PLAIN, *MODES)}
        tasks = _tasks(site)
        task_pace = {name: Pace() for name in tasks}
        for _ in range(sizes["publish turns"]):
            for how, each in pace.items():
                each.go(lambda how=how: publish(how), sizes["ms"] / 1000)  # type: ignore[misc]
                queue.purge()
            for name, task in tasks.items():
                task_pace[name].go(lambda task=task: _call(task), sizes["ms"] / 1000)  # type: ignore[misc]
                queue.purge()
        figures |= {f"publish, {how}": each.rate for how, each in pace.items()}
        figures |= {f"apply_async, {name}": each.rate for name, each in task_pace.items()}
        figures |= _consume(site, sizes, queue, producer)
        figures |= _hold(sizes, queue, producer, redis)
        queue.purge()
        queue.delete()
    return Measured(figures)


def _tasks(site: Site) -> Mapping[str, Any]:
    app = Celery("unique", broker=site.url, set_as_current=False)
    app.conf.task_default_queue = site.queue
    app.conf.task_ignore_result = True
    plain = app.task(name="plain", shared=False)(_work)
    keyed = app.task(name="keyed", shared=False, base=Unique, unique="{key}")(_work)
    return {PLAIN: plain, "with a key": keyed}


def _work(key: str) -> None:
    pass


def _call(task: Any) -> int:
    task.apply_async((f"{next(_numbers):020}",))
    return 1


def _consume(site: Site, sizes: Sizes, queue: Queue, producer: Producer) -> dict[str, float]:
    """Messages a second, in turns."""
    messages, seconds = sizes["messages"], dict.fromkeys((PLAIN, *MODES), 0.0)
    with site.connect() as connection:
        for _ in range(sizes["turns"]):
            for how in seconds:
                with batch(producer):
                    for _ in range(messages):
                        producer.publish(BODY, exchange="", routing_key=queue.name, headers=headers(how))
                drain = Drain(site, connection, prefetch=PREFETCH)
                with drain.consumer:
                    began = perf_counter()
                    drain.until(messages)
                    seconds[how] += perf_counter() - began
                drain.channel.close()
    return {f"consume, {how}": sizes["turns"] * messages / each for how, each in seconds.items()}


def _hold(sizes: Sizes, queue: Queue, producer: Producer, redis: Any) -> dict[str, float]:
    """Bytes that each of many keys takes beside its message."""
    with batch(producer):
        for _ in range(sizes["keys"]):
            producer.publish(b"", exchange="", routing_key=queue.name, headers=headers("done"))
    taken = redis.memory_usage(f"redisdelay:{{{queue.name}}}:unique", samples=0)
    return {"bytes of a key": taken / sizes["keys"]}


WORKLOAD = Workload(
    name="unique",
    about="publish, consume and ack messages with a key, and without",
    cases=cases(OURS),
    units={
        **dict.fromkeys((f"publish, {how}" for how in (PLAIN, *MODES)), "messages/s"),
        **dict.fromkeys((f"apply_async, {name}" for name in (PLAIN, "with a key")), "tasks/s"),
        **dict.fromkeys((f"consume, {how}" for how in (PLAIN, *MODES)), "messages/s"),
        "bytes of a key": "bytes",
    },
    measure=measure,
    sizes={"publish turns": 40, "turns": 8, "ms": 50, "messages": 1000, "keys": 200_000},
    quick_sizes={"publish turns": 2, "turns": 2, "ms": 25, "messages": 200, "keys": 2000},
    rounds=5,
    apart=True,
)
