"""A task that a worker does not know is not lost: it waits for a worker that knows it. What no worker can use
is a dead letter, with the reason."""

from __future__ import annotations

import gc
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from kombu.common import Broadcast
from kombu.entity import Exchange

from kombu_redisdelay import Messages, Selection
from tests.end_to_end.installation import QUEUE, Installation
from tools.harness.process import wait_until
from tools.harness.redis_server import RedisServer

NEWER = "tests.end_to_end.newer_app"
#: What Celery says when it gives a task up.
GIVEN_UP = "unregistered|Traceback|KeyError|no worker can handle"


@pytest.fixture
def site(server: RedisServer, tmp_path: Path) -> Iterator[Installation]:
    with Installation(server, tmp_path, result_backend=server.url("redis")) as site:
        yield site


def options(**transport: Any) -> dict[str, Any]:
    return {"broker_transport_options": transport}


def dead(producer: Celery) -> dict[str | None, str]:
    with Messages(producer) as queues:
        return {letter.task: letter.reason for letter in queues.select(Selection(state="dead"))}


def history(site: Installation, field: str) -> int:
    return int(site.redis.hget(f"redisdelay:{{{QUEUE}}}:history", field) or 0)


def entries(site: Installation) -> int:
    return int(site.redis.zcard(f"redisdelay:{{{QUEUE}}}:unknown"))


@pytest.mark.parametrize(
    ("pool", "late"),
    [
        *(("prefork", True), ("threads", False), ("gevent", True), ("eventlet", False)),
        *(
            pytest.param(pool, late, marks=pytest.mark.thorough)
            for pool, late in (
                *(("prefork", False), ("threads", True), ("gevent", False), ("eventlet", True)),
                *(("solo", False), ("solo", True)),
            )
        ),
    ],
)
def test_a_rolling_deploy_loses_nothing(site: Installation, pool: str, late: bool) -> None:
    settings = {"task_acks_late": late}
    old = site.worker(pool=pool, concurrency=2, settings=settings)
    producer = site.producer()
    count = 30
    known = [f"known {number}" for number in range(count)]
    newer = [f"newer {number}" for number in range(count)]
    results = []
    for one, other in zip(known, newer, strict=True):
        results.append(producer.send_task("work", [one]))
        results.append(producer.send_task("newer", [other]))
    results.append(producer.send_task("newer", ["soon"], countdown=1))
    site.wait_ended(known)
    wait_until(lambda: entries(site) == count + 1, 30, "that all newer ones wait")
    assert (site.ready(), site.unacked(), site.scheduled()) == (0, 0, count + 1)
    assert {result.state for result in results} == {"SUCCESS", "PENDING"}
    assert old.log().count("does not know the task 'newer'") == 1
    with Messages(producer) as queues:
        reasons = {message.reason for message in queues.select(Selection(state="scheduled"))}
    assert reasons == {"unknown task"}
    site.worker(pool=pool, concurrency=2, app=NEWER, settings=settings)
    site.wait_ended([*newer, "soon"])
    wait_until(lambda: {r.state for r in results} == {"SUCCESS"}, 30, "the results")
    assert site.ledger.run_twice() == {}
    # Celery 5.5 asks the server for ever when they are collected, and it will be gone.
    results.clear()
    gc.collect()
    assert (entries(site), history(site, "failed"), dead(producer)) == (0, 0, {})


def test_an_old_worker_that_is_killed_takes_none_with_it(site: Installation) -> None:
    settings = {"task_acks_late": True, **options(visibility_timeout=3)}
    old = site.worker(settings=settings)
    producer = site.producer()
    newer = [f"newer {number}" for number in range(200)]
    for label in newer:
        producer.send_task("newer", [label])
    wait_until(lambda: entries(site) > 20, 30, "that some wait")
    old.kill()
    site.worker(settings=settings)
    site.worker(app=NEWER, settings=settings)
    site.wait_ended(newer)
    assert site.ledger.run_twice() == {}
    assert dead(producer) == {}


def test_connections_that_are_lost_are_no_failed_deliveries(site: Installation) -> None:
    site.worker(expected="Connection|connection|Traceback|Error|not confirmed")
    producer = site.producer()
    newer = [f"newer {number}" for number in range(300)]
    for label in newer:
        producer.send_task("newer", [label])
    for _ in range(5):
        before = entries(site)
        wait_until(lambda before=before: entries(site) > before or entries(site) == len(newer), 30, "more")  # type: ignore[misc]
        site.redis.client_kill_filter(_type="normal", skipme=True)
    site.worker(app=NEWER)
    site.wait_ended(newer)
    assert site.ledger.run_twice() == {}
    assert (history(site, "failed"), dead(producer)) == (0, {})


def test_it_is_given_up_and_can_be_requeued(site: Installation) -> None:
    settings = options(unknown_task_wait=2)
    site.worker(settings=settings, expected=GIVEN_UP)
    producer = site.producer()
    result = producer.send_task("newer", ["a"])
    wait_until(lambda: entries(site) == 1, 30, "that it waits")
    assert result.state == "PENDING"
    wait_until(lambda: dead(producer), 30, "the dead letter")
    assert dead(producer) == {"newer": "no worker knows the task newer"}
    wait_until(lambda: result.state == "FAILURE", 30, "the result")
    with Messages(producer) as letters:
        assert letters.requeue(ids=[result.id]).count == 1
        # It has the whole time again.
        wait_until(lambda: entries(site) == 1, 30, "that it waits again")
        wait_until(lambda: dead(producer), 30, "the dead letter")
        site.worker(app=NEWER, settings=settings)
        assert letters.requeue(ids=[result.id]).count == 1
    site.wait_ended(["a"])
    # The old result would not ask again.
    wait_until(lambda: producer.AsyncResult(result.id).state == "SUCCESS", 30, "the result")


def test_what_no_worker_can_use(site: Installation) -> None:
    """And what waits can be revoked, cancelled, or expire. One worker is enough for all of it."""
    worker = site.worker(expected=f"{GIVEN_UP}|Error|Refusing|decode|CRITICAL|Unknown message|Rejected")
    producer = site.producer(accept_content=["json", "pickle"])
    producer.send_task("work", ["pickled"], serializer="pickle")
    with producer.connection_for_write() as connection:
        publish = connection.Producer(routing_key=QUEUE).publish
        publish({"not": "a task"}, headers={"id": "plain"})
        publish(b"\xff", headers={"id": "bytes"}, content_type="application/json", content_encoding="utf-8")
        publish([[], {}, {}], headers={"id": "number", "task": 5, "lang": "py"})
    names = ["a" * 5000, "a\x1fb", "\x1b[31m", "ä b"]
    for number, name in enumerate(names):
        producer.send_task(name, task_id=f"odd {number}")
    wait_until(lambda: entries(site) == len(names), 30, "that those with odd names wait")
    wait_until(lambda: len(dead(producer)) and site.unacked() == 0 and site.ready() == 0, 30, "the others")
    with Messages(producer) as queues:
        reasons = {letter.id: letter.reason for letter in queues.select(Selection(state="dead"))}
    assert len(reasons) == 4
    assert reasons.pop("plain").startswith("not a task of Celery")
    assert reasons.pop("bytes").startswith("cannot be decoded: ")
    assert reasons.pop("number") == "header 'task' is not a string"
    [reason] = reasons.values()
    assert reason.startswith("not a valid task: ContentDisallowed: ")
    assert worker.running
    assert worker.log().count("no worker can handle") == 4
    with Messages(producer) as delayed:
        assert delayed.cancel(ids=["odd 0"])
    site.redis.execute_command("DEL", f"redisdelay:{{{QUEUE}}}:dead:index")
    # One that a newer worker would run is revoked: it leaves the schedule.
    revoked = producer.send_task("newer", ["revoked"])
    expired = producer.send_task("newer", ["expired"], expires=1)
    expires_at = time.time() + 1
    wait_until(lambda: entries(site) >= 5, 30, "that they wait")
    with Messages(producer) as delayed:
        wait_until(lambda: delayed.get(revoked.id) is not None, 30, "that it waits")
        revoked.revoke()
        wait_until(lambda: delayed.get(revoked.id) is None, 30, "that it is taken out")
    wait_until(lambda: revoked.state == "REVOKED", 30, "the result")
    wait_until(lambda: time.time() > expires_at, 30, "that it is too late for the other")
    site.worker(app=NEWER)
    wait_until(lambda: expired.state == "REVOKED", 30, "that it has expired")
    assert site.ledger.started() == []


def test_an_app_may_decide_itself(site: Installation) -> None:
    worker = site.worker(app="tests.end_to_end.deciding_app")
    producer = site.producer()
    producer.send_task("newer", ["a"])
    wait_until(lambda: "decided by the app" in worker.log(), 30, "that it decides")
    wait_until(lambda: site.unacked() == 0, 30, "the ack")
    assert site.scheduled() == 0


def test_a_broadcast_is_discarded_as_ever(site: Installation) -> None:
    """It is not kept anywhere, so it cannot be left to others."""
    workers = [site.worker(app="tests.end_to_end.broadcasting_app", expected=GIVEN_UP) for _ in range(2)]
    producer = site.producer(task_queues=[Broadcast("news")])
    declare = [Exchange("news", "fanout")]
    producer.send_task("newer", ["a"], queue="news", declare=declare)
    producer.send_task("work", ["b"], queue="news", declare=declare)
    wait_until(lambda: Counter(site.ledger.ended()) == {"b": 2}, 30, "that both go on")
    assert all("unregistered" in worker.log() for worker in workers)
    assert not site.redis.keys("*:unknown")
