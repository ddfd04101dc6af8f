"""Keys are deleted under real workers: that costs only what was in them, and no worker ends.

Key by key, with consumers in this process: broker/test_lost_keys.py.
"""

from __future__ import annotations

from itertools import cycle
from pathlib import Path

import pytest

from kombu_redisdelay import Queues
from tests.end_to_end.installation import QUEUE, Installation
from tools.harness.process import wait_until

#: So short that workers look at each other, and maintain the queue, each second.
SHORT = {"broker_transport_options": {"visibility_timeout": 3}}
UNIQUE = {"x-unique": "u", "x-unique-while": "done"}

#: Those that have no message in them.
WITHOUT_MESSAGES = (
    *(
        "consumers",
        "wake",
        "history",
        "schedule",
        "duplicates",
        "unknown",
        "unique",
        "running",
        "fair",
        "turns:0",
    ),
    *("limited", "active", "unacked-keys", "earlier", "tats", "alarms", "claim:unlisted"),
)


def key(name: str) -> str:
    return f"redisdelay:{{{QUEUE}}}:{name}"


def test_what_a_killed_worker_held_comes_back(site: Installation, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    producer = site.producer()
    first = site.worker(settings=SHORT)
    producer.send_task("work_late", ["held"], kwargs={"gate": str(gate)}, headers=UNIQUE)
    site.wait_started("held")
    first.kill()
    assert site.redis.delete(key("consumers")) == 1
    gate.touch()
    site.worker(settings=SHORT)
    site.wait_ended(["held"])
    # Before, its key drops another one.
    wait_until(lambda: site.unacked() == 0, 20, "the ack")
    producer.send_task("work_late", ["later"], headers=UNIQUE)
    site.wait_ended(["held", "later"])


def test_keys_that_have_lost_their_turns_go_on(site: Installation, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    producer = site.producer()
    with Queues(producer) as queues:
        queues.make_fair(QUEUE)
    site.worker(settings=SHORT, prefetch_multiplier=1)
    producer.send_task("work_late", ["held"], kwargs={"gate": str(gate)})
    site.wait_started("held")
    tasks = [f"{tenant}{number}" for tenant in "ab" for number in range(3)]
    for task in tasks:
        producer.send_task("work_late", [task], headers={"x-key": task[0]})
    wait_until(lambda: site.redis.exists(key("turns:0")), 20, "turns")
    site.redis.delete(key("turns:0"))
    producer.send_task("work_late", ["b3"], headers={"x-key": "b"})
    gate.touch()
    site.wait_ended(["held", *tasks, "b3"])


@pytest.mark.thorough
@pytest.mark.parametrize("pool", ["solo", "prefork", "threads", "gevent"])
def test_keys_without_messages_under_load(site: Installation, pool: str) -> None:
    producer = site.producer()
    with Queues(producer) as queues:
        queues.make_fair(QUEUE)
        queues.limit_keys(QUEUE, concurrency=2)
    workers = [
        site.worker(settings=SHORT, pool=pool, concurrency=1 if pool == "solo" else 2, prefetch_multiplier=1)
        for _ in range(2)
    ]
    tasks = []
    for number, name in zip(range(len(WITHOUT_MESSAGES) * 6), cycle(WITHOUT_MESSAGES), strict=False):
        task = f"{'abc'[number % 3]}{number}"
        producer.send_task(
            "work_late",
            [task, 0.05],
            headers={"x-key": task[0]},
            countdown=1 if number % 5 == 0 else None,
        )
        tasks.append(task)
        site.redis.delete(key(name))
    site.wait_ended(tasks)
    wait_until(lambda: site.unacked() == 0, 20, "acks")
    assert all(worker.running for worker in workers)
