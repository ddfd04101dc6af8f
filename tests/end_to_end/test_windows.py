"""What Windows has not is not used: on a simulated one, whose Python lacks it. Nobody tried a real one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.end_to_end.environment import Environment
from tests.end_to_end.installation import ROOT, Installation
from tools.harness.celery_worker import CeleryWorker

pytestmark = pytest.mark.once


@pytest.fixture
def on_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", f"{Path(__file__).parent / 'windows'}:{ROOT}")


@pytest.mark.usefixtures("on_windows")
def test_producer_and_commands(site: Installation, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in Environment(site.server.url(), site.ledger.path).variables().items():
        monkeypatch.setenv(name, value)
    program = [sys.executable, "-m", "tests.end_to_end.windows"]
    done = subprocess.run(program, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


@pytest.mark.usefixtures("on_windows")
@pytest.mark.parametrize("pool", ["solo", pytest.param("threads", marks=pytest.mark.thorough)])
def test_worker(site: Installation, pool: str) -> None:
    worker: CeleryWorker = site.worker(pool=pool, preloaded=False)
    producer = site.producer()
    producer.send_task("work", ["now"])
    producer.send_task("work", ["soon"], countdown=0.5)
    site.wait_ended(["now", "soon"])
    assert worker.running
