"""How long ``Messages.memory()`` takes, and how right it is (docs/memory.rst):
``python -m tools.memory_report``, or with numbers of messages ``python -m tools.memory_report 100000``."""

from __future__ import annotations

import random
import sys
from collections import Counter
from collections.abc import Iterable
from time import perf_counter, process_time
from typing import Any

from celery import Celery

from kombu_redisdelay import Messages
from tools.harness.redis_server import RedisServer

#: Task -> characters of its argument, and of 1,000 messages how many are of it.
KINDS = {"small": (100, 880), "medium": (1000, 117), "large": (100_000, 3)}

#: How often it is measured.
TIMES = 8

#: So many messages of each kind are stored alone, to know what one takes.
ALONE = 2000


def fill(client: Any, app: Celery, store: Any, state: str, count: int) -> dict[str, float]:
    """Put *count* messages into a state, mixed. Returns how many bytes of Redis those of each task take."""
    chosen, keys = random.Random(1), store.keys("celery")
    some: dict[str, list[bytes]] = {}
    for task, (length, _) in KINDS.items():
        for _ in range(20):
            app.send_task(task, ["".join(chosen.choices("abcdefghijklmnopqrstuvwxyz ", k=length))])
            some.setdefault(task, []).append(client.rpop("celery"))
    tasks = chosen.choices(list(KINDS), [parts for _, parts in KINDS.values()], k=count)
    each = {task: _bytes_of_one(client, keys, state, some[task]) for task in KINDS}
    _put(client, keys, state, (chosen.choice(some[task]) for task in tasks))
    return {task: number * each[task] for task, number in Counter(tasks).items()}


def _bytes_of_one(client: Any, keys: Any, state: str, some: list[bytes]) -> float:
    """What one of these takes among others of its kind: Redis counts all of them."""
    _put(client, keys, state, some * (ALONE // len(some)))
    found = 0.0
    for key in (keys.ready, keys.messages, keys.schedule):
        found += (client.memory_usage(key, samples=0) or 0) / ALONE
        client.delete(key)
    return found


def _put(client: Any, keys: Any, state: str, messages: Iterable[bytes]) -> None:
    pipe = client.pipeline(transaction=False)
    for number, message in enumerate(messages):
        if state == "ready":
            pipe.lpush(keys.ready, message)
        else:
            pipe.hset(keys.messages, f"{number:036}", b"0:" + message)
            pipe.zadd(keys.schedule, {f"{number:036}": 9e12 + number})
        if number % 5000 == 0:
            pipe.execute()
    pipe.execute()


def cpu_seconds(client: Any) -> float:
    """Seconds of CPU that the server has used."""
    told = client.info("cpu")
    return float(told["used_cpu_user"] + told["used_cpu_sys"])


def measure(state: str, count: int) -> None:
    with RedisServer() as server:
        app = Celery("measured", broker=server.url(), set_as_current=False)
        app.conf.broker_transport_options = {"message_size_warning": 0}
        client: Any = server.client()
        with Messages(app) as messages:
            sizes = fill(client, app, messages.store, state, count)
            client.config_set("slowlog-log-slower-than", 1000)
            client.config_set("slowlog-max-len", 10_000)
            client.slowlog_reset()
            client.config_resetstat()
            took, errors = [], []
            ours, theirs = process_time(), cpu_seconds(client)
            for _ in range(TIMES):
                began = perf_counter()
                found = messages.memory()
                took.append((perf_counter() - began) * 1000)
                tasks = {each.task: each.bytes for each in found.tasks}
                errors.append({task: tasks.get(task, 0) / size - 1 for task, size in sizes.items()})
            ours, theirs = process_time() - ours, cpu_seconds(client) - theirs
            slow = sorted(entry["duration"] / 1000 for entry in client.slowlog_get(10_000))
            command = "lrange" if state == "ready" else "hrandfield"
            reads = client.info("commandstats")[f"cmdstat_{command}"]
        used = client.info("memory")["used_memory_human"]
        app.close()
    print(f"{count:,} {state}, {used}: ms", *map(round, took), end="; ")
    print(f"of these CPU {ours / TIMES * 1000:.0f} here and {theirs / TIMES * 1000:.0f} at Redis")
    print(f"  {reads['calls'] // TIMES} reads of {reads['usec_per_call']:.0f} us", end="; ")
    print(f"{len(slow)} commands above 1 ms; the slowest ms:", *(f"{each:.1f}" for each in slow[-3:]))
    for task in KINDS:
        print(f"  {task}:", *(f"{each[task]:+.0%}" for each in errors))


def main() -> None:
    for count in [int(each) for each in sys.argv[1:]] or [100_000, 1_000_000]:
        for state in ("ready", "scheduled"):
            measure(state, count)


if __name__ == "__main__":
    main()
