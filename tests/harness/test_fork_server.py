"""Workers that are forked from a process that has imported Celery are as those that are started."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.end_to_end.installation import Installation
from tools.harness.process import wait_until
from tools.harness.redis_server import RedisServer


@pytest.fixture
def site(server: RedisServer, tmp_path: Path) -> Iterator[Installation]:
    with Installation(server, tmp_path) as site:
        yield site


def files_of(pid: int) -> set[str]:
    found = set()
    for each in Path(f"/proc/{pid}/fd").iterdir():
        # It may be closed meanwhile.
        with suppress(FileNotFoundError):
            found.add(os.readlink(each))
    return found


@pytest.mark.parametrize("pool", ["prefork", "solo", "threads", "gevent"])
def test_two_at_once_share_nothing(site: Installation, pool: str) -> None:
    workers = [site.worker(pool=pool, concurrency=2, queues=[name], prefetch_multiplier=1) for name in "ab"]
    for worker in workers:
        assert os.getsid(worker.pid) == worker.pid
        assert Path(os.readlink(f"/proc/{worker.pid}/fd/0")) == Path(os.devnull)
    sockets = [files_of(worker.pid) for worker in workers]
    assert not [each for each in sockets[0] & sockets[1] if each.startswith(("socket:", "pipe:"))]
    producer = site.producer()
    for number in range(20):
        producer.send_task("work_late", [f"{number}"], queue="ab"[number % 2])
    site.wait_ended([f"{number}" for number in range(20)])
    workers[0].stop()
    os.kill(workers[1].pid, signal.SIGKILL)
    wait_until(lambda: not workers[1].running, 30, "its end")
    with pytest.raises(RuntimeError, match="ended with status -9"):
        workers[1].wait_ready()


def test_one_that_is_killed_as_soon_as_it_is_known(site: Installation) -> None:
    """It leads its group by then. Else it would outlive the kill, and be waited for."""
    for _ in range(20):
        worker = site.start_worker(pool="solo")
        assert os.getpgid(worker.pid) == worker.pid
        worker.kill()


PROGRAM = """
import sys, time
from pathlib import Path
from tools.harness.celery_worker import CeleryWorker
from tests.end_to_end.environment import Environment

environment = Environment(sys.argv[1], Path(sys.argv[2])).variables()
worker = CeleryWorker("tests.end_to_end.app", env=environment, preloaded=True)
worker.start()
worker.wait_ready()
print(worker.pid, flush=True)
time.sleep(600)
"""


def test_they_end_with_the_process_that_has_started_them(server: RedisServer, tmp_path: Path) -> None:
    command = [sys.executable, "-c", PROGRAM, server.url(), str(tmp_path / "ledger")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        worker = psutil.Process(int(process.stdout.readline()))
        family = [worker, *worker.children(recursive=True)]
        process.kill()
    _, alive = psutil.wait_procs(family, timeout=20)
    assert not alive
