"""Whatever the application's own code raises for a message, the worker goes on: the delivery has failed, and
the message becomes a dead letter after ``delivery_limit`` of these."""

from __future__ import annotations

import json
from collections import Counter

import pytest
from kombu.connection import Connection

from tests.end_to_end.installation import QUEUE, Installation
from tools.harness.process import wait_until

POOLS = {"prefork": 2, "solo": 1, "threads": 2, "gevent": 10, "eventlet": 10}
#: What the app of the workers knows (`failing_app.py`).
BESIDE = "beside"
KINDS = ("ConnectionError", "OSError", "KeyError", "ValueError", "Unheard")

LIMIT = 2
SETTINGS = {"broker_transport_options": {"delivery_limit": LIMIT, "retry_wait": 0}}
GOOD = [f"good {number}" for number in range(10)]
#: Of each kind, so that a place in the pool that is not given back is missed.
EACH = 3


def dead(site: Installation, queue: str) -> list[bytes]:
    return site.dead(queue)


@pytest.mark.parametrize("pool", POOLS)
def test_the_worker_goes_on(site: Installation, pool: str) -> None:
    worker = site.worker(
        app="tests.end_to_end.failing_app",
        pool=pool,
        concurrency=POOLS[pool],
        settings=SETTINGS,
        expected=".",
    )
    pid = worker.pid
    producer = site.producer()
    for kind in KINDS:
        for number in range(EACH):
            producer.send_task("fails_received", [kind])
            producer.send_task("fails_handed", [kind])
            # From a timer, not from the callback.
            producer.send_task("fails_handed", [kind], countdown=0.1)
            producer.send_task("work_late", [f"between {kind} {number}"])
    with Connection(site.server.url()) as connection, connection.SimpleQueue(BESIDE) as beside:
        for body in (*KINDS, "good"):
            beside.put({"what": body})
    for label in GOOD:
        producer.send_task("work_late", [label])

    site.wait_ended(GOOD, timeout=60)
    wait_until(lambda: len(dead(site, QUEUE)) == 3 * EACH * len(KINDS), 60, "the dead letters")
    wait_until(lambda: len(dead(site, BESIDE)) == len(KINDS), 60, "those of the other consumer")
    wait_until(lambda: list(site.ledger.entries("beside")), 30, "its good message")
    wait_until(
        lambda: (site.ready(), site.unacked(), site.scheduled()) == (0, 0, 0), 30, "that nothing is left"
    )
    assert worker.running
    assert worker.pid == pid
    log = worker.log()
    assert "onnection to broker lost" not in log
    assert log.count("The worker goes on") == LIMIT * (3 * EACH + 1) * len(KINDS)
    assert log.count("the application's own") >= LIMIT * (3 * EACH + 1) * len(KINDS)
    assert {letter.split(b" ", 3)[1] for letter in dead(site, QUEUE)} == {b"%d" % LIMIT}
    assert Counter(
        json.loads(letter.partition(b"\n")[2])["headers"]["task"] for letter in dead(site, QUEUE)
    ) == {
        "fails_received": EACH * len(KINDS),
        "fails_handed": 2 * EACH * len(KINDS),
    }
    # The worker counts none of them as waiting for the pool.
    [reserved] = producer.control.inspect(timeout=5).reserved().values()
    assert reserved == []


@pytest.mark.parametrize("pool", ["prefork", "gevent"])
def test_what_comes_over_pubsub(site: Installation, pool: str) -> None:
    """Celery's own consumers of events and of remote control stumble over it."""
    worker = site.worker(pool=pool, concurrency=POOLS[pool], settings=SETTINGS, expected=".", args=())
    pid = worker.pid
    producer = site.producer()
    wait_until(lambda: producer.control.ping(timeout=1), 60, "an answer to remote control")
    message = {"body": "5", "content-type": "application/json", "content-encoding": "utf-8", "headers": {}}
    properties = [{}, {"delivery_info": {"routing_key": "worker.heartbeat"}, "delivery_tag": "1"}]
    for channel in ("/0.celeryev/worker.heartbeat", "/0.celeryev/worker.online", "/0.celery.pidbox"):
        for some in properties:
            for body in ("5", "[]", "{}", "not JSON", ""):
                data = json.dumps({**message, "body": body, "properties": some})
                site.redis.execute_command("PUBLISH", channel, data)
    for label in GOOD:
        producer.send_task("work", [label])
    site.wait_ended(GOOD)
    wait_until(lambda: producer.control.ping(timeout=1), 60, "an answer to remote control")
    assert worker.running
    assert worker.pid == pid
    assert "onnection to broker lost" not in worker.log()
