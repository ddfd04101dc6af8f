"""Workers that have no room, or that a task keeps busy: what becomes due is ready all the same, and nothing
looks broken."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from kombu_redisdelay import Queues
from kombu_redisdelay.operations.doctor import Level, examine
from kombu_redisdelay.operations.stats import queue_stats
from tests.end_to_end.installation import Installation
from tools.harness.process import wait_until

#: Seconds that looks are apart at most, and some for a machine that is busy, too.
AT_MOST = 1 + 4


class Busy(NamedTuple):
    """A worker whose tasks end when the test says so.

    Attributes:
        task: sleeps, or computes all the time.
    """

    pool: str
    concurrency: int
    task: str


FLEET = {
    "prefork": Busy("prefork", 2, "work_late"),
    "threads": Busy("threads", 2, "work_late"),
    "gevent": Busy("gevent", 2, "work_late"),
    "eventlet": Busy("eventlet", 2, "work_late"),
    # The others have room, and nobody who looks.
    "solo-computes": Busy("solo", 1, "compute_late"),
    "gevent-computes": Busy("gevent", 20, "compute_late"),
    "eventlet-computes": Busy("eventlet", 20, "compute_late"),
}
PRIORITIES = (0, 9)
LARGE = 300_000


def test_what_becomes_due_is_ready_in_every_pool_and_nothing_is_wrong(
    site: Installation, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    producer = site.producer()
    for queue, busy in FLEET.items():
        site.start_worker(pool=busy.pool, concurrency=busy.concurrency, queues=[queue], prefetch_multiplier=1)
        full = 1 if busy.task == "compute_late" else busy.concurrency
        running = [f"{queue} {number}" for number in range(full)]
        for task in running:
            producer.send_task(busy.task, [task], {"gate": str(gate)}, queue=queue)
    site.wait_started(*(f"{queue} 0" for queue in FLEET))
    wait_until(lambda: all(map(site.unacked, FLEET)), 30, "all of them hold what they run")

    with Queues(producer) as queues:
        queues.pause(["threads"])
        later = []
        for queue in FLEET:
            for priority in PRIORITIES:
                later.append(f"{queue} later {priority}")
                producer.send_task("work", [later[-1]], queue=queue, countdown=2, priority=priority)
        producer.send_task("work", ["large"], queue="prefork", countdown=2, headers={"of": LARGE * "x"})
        later.append("large")
        lateness = 0.0

        def all_ready() -> bool:
            nonlocal lateness
            found = queue_stats(queues.store, FLEET)
            lateness = max(lateness, *(stats.lateness for stats in found))
            return all(stats.ready == len(PRIORITIES) + (stats.queue == "prefork") for stats in found)

        wait_until(all_ready, 30, "what is due is ready, although everybody is busy")
        assert lateness < AT_MOST
        for queue in FLEET:
            step_9 = site.redis.llen(f"{queue}\x06\x169")
            assert (site.redis.llen(queue), step_9) == (1 + (queue == "prefork"), 1), "priorities are kept"
        reasons = {stats.queue: stats.reason for stats in queue_stats(queues.store, FLEET)}
        assert reasons == {queue: "paused" if queue == "threads" else "prefetch full" for queue in FLEET}
        found = examine(queues, list(FLEET))
        assert not [each for each in found if each.level is Level.WRONG and each.queue in FLEET]

        queues.resume(["threads"])
    gate.touch()
    site.wait_ended(later, 60)
    assert site.ledger.early() == []
    assert site.ledger.run_twice() == {}
