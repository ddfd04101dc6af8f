"""Tasks in threads and greenlets that end in a way that Celery's pool does not notice: their messages are
settled all the same, and the worker goes on."""

from __future__ import annotations

from pathlib import Path

import pytest

from kombu_redisdelay import Messages, Queues, Selection
from tests.end_to_end.installation import Installation
from tools.harness.process import wait_until
from tools.harness.redis_server import RedisServer

POOLS = pytest.mark.parametrize("pool", ["threads", "gevent", "eventlet"])
ANYTHING = "."
#: More of each kind than the worker may hold, so that it would take nothing any more.
SLOTS, TIMES = 2, 3
SETTINGS = {
    "worker_prefetch_multiplier": 1,
    "broker_transport_options": {"delivery_limit": 2, "retry_wait": 0},
}
GOOD = [f"good {number}" for number in range(4)]


@POOLS
def test_a_worker_takes_no_harm(site: Installation, pool: str) -> None:
    site.worker(pool=pool, concurrency=SLOTS, settings=SETTINGS, expected=ANYTHING)
    producer = site.producer()
    with Queues(producer) as queues:
        # What was lost would use up the limit.
        queues.limit("celery", concurrency=SLOTS)
        ended = {"SystemExit": 1, "CancelledError": 1, "Unheard": 1, "Unspeakable": 1, "hook": 1}
        # Celery itself raises what is out of memory once more.
        ended["MemoryError"] = 2
        for number in range(TIMES):
            for kind in ended:
                if kind == "hook":
                    producer.send_task("fail_with_hook", [f"{kind} {number}"])
                else:
                    producer.send_task("leave", [f"{kind} {number}", kind])
        for label in GOOD:
            producer.send_task("work_late", [label])
        site.wait_ended(GOOD)
        wait_until(lambda: (site.ready(), site.unacked()) == (0, 0), 30, "that nothing is left")
        started = [entry.task for entry in site.ledger.entries("started")]
        # As with prefork, the task has failed.
        expected = {f"{kind} {n}": times for kind, times in ended.items() for n in range(TIMES)}
        assert {task: started.count(task) for task in expected} == expected
        dead = sorted(letter.args for letter in Messages(queues).select(Selection(state="dead")))
        assert dead == [f"['MemoryError {number}', 'MemoryError']" for number in range(TIMES)]


@POOLS
def test_the_result_backend_is_away(site: Installation, pool: str, tmp_path: Path) -> None:
    with RedisServer() as results:
        backend = {
            "result_backend": results.url("redis"),
            "result_backend_transport_options": {"retry_policy": {"timeout": 0.1, "max_retries": 1}},
            "broker_transport_options": {"retry_wait": 0.1},
        }
        site.worker(pool=pool, concurrency=SLOTS, settings={**SETTINGS, **backend}, expected=ANYTHING)
        producer = site.producer()
        gate = tmp_path / "gate"
        for number in range(SLOTS * TIMES):
            producer.send_task("work_late", [f"odd {number}"], kwargs={"gate": str(gate)})
        site.wait_started("odd 0", "odd 1")
        results.kill()
        gate.touch()
        site.wait_started(*(f"odd {number}" for number in range(SLOTS * TIMES)))
        results.restart()
        for label in GOOD:
            producer.send_task("work_late", [label])
        site.wait_ended(GOOD)
        wait_until(lambda: (site.ready(), site.scheduled(), site.unacked()) == (0, 0, 0), 60, "the rest")


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_a_result_cannot_be_kept_under_such_an_id(site: Installation, pool: str) -> None:
    settings = {"result_backend": site.server.url("redis"), "task_track_started": True}
    site.worker(pool=pool, concurrency=SLOTS, settings=settings, expected="Moved a")
    producer = site.producer()
    ids = [5, "", None, "\ud800"]
    for id in ids:
        producer.send_task("work_late", [f"odd {id!r}"], headers={"id": id}, queue="aside")
    for _ in ids:
        site.redis.execute_command("LMOVE", "aside", "celery", "RIGHT", "LEFT")
    producer.send_task("work_late", ["good"])
    site.wait_ended(["good"])
    with Queues(producer) as queues:
        wait_until(
            lambda: Messages(queues).count(Selection(state="dead")) == len(ids), 30, "the dead letters"
        )
        reasons = {letter.reason for letter in Messages(queues).select(Selection(state="dead"))}
    assert reasons == {"id is empty or no text, and the result is kept under it"}
    assert {entry.task for entry in site.ledger.entries("started")} == {"good"}
