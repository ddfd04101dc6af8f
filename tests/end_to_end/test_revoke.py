"""A scheduled task that is revoked leaves the schedule, so that no worker runs it, whatever restarts."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from celery import Celery, chord, signature
from celery.canvas import StampingVisitor
from celery.exceptions import TaskRevokedError
from celery.result import AsyncResult
from kombu import pools

from kombu_redisdelay import Messages, Selection
from tests.end_to_end.installation import Installation
from tools.harness.celery_worker import CeleryWorker
from tools.harness.process import wait_until
from tools.harness.redis_server import RedisServer

HOUR = 3600


@pytest.fixture
def site(server: RedisServer, tmp_path: Path) -> Iterator[Installation]:
    # A producer of an earlier test would believe to have noted its queue in Redis.
    pools.reset()
    with Installation(server, tmp_path, result_backend=server.url("redis")) as site:
        yield site
    pools.reset()


@pytest.fixture
def producer(site: Installation) -> Celery:
    return site.producer()


def start(site: Installation, **options: Any) -> CeleryWorker:
    """A worker that hears of what is revoked. With gevent, it says that it is ready before."""
    worker = site.worker(app="tests.end_to_end.revoking_app", **options)
    control = site.producer().control

    def answers() -> bool:
        return any(worker.name in name for reply in control.ping(timeout=0.5) for name in reply)

    wait_until(answers, 20, "the worker answers a ping")
    return worker


def revoked(site: Installation) -> list[str]:
    return [entry.task for entry in site.ledger.entries("revoked")]


def wait_scheduled(site: Installation, count: int, queue: str = "celery") -> None:
    wait_until(lambda: site.scheduled(queue) == count, 20, f"{count} scheduled in {queue}")


@pytest.mark.parametrize("pool", ["prefork", "threads", "solo", "gevent"])
def test_leaves_the_schedule_and_does_not_run_after_a_restart(
    site: Installation, producer: Celery, pool: str
) -> None:
    worker = start(site, pool=pool, concurrency=2)
    gone = producer.send_task("work", ["gone"], countdown=HOUR)
    stays = producer.send_task("work", ["stays"], countdown=HOUR)
    gone.revoke()
    wait_scheduled(site, 1)
    wait_until(lambda: revoked(site) == [gone.id], 30, "the signal")
    assert gone.state == "REVOKED"
    with pytest.raises(TaskRevokedError):
        gone.get(timeout=20)
    worker.stop()
    with Messages(producer) as delayed:
        assert delayed.deliver_now(ids=[gone.id, stays.id]).by_id == {gone.id: 0, stays.id: 1}
    start(site, pool=pool, concurrency=2)
    site.wait_ended(["stays"])
    assert site.ledger.started() == ["stays"]


def test_one_of_many_workers_says_so(site: Installation, producer: Celery) -> None:
    for _ in range(3):
        start(site, queues=["a", "b"])
    results = [
        producer.send_task("work", [str(n)], countdown=HOUR, queue=queue) for queue in "ab" for n in range(60)
    ]
    stays = producer.send_task("work", ["stays"], countdown=HOUR, queue="a")
    ids = [result.id for result in results]
    producer.control.revoke([*ids, "unknown"])
    wait_scheduled(site, 1, "a")
    wait_scheduled(site, 0, "b")
    wait_until(lambda: len(revoked(site)) >= len(ids), 20, "the signals")
    assert len(producer.control.ping(timeout=20, limit=3)) == 3
    assert sorted(revoked(site)) == sorted(ids)
    assert {result.state for result in results} == {"REVOKED"}
    assert stays.state == "PENDING"


def test_all_messages_with_the_id(site: Installation, producer: Celery) -> None:
    start(site)
    for _ in range(5):
        producer.send_task("work", ["gone"], countdown=HOUR, task_id="same")
    producer.send_task("work", ["stays"], countdown=HOUR, task_id="sam")
    wait_scheduled(site, 6)
    producer.control.revoke("same")
    wait_scheduled(site, 1)


def test_queues_that_the_worker_does_not_consume_from_are_left_alone(
    site: Installation, producer: Celery
) -> None:
    start(site, queues=["a"])
    results = [producer.send_task("work", ["x"], countdown=HOUR, queue=queue) for queue in "ab"]
    producer.control.revoke([result.id for result in results], terminate=True)
    wait_scheduled(site, 0, "a")
    assert producer.control.inspect(timeout=20, limit=1).ping()
    assert site.scheduled("b") == 1


def test_partitions(site: Installation, producer: Celery) -> None:
    options = {"broker_transport_options": {"partitions": {"celery": 3}}}
    producer.conf.update(options)
    start(site, settings=options)
    ids = [producer.send_task("work", ["x"], countdown=HOUR).id for _ in range(20)]
    names = ("celery", "celery#1", "celery#2")
    assert all(map(site.scheduled, names))
    producer.control.revoke(ids)
    for name in names:
        wait_scheduled(site, 0, name)


def test_the_option_switches_it_off(site: Installation, producer: Celery) -> None:
    start(site, settings={"broker_transport_options": {"revoke_scheduled": False}})
    result = producer.send_task("work", ["x"], countdown=5)
    result.revoke()
    inspect = producer.control.inspect(timeout=20, limit=1)
    assert [result.id] in inspect.revoked().values()
    assert site.scheduled() == 1
    # As ever, the worker skips it when it is due.
    wait_until(lambda: revoked(site) == [result.id], 20, "skipped")


def test_what_is_ready_is_skipped_as_ever(site: Installation, producer: Celery) -> None:
    gate = site.directory / "gate"
    start(site, pool="threads", prefetch_multiplier=1)
    producer.send_task("work_late", ["first"], {"gate": str(gate)})
    site.wait_started("first")
    result = producer.send_task("work", ["second"])
    assert site.ready() == 1
    producer.control.revoke(result.id)
    assert [result.id] in producer.control.inspect(timeout=20, limit=1).revoked().values()
    gate.touch()
    wait_until(lambda: revoked(site) == [result.id], 20, "skipped")
    assert site.ledger.started() == ["first"]


def test_a_chord_learns_of_it(site: Installation, producer: Celery) -> None:
    start(site, expected="Chord|TaskRevokedError|Traceback")
    parts = [signature("add", (1, 1), app=producer), signature("add", (2, 2), app=producer)]
    parts[1].set(countdown=HOUR)
    result = chord(parts, app=producer)(signature("total", app=producer))
    wait_scheduled(site, 1)
    producer.control.revoke(result.parent.results[1].id)
    wait_scheduled(site, 0)
    wait_until(lambda: result.state == "FAILURE", 20, "the chord has failed")


class Stamp(StampingVisitor):  # type: ignore[misc]
    def __init__(self, **stamps: Any) -> None:
        self._stamps = stamps

    def on_signature(self, sig: Any, **headers: Any) -> dict[str, Any]:
        return {**self._stamps, "stamped_headers": list(self._stamps)}


def stamped(producer: Celery, countdown: float = HOUR, **stamps: Any) -> AsyncResult[Any]:
    task = signature("work", ("x",), app=producer)
    task.stamp(Stamp(**stamps))
    return task.apply_async(countdown=countdown)


@pytest.mark.parametrize("values", ["Ada", ["Ada", "Bob"]])
def test_by_stamped_headers(site: Installation, producer: Celery, values: Any) -> None:
    for _ in range(2):
        start(site)
    gone = [stamped(producer, customer="Ada"), stamped(producer, customer=["Eve", "Ada"], other=1)]
    stays = [stamped(producer, customer="Adam"), stamped(producer, other="Ada")]
    stays.append(producer.send_task("work", ["Ada"], countdown=HOUR))
    wait_scheduled(site, 5)
    producer.control.revoke_by_stamped_headers({"customer": values})
    wait_scheduled(site, 3)
    wait_until(lambda: len(revoked(site)) == 2, 20, "the signals")
    assert sorted(revoked(site)) == sorted(result.id for result in gone)
    assert {result.state for result in gone} == {"REVOKED"}
    assert {result.state for result in stays} == {"PENDING"}


def test_by_stamped_headers_a_second_time(site: Installation, producer: Celery) -> None:
    for _ in range(2):
        start(site)
    for _ in range(2):
        stamped(producer, customer="Ada")
        wait_scheduled(site, 1)
        producer.control.revoke_by_stamped_headers({"customer": "Ada"})
        wait_scheduled(site, 0)


class TestInspectScheduled:
    """As ``test_Inspect::test_scheduled`` in Celery's own integration tests."""

    def test_says_what_celery_says_of_a_task_in_memory(self, site: Installation, producer: Celery) -> None:
        worker = start(site)
        eta = datetime.now(timezone.utc) + timedelta(hours=1)
        result = producer.send_task("add", [1, 2], {"z": 3}, eta=eta)
        inspect = producer.control.inspect(timeout=20, limit=1)
        [(name, tasks)] = inspect.scheduled().items()
        assert tasks == [
            {
                "eta": eta.isoformat(),
                "priority": 6,
                "request": {
                    "id": result.id,
                    "name": "add",
                    "args": [1, 2],
                    "kwargs": {"z": 3},
                    "type": "add",
                    "hostname": name,
                    "time_start": None,
                    "acknowledged": False,
                    "delivery_info": {
                        "exchange": "",
                        "routing_key": "celery",
                        "priority": 0,
                        "redelivered": False,
                    },
                    "worker_pid": None,
                },
            }
        ]
        assert inspect.query_task(result.id) == {name: {result.id: ["scheduled", tasks[0]["request"]]}}
        assert worker.running

    def test_the_first_hundred_of_all_queues(self, site: Installation, producer: Celery) -> None:
        start(site, queues=["a", "b", "empty"])
        eta = datetime.now(timezone.utc) + timedelta(hours=1)
        ids = [
            producer.send_task(
                "work", [str(n)], eta=eta + timedelta(seconds=n), queue="ab"[n // 3 % 2], task_id=f"id-{n}"
            ).id
            for n in reversed(range(150))
        ]
        [tasks] = producer.control.inspect(timeout=20, limit=1).scheduled().values()
        assert [task["request"]["id"] for task in tasks] == ids[::-1][:100]

    def test_what_is_no_json_is_shown_by_its_text(self, site: Installation, producer: Celery) -> None:
        start(site)
        producer.send_task("work", ["x"], countdown=HOUR, serializer="pickle")
        [[task]] = producer.control.inspect(timeout=20, limit=1).scheduled().values()
        assert (task["request"]["args"], task["request"]["kwargs"]) == ("['x']", "{}")


def test_what_a_worker_has_taken(site: Installation, producer: Celery, tmp_path: Path) -> None:
    """It skips what it has not begun, and with *terminate* ends what runs."""
    worker = start(site, pool="prefork", concurrency=1, prefetch_multiplier=4)
    gate = str(tmp_path / "gate")
    running = producer.send_task("work_late", ["running"], {"gate": gate})
    site.wait_started("running")
    taken = [producer.send_task("work_late", [f"{number}"]).id for number in range(3)]
    with Messages(producer) as messages:
        unacked = Selection(state="unacked", worker=f"*{worker.name}*")
        wait_until(lambda: messages.count(unacked) == 4, 20, "the worker takes all")
        skipped = messages.revoke(ids=taken)
        assert skipped.by_id == dict.fromkeys(taken, 1)
        assert messages.revoke(unacked, terminate=True).count == 4
        wait_until(lambda: messages.count(Selection()) == 0, 30, "all are acked")
    wait_until(lambda: sorted(revoked(site)) == sorted([*taken, running.id]), 20, "the signals")
    assert site.ledger.started() == ["running"]
    assert site.ledger.ended() == []
