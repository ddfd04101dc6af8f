"""What comes with Celery, and is started or set beside a worker."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from celery import Celery
from celery.contrib.abortable import AbortableAsyncResult

from kombu_redisdelay import Messages
from tests.neighbours.extensions.shop import Shop, printed
from tools.harness.celery_worker import CeleryWorker
from tools.harness.process import wait_until
from tools.harness.redis_server import RedisServer

APP = """
import time
from celery import Celery
from celery.contrib.abortable import AbortableTask

app = Celery("shop", broker="{broker}", backend="{backend}")


@app.task(base=AbortableTask, bind=True)
def export(self):
    while not self.is_aborted():
        time.sleep(0.01)
    print("aborted")


@app.task(acks_late=True)
def remind(customer, seconds=0):
    time.sleep(seconds)
    print(f"reminded {{customer}}")


@app.task
def fail():
    raise ValueError("in a worker")
"""


@pytest.fixture
def app(shop: Shop, server: RedisServer) -> Celery:
    """The tasks in ``shop_tasks.py``, and an app that calls them."""
    broker, backend = server.url(), server.url("redis", db=1)
    (shop.folder / "shop_tasks.py").write_text(APP.format(broker=broker, backend=backend))
    return Celery("producer", broker=broker, backend=backend, set_as_current=False)


def pytest_of(shop: Shop, *words: str) -> str:
    return shop.run(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *words)


def test_the_fixtures_of_pytest(shop: Shop) -> None:
    assert "2 passed" in pytest_of(shop, "test_worker.py")


def test_a_worker_in_a_thread_leaves_nothing(shop: Shop) -> None:
    (shop.folder / "test_leaks.py").write_text(
        "import gc, os, threading\n"
        "import pytest\n"
        "from test_worker import *\n\n"
        "@pytest.mark.parametrize('round', range(10))\n"
        "def test_round(round, add, celery_worker):\n"
        "    assert add.apply_async([1, 2], countdown=0.1).get(timeout=10) == 3\n"
        # With redis://, too, connections of a worker that has ended are in cycles.
        "    gc.collect()\n"
        "    with open('counts', 'a') as counts:\n"
        "        print(threading.active_count(), len(os.listdir('/proc/self/fd')), file=counts)\n"
    )
    pytest_of(shop, "test_leaks.py", "-k", "round")
    counts = [tuple(map(int, line.split())) for line in (shop.folder / "counts").read_text().splitlines()]
    assert len(counts) == 10
    assert len(set(counts[2:])) == 1, counts


def test_multi(shop: Shop, app: Celery) -> None:
    def multi(command: str) -> str:
        options = ["-A", "shop_tasks", "-l", "INFO", "--pidfile=%n.pid", "--logfile=%n.log", "-c", "1"]
        return shop.run(sys.executable, "-m", "celery", "multi", command, "2", *options)

    def pids() -> set[str]:
        return {path.read_text().strip() for path in shop.folder.glob("*.pid")}

    def logs() -> str:
        return "".join(path.read_text() for path in shop.folder.glob("*.log"))

    multi("start")
    try:
        wait_until(lambda: len(re.findall(r"@\S+ ready\.$", logs(), re.MULTILINE)) == 2, 40, "two workers")
        before = pids()
        app.send_task("shop_tasks.remind", ["Ada", 2])
        wait_until(lambda: "shop_tasks.remind" in logs(), 30, "that it runs")
        multi("restart")
        wait_until(lambda: len(re.findall(r"@\S+ ready\.$", logs(), re.MULTILINE)) == 4, 60, "two others")
        assert not before & pids()
        # A worker stops when its task has ended, so the task runs once.
        app.send_task("shop_tasks.remind", ["Bob"], countdown=1)
        wait_until(lambda: "reminded Bob" in logs(), 20, "the next one")
        assert len(re.findall("reminded Ada$", logs(), re.MULTILINE)) == 1
    finally:
        multi("stopwait")
    assert pids() == set()
    with Messages(app) as queues:
        assert queues.count() == 0


def test_beat_with_a_file(shop: Shop, app: Celery) -> None:
    with (shop.folder / "shop_tasks.py").open("a") as file:
        entry = {"task": "shop_tasks.remind", "schedule": 1, "args": ["Ada"], "options": {"countdown": 1}}
        file.write(f"\napp.conf.beat_schedule = {{'remind': {entry!r}}}\n")
    worker = shop.worker("shop_tasks")
    beat = shop.beat("shop_tasks", "-s", str(Path("beat-schedule")))
    wait_until(lambda: len(printed(worker, "reminded Ada")) >= 2, 20, "two")
    beat.stop()


def test_an_abortable_task(shop: Shop, app: Celery) -> None:
    worker = shop.worker("shop_tasks", pool="threads")
    task = app.send_task("shop_tasks.export", countdown=1)
    wait_until(lambda: f"shop_tasks.export[{task.id}] received" in worker.log(), 20, "that it runs")
    AbortableAsyncResult(task.id, app=app).abort()
    wait_until(lambda: printed(worker, "aborted"), 20, "its end")


def test_a_child_that_ends_after_each_task(shop: Shop, app: Celery) -> None:
    (shop.folder / "shop_short.py").write_text(
        "from shop_tasks import app\n\napp.conf.worker_max_tasks_per_child = 1\n"
    )
    worker = shop.worker("shop_short", pool="prefork", concurrency=2)
    for n in range(10):
        app.send_task("shop_tasks.remind", [n], countdown=n % 2)
    wait_until(lambda: len(printed(worker, r"reminded \d")) == 10, 60, "all")
    assert len(set(printed(worker, r"reminded \d"))) == 10
    children = set(re.findall(r"WARNING/(ForkPoolWorker-\d+)\] reminded", worker.log()))
    assert len(children) == 10
    with Messages(app) as queues:
        wait_until(lambda: queues.count() == 0, 30, "their acks")


def test_a_pool_that_grows(shop: Shop, app: Celery) -> None:
    worker = CeleryWorker("shop_tasks", args=["--autoscale", "4,1"], env=shop.environment, cwd=shop.folder)
    with worker:
        for n in range(8):
            app.send_task("shop_tasks.remind", [n, 1])
        wait_until(lambda: len(printed(worker, r"reminded \d")) == 8, 60, "all")
        children = set(re.findall(r"WARNING/(ForkPoolWorker-\d+)\] reminded", worker.log()))
        assert len(children) > 1


def test_a_traceback_of_the_worker(shop: Shop, app: Celery) -> None:
    with (shop.folder / "shop_tasks.py").open("a") as file:
        file.write("\napp.conf.task_remote_tracebacks = True\n")
    shop.worker("shop_tasks")
    task = app.send_task("shop_tasks.fail", countdown=1)
    with pytest.raises(ValueError, match="in a worker"):
        task.get(timeout=20)
    assert "raise ValueError" in task.traceback
