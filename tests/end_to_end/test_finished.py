"""A line of each finished task is kept, whatever happens to the worker and its connections. How tasks may end
is in test_failed.py."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kombu_redisdelay import Messages, Selection
from tests.end_to_end.installation import Installation
from tools.harness.process import wait_until
from tools.harness.redis_server import RedisServer

FINISHED = Selection(state="finished")
KEEP: dict[str, Any] = {"broker_transport_options": {"keep_finished": {}}}

#: What a lost connection makes a worker write into its log.
LOST = "Traceback|Error|connection|Connection"
ANYTHING = "."


@pytest.fixture
def site(server: RedisServer, tmp_path: Path) -> Iterator[Installation]:
    with Installation(server, tmp_path) as site:
        yield site


@pytest.fixture
def messages(site: Installation) -> Iterator[Messages]:
    with Messages(site.producer()) as messages:
        yield messages


def lines(messages: Messages) -> Counter[str]:
    return Counter(task.id for task in messages.select(FINISHED))


def test_a_line_does_not_wait_for_the_next_task(site: Installation, messages: Messages) -> None:
    """Also if that occupies the only thread of the worker for long, and then the worker is killed."""
    worker = site.worker(settings=KEEP)
    producer = site.producer()
    producer.send_task("work", ["short"], task_id="short")
    producer.send_task("work", ["long", 600], task_id="long")
    site.wait_started("long")
    wait_until(lambda: lines(messages) == {"short": 1}, 30, "the line")
    worker.kill()
    assert lines(messages) == {"short": 1}


@pytest.mark.parametrize("pool", ["prefork", "threads", "gevent"])
def test_lost_connections_and_the_end(site: Installation, messages: Messages, pool: str) -> None:
    """Each run has one line. The last ones are written before a worker ends in good order."""
    worker = site.worker(pool=pool, concurrency=4, settings=KEEP, expected=LOST)
    producer = site.producer()
    names = [f"{number}" for number in range(400)]
    for number, name in enumerate(names):
        task = "work_late" if number % 2 else "work"
        producer.send_task(task, [name, 0.005], task_id=name)
        if number in (100, 200, 300):
            wait_until(lambda: len(site.ledger.ended()) > number // 2, 30, "some")  # noqa: B023
            site.redis.client_kill_filter(_type="normal", skipme=True)
    site.wait_ended(names, 60)
    worker.stop()
    # A task that comes back after a lost connection runs again.
    assert lines(messages) == Counter(site.ledger.ended())
    assert {task.outcome for task in messages.select(FINISHED)} == {"succeeded"}


def test_what_was_revoked(site: Installation, messages: Messages) -> None:
    """Of tasks that run, with ``terminate``, and of one that a worker has not begun. The result backend does
    not take it of one of them, which does not stay unacked."""
    site.worker(
        pool="prefork", concurrency=2, settings=KEEP, app="tests.end_to_end.failed_app", expected=ANYTHING
    )
    producer = site.producer()
    for name, task in (("runs", "work"), ("unstored", "unstored_work"), ("held", "work")):
        producer.send_task(task, [name, 600], task_id=name)
    site.wait_started("runs")
    site.wait_started("unstored")
    producer.control.revoke("held")
    # One by one: an error of the result backend ends the command, in whichever order Celery goes through ids.
    producer.control.revoke("unstored", terminate=True)
    producer.control.revoke("runs", terminate=True)

    def outcomes() -> dict[str, str]:
        return {task.id: task.outcome for task in messages.select(FINISHED)}

    ended = {"runs": "terminated", "unstored": "terminated", "held": "revoked"}
    wait_until(lambda: outcomes() == ended, 30, "all lines")
    wait_until(lambda: site.unacked() == 0, 30, "that nothing is unacked")
    assert messages.count(Selection(state="failed")) == 0
