"""A message whose callback ends with an exception has failed, whatever that makes of the worker: it becomes
a dead letter after ``delivery_limit`` deliveries, and others are served meanwhile."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from kombu.connection import Connection
from kombu.entity import Queue
from kombu.mixins import ConsumerMixin

from tests.end_to_end.installation import QUEUE, Installation
from tools.harness.process import wait_until

LIMIT = 3
SETTINGS = {"broker_transport_options": {"delivery_limit": LIMIT}}
GOOD = [f"good {number}" for number in range(5)]

#: Whatever a worker says when it goes down.
ANYTHING = "."


def dead(site: Installation) -> list[bytes]:
    return site.dead()


def put_before_good_ones(site: Installation, message: dict[str, Any]) -> None:
    site.redis.execute_command("LPUSH", QUEUE, json.dumps(message))
    producer = site.producer()
    for label in GOOD:
        producer.send_task("work_late", [label])


def only_the_good_ones_ran(site: Installation) -> None:
    [letter] = dead(site)
    assert letter.split(b"\n")[0].decode().split(" ", 3)[1::2] == [
        str(LIMIT),
        f"delivery limit of {LIMIT} reached",
    ]
    assert set(site.ledger.ended()) == set(GOOD)
    wait_until(lambda: (site.ready(), site.unacked()) == (0, 0), 30, "that nothing is left")


def is_over(site: Installation) -> bool:
    return set(GOOD) <= set(site.ledger.ended()) and bool(dead(site))


def celery_message(**headers: Any) -> dict[str, Any]:
    return {
        "body": "W1tdLCB7fSwge31d",
        "content-encoding": "utf-8",
        "content-type": "application/json",
        "headers": {"task": "work", "id": "poison", **headers},
        "properties": {"body_encoding": "base64", "delivery_tag": "d", "delivery_info": {}},
    }


def without(name: str) -> dict[str, Any]:
    return {key: value for key, value in celery_message().items() if key != name}


def without_id() -> dict[str, Any]:
    message = celery_message()
    del message["headers"]["id"]
    return message


#: What a worker must refuse -> the reason.
REFUSED: list[tuple[dict[str, Any], str]] = [
    # Each alone ended a worker, or made it connect again.
    ({"properties": {}}, "'body' is missing or not a string"),
    ({**celery_message(), "content-encoding": 5}, "'content-encoding' is not a string"),
    ({**celery_message(), "content-type": ["x"]}, "'content-type' is not a string"),
    (celery_message(timelimit="x"), "header 'timelimit' is not two numbers of seconds"),
    (celery_message(stamped_headers=5), "header 'stamped_headers' is not a list of strings"),
    (celery_message(task=["work"]), "header 'task' is not a string"),
    (celery_message(shadow=["work"]), "header 'shadow' is not a string"),
    (without_id(), "header 'id' is missing"),
    (
        {**celery_message(), "body": "W10="},
        "body is not a list of arguments, keyword arguments, and what else belongs to the task",
    ),
    (without("content-type"), "content-type is missing, so the body was not decoded"),
    (
        {**celery_message(), "body": "[[], {}, {}]"},
        "body is not in Base64, as 'body_encoding' says: it is plain JSON",
    ),
    (
        {**celery_message(), "properties": {**celery_message()["properties"], "body_encoding": "gzip"}},
        "body_encoding 'gzip' is none that kombu knows",
    ),
]


@pytest.mark.parametrize("pool", ["solo", "prefork", "threads", "gevent", "eventlet"])
def test_what_celery_stumbles_over_is_a_dead_letter_at_once(site: Installation, pool: str) -> None:
    worker = site.worker(pool=pool, settings=SETTINGS, expected="Moved a")
    pid = worker.pid
    for message, _ in REFUSED:
        site.redis.execute_command("LPUSH", QUEUE, json.dumps(message))
    producer = site.producer()
    for label in GOOD:
        producer.send_task("work_late", [label])
    site.wait_ended(GOOD)
    wait_until(lambda: len(dead(site)) == len(REFUSED), 30, "the dead letters")
    found = {
        letter.partition(b"\n")[2]: letter.split(b"\n")[0].decode().split(" ", 3) for letter in dead(site)
    }
    assert {payload: said[3] for payload, said in found.items()} == {
        json.dumps(message).encode(): reason for message, reason in REFUSED
    }
    assert {said[1] for said in found.values()} == {"0"}, "none was a failed delivery"
    wait_until(lambda: (site.ready(), site.unacked()) == (0, 0), 30, "that nothing is left")
    assert worker.running
    assert worker.pid == pid


@pytest.mark.parametrize(
    "kind",
    ["SystemExit", "KeyboardInterrupt", "GeneratorExit", "WorkerShutdown", "WorkerTerminate", "Unheard"],
)
def test_a_task_that_ends_a_solo_worker(site: Installation, kind: str) -> None:
    """Or would end it: after GeneratorExit, and what nobody knows, the worker goes on."""
    a_task_that_ends_its_worker(site, kind, "solo")


@pytest.mark.parametrize("kind", ["WorkerShutdown", "WorkerTerminate"])
def test_a_task_that_ends_a_gevent_worker(site: Installation, kind: str) -> None:
    a_task_that_ends_its_worker(site, kind, "gevent")


def a_task_that_ends_its_worker(site: Installation, kind: str, pool: str) -> None:
    producer = site.producer()
    producer.send_task("leave", ["poison", kind])
    for label in GOOD:
        producer.send_task("work_late", [label])
    site.supervise(
        lambda: is_over(site), 40, "the end of everything", pool=pool, settings=SETTINGS, expected=ANYTHING
    )
    deliveries = [entry.deliveries for entry in site.ledger.entries("started") if entry.task == "poison"]
    assert deliveries == [None, *range(1, LIMIT)]
    only_the_good_ones_ran(site)


class Application(ConsumerMixin):
    """A plain kombu consumer. It fails for one message, with *error*."""

    def __init__(self, url: str, error: type[BaseException]) -> None:
        self.connection = Connection(url, transport_options=SETTINGS["broker_transport_options"])
        self._error = error
        self._deadline = time.monotonic() + 40
        self.handled: list[str] = []
        self.failed = 0

    def get_consumers(self, consumer: Any, channel: Any) -> list[Any]:
        return [consumer([Queue(QUEUE)], callbacks=[self.handle])]

    def handle(self, body: str, message: Any) -> None:
        if body == "poison":
            self.failed += 1
            raise self._error("the database is down")
        self.handled.append(body)
        message.ack()

    def resumed(self, before: Application) -> Application:
        """Another process would count on."""
        self.handled, self.failed = before.handled, before.failed
        return self

    @property
    def should_stop(self) -> bool:
        return (len(self.handled) >= len(GOOD) and self.failed >= LIMIT) or time.monotonic() > self._deadline

    @should_stop.setter
    def should_stop(self, value: bool) -> None:
        """The base class sets it."""


@pytest.mark.parametrize("error", [OSError, ConnectionError, KeyError, ValueError])
def test_a_plain_consumer(site: Installation, error: type[Exception]) -> None:
    with Connection(site.server.url()) as connection, connection.SimpleQueue(QUEUE) as queue:
        for body in ("poison", *GOOD):
            queue.put(body)
    application = Application(site.server.url(), error)
    while not application.should_stop:
        try:
            application.run()
        except (ValueError, KeyError):
            # kombu takes the others for lost connections, and KeyError from 5.7 on.
            application = Application(site.server.url(), error).resumed(application)
    wait_until(lambda: dead(site), 30, "the dead letter")
    assert sorted(application.handled) == sorted(GOOD)
    assert application.failed == LIMIT
    wait_until(lambda: (site.ready(), site.unacked()) == (0, 0), 30, "that nothing is left")
