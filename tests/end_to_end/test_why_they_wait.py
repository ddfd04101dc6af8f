"""What ``stats`` says of the queues of a worker that takes nothing."""

from __future__ import annotations

from pathlib import Path

from kombu_redisdelay import Messages
from kombu_redisdelay.operations.stats import queue_stats
from tests.broker.rig import with_count
from tests.end_to_end.installation import Installation
from tools.harness.process import wait_until

QUEUES = ("celery", "other", "newer")


def test_a_worker_that_holds_one_alone_and_a_task_that_it_does_not_know(
    site: Installation, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    # The pool has room for more: it is not full.
    site.worker(pool="threads", concurrency=4, queues=QUEUES, expected="does not know the task|Isolated")
    producer = site.producer()
    producer.send_task("newer", ["newer"], queue="newer")
    wait_until(lambda: site.scheduled("newer"), 30, "that it waits")
    # As if three workers had died that held it.
    producer.send_task("work_late", ["suspect", 0, str(gate)], queue="aside")
    message = site.redis.execute_command("RPOP", "aside").decode()
    site.redis.lpush("other", with_count(message, 3, lost=3))
    site.wait_started("suspect")
    for queue in ("celery", "other"):
        producer.send_task("work", [queue], queue=queue)
    with Messages(producer) as queues:

        def reasons() -> dict[str, str | None]:
            return {stats.queue: stats.reason for stats in queue_stats(queues.store, QUEUES)}

        expected = {"celery": "isolated", "other": "isolated", "newer": "unknown task"}
        wait_until(lambda: reasons() == expected, 40, "the reasons")
        gate.touch()
        site.wait_ended(["suspect", "celery", "other"])
        wait_until(
            lambda: reasons() == {**dict.fromkeys(QUEUES), "newer": "unknown task"}, 30, "that it goes on"
        )
