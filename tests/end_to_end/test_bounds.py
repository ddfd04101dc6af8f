"""Queues that refuse new work, with real workers, beat, greenlets, and producers of ``redis://`` beside."""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from celery import Celery

from kombu_redisdelay import QueueFull
from tests.end_to_end.installation import ALONE, QUEUE, ROOT, Installation
from tools.harness.process import wait_until

BOUND = 5
DECLARED = {"queue_arguments": {"x-max-length": BOUND, "x-overflow": "reject-publish"}}


def sent(producer: Celery, label: str) -> bool:
    """Whether a task was accepted."""
    try:
        producer.send_task("work_late", [label])
    except QueueFull:
        return False
    return True


def test_what_is_refused_never_runs_and_the_rest_runs_once(site: Installation) -> None:
    queues: dict[str, Any] = {QUEUE: DECLARED}
    ours, stock = site.producer(task_queues=queues), site.producer("redis", task_queues=queues)
    tasks = [f"stock {number}" for number in range(2 * BOUND)]
    for label in tasks:
        assert sent(stock, label), "redis:// knows no bound"
    assert not sent(ours, "refused")
    site.worker(settings={"task_queues": queues})
    for number in range(20 * BOUND):
        label = f"ours {number}"
        # Whoever is refused tries again, as the page advises.
        wait_until(partial(sent, ours, label), 30, "there is no room")
        tasks.append(label)
        assert site.ready() <= 2 * BOUND
    site.wait_ended(tasks)
    assert sorted(site.ledger.started()) == sorted(tasks)


def test_beat_logs_it_and_goes_on(site: Installation, tmp_path: Path) -> None:
    entry = {"task": "work", "schedule": 0.2, "args": ["tick"], "options": {"queue": "periodic"}}
    settings = {
        "beat_schedule": {"tick": entry},
        "task_queues": {"periodic": DECLARED, QUEUE: {}},
    }
    beat = ["-B", "-s", str(tmp_path / "schedule")]
    worker = site.worker(
        settings=settings,
        args=[*ALONE, *beat],
        queues=[QUEUE],
        expected="Traceback|QueueFull|SchedulingError|Message Error",
    )
    told = "queue 'periodic' is full: it has 5 messages, and may have 5"
    wait_until(lambda: worker.log().count(told) >= 2, 30, "nothing was refused")
    assert site.ready("periodic") == BOUND
    site.redis.delete("periodic")
    wait_until(lambda: site.ready("periodic") == BOUND, 30, "beat does not go on")
    worker.kill()


_GREENLETS = """
from gevent import monkey; monkey.patch_all()
import sys
import gevent
from celery import Celery
from kombu import Queue
from kombu_redisdelay import QueueFull

app = Celery("greenlets", broker=sys.argv[1])
app.conf.task_queues = [Queue("q", max_length=100, queue_arguments={"x-overflow": "reject-publish"})]

def publish():
    accepted = 0
    for _ in range(20):
        try:
            app.send_task("work", queue="q")
            accepted += 1
        except QueueFull:
            pass
    return accepted

print(sum(gevent.get() for gevent in gevent.joinall([gevent.spawn(publish) for _ in range(10)])))
"""


def test_greenlets_share_what_their_process_knows(site: Installation) -> None:
    pytest.importorskip("gevent")
    command = [sys.executable, "-c", _GREENLETS, site.server.url()]
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True, timeout=120)
    # Each greenlet may have one on its way that no length tells yet.
    assert 100 <= int(done.stdout) == site.ready("q") < 110
