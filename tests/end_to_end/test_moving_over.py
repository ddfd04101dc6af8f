"""A whole fleet moves from ``redis://`` to this transport and back, under load: docs/migrating.rst."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.environment import Environment
from tests.end_to_end.installation import QUEUE, ROOT, Installation
from tests.end_to_end.load import Load
from tools.harness.celery_command import run_celery
from tools.harness.celery_worker import CeleryWorker
from tools.harness.process import wait_until
from tools.harness.redis_server import RedisServer

OURS, STOCK = "redisdelay", "redis"

#: A Python with an older Celery, of which the stock fleet is in one of the runs. tox -e moving makes one.
OLDER = os.environ.get("REDISDELAY_STOCK_PYTHON", "")

#: Seconds that a killed worker of ours keeps what it held.
LEASE = 3
OUR_OPTIONS = {"broker_transport_options": {"visibility_timeout": LEASE}}


class Fleet:
    """The workers, the load, and what was published."""

    def __init__(self, site: Installation, python: str, exit: ExitStack) -> None:
        self.site = site
        self._python = {OURS: sys.executable, STOCK: python}
        self._exit = exit
        self._loads: list[Load] = []
        #: Published by the test itself.
        self.tasks: list[str] = []

    def worker(self, scheme: str) -> CeleryWorker:
        return self.site.worker(
            scheme=scheme,
            python=self._python[scheme],
            pool="prefork",
            prefetch_multiplier=10,
            settings=OUR_OPTIONS if scheme == OURS else {},
        )

    def load(self, scheme: str) -> Load:
        environment = Environment(self.site.server.url(scheme), self.site.ledger.path)
        name = f"{scheme} {len(self._loads)}"
        load = self._exit.enter_context(Load(name, environment, ROOT, self._python[scheme]))
        self._loads.append(load)
        return load

    def send(self, scheme: str, task: str, **options: Any) -> None:
        self.site.producer(scheme).send_task("work_late", [task], **options)
        self.tasks.append(task)

    def sent(self) -> set[str]:
        return {*self.tasks, *(task for load in self._loads for task in load.sent())}

    def wait_for_more(self, count: int = 60) -> None:
        """Until so many more tasks have ended."""
        wanted = len(self.site.ledger.ended()) + count
        wait_until(lambda: len(self.site.ledger.ended()) >= wanted, 60, f"{count} more tasks")

    def wait_quiet(self) -> None:
        """Until all ended that does not wait for a gate or for long."""
        waiting = {task for task in self.tasks if "later" in task or "running" in task}
        self.site.wait_ended(sorted(self.sent() - waiting), timeout=60)

    def held(self) -> set[str]:
        """The tasks that workers of ours hold."""
        keys = self.site.redis.execute_command("KEYS", f"redisdelay:{{{QUEUE}}}:unacked:*")
        messages = [message for key in keys for message in self.site.redis.execute_command("HVALS", key)]
        reprs = [json.loads(message.partition(b":")[2])["headers"]["argsrepr"] for message in messages]
        return {ast.literal_eval(text)[0] for text in reprs}

    def adopt(self, *options: str, status: int = 0) -> subprocess.CompletedProcess[str]:
        environment = Environment(self.site.server.url(OURS), self.site.ledger.path, OUR_OPTIONS)
        words = ("-A", "tests.end_to_end.app", "delayed", "adopt", *options)
        done = run_celery(words, {**os.environ, **environment.variables()})
        print(f"$ adopt {' '.join(options)}\n{done.stdout}{done.stderr}")
        assert done.returncode == status, done
        return done


@pytest.fixture(params=["this Celery", "an older Celery"])
def fleet(request: pytest.FixtureRequest, server: RedisServer, tmp_path: Path) -> Iterator[Fleet]:
    python = sys.executable
    if request.param != "this Celery":
        python = OLDER
        if not python:
            pytest.skip("REDISDELAY_STOCK_PYTHON names no Python with an older Celery: tox -e moving")
    with ExitStack() as exit:
        site = exit.enter_context(Installation(server, tmp_path))
        yield Fleet(site, python, exit)


def test_there_and_back(fleet: Fleet, tmp_path: Path) -> None:
    site, gate = fleet.site, tmp_path / "gate"
    redis: Any = site.redis
    explained: set[str] = set()

    # A stock fleet at work. Then both kinds, of producers and of workers.
    stock = [fleet.worker(STOCK), fleet.worker(STOCK)]
    stock_load = fleet.load(STOCK)
    fleet.wait_for_more()
    ours = [fleet.worker(OURS)]
    our_load = fleet.load(OURS)
    fleet.wait_for_more()

    # One stock worker stops in good order, under load. The other one is killed while it holds messages.
    # Before that, it gets nothing for a moment: redis:// loses what a killed worker has popped and not noted.
    stopped = stock.pop()
    stopped.stop()
    explained |= ended_in_shutdown(stopped)
    stock_load.stop()
    our_load.stop()
    fleet.wait_quiet()
    ours.pop().stop()
    for number in range(3):
        fleet.send(STOCK, f"later {number}", countdown=45)
    for number in range(3):
        fleet.send(STOCK, f"running {number}", kwargs={"gate": str(gate)})
    site.wait_started("running 0")
    wait_until(lambda: redis.hlen("unacked") == 6, 30, "the stock worker to hold all")
    assert "onsumers of redis:// are connected: 127.0.0.1:" in fleet.adopt("--yes", status=1).stderr
    stock.pop().kill()
    explained.add("running 0")

    # Nobody but adopt finds what it held.
    ours.append(fleet.worker(OURS))
    our_load = fleet.load(OURS)
    gate.touch()
    fleet.wait_for_more()
    assert redis.hlen("unacked") == 6
    would = json.loads(fleet.adopt("--dry-run", "--json").stdout)
    assert (would["would_adopt"], would["scheduled"], would["to_run"]) == (6, 3, 3)
    done = json.loads(fleet.adopt("--yes", "--json").stdout)
    assert (done["adopted"], done["scheduled"], done["to_run"], done["stay"]) == (6, 3, 3, 0)
    assert redis.exists("unacked", "unacked_index") == 0
    assert json.loads(fleet.adopt("--dry-run", "--json").stdout)["would_adopt"] == 0
    site.wait_ended([f"running {number}" for number in range(3)])
    assert site.scheduled() >= 3

    # And back: this time one of ours is killed that holds what it has taken.
    our_load.stop()
    fleet.send(OURS, "later ours", countdown=20)
    assert "orkers of redisdelay:// consume" in fleet.adopt("--reverse", "--yes", status=1).stderr
    gate.unlink()
    for number in range(3, 6):
        fleet.send(OURS, f"running {number}", kwargs={"gate": str(gate)})
    site.wait_started("running 3")
    taken = {f"running {number}" for number in range(3, 6)}
    wait_until(lambda: taken <= fleet.held(), 30, "our worker to hold all")
    ours.pop().kill()
    # A child process may begin a task just before the worker acks it.
    explained |= fleet.held().intersection(site.ledger.started())
    assert "running 3" in explained
    consumers = f"redisdelay:{{{QUEUE}}}:consumers"
    end_ms = max(score for _, score in redis.zrange(consumers, 0, -1, withscores=True))
    wait_until(lambda: _now_ms(site) > end_ms, LEASE + 2, "the end of the lease")
    scheduled, held = site.scheduled(), site.unacked()
    assert held >= 3
    back = json.loads(fleet.adopt("--reverse", "--yes", "--json").stdout)
    assert (back["scheduled"], back["unacked"], back["at_once"]) == (scheduled, held, 0)
    assert (site.scheduled(), site.unacked()) == (0, 0)
    gate.touch()
    fleet.worker(STOCK)
    stock_load = fleet.load(STOCK)
    fleet.wait_for_more()
    stock_load.stop()

    site.wait_ended(sorted(fleet.sent()), timeout=60)
    assert set(site.ledger.run_twice()) <= explained
    assert site.ledger.early() == []
    print(f"{len(fleet.sent())} tasks, twice: {Counter(site.ledger.run_twice())}")


def ended_in_shutdown(worker: CeleryWorker) -> set[str]:
    """The tasks that a worker of ``redis://`` ended after it was told to stop. It may restore one that
    it did not come to ack, which then runs twice."""
    return set(re.findall(r"succeeded in .*: '(.*)'", worker.log().partition("Warm shutdown")[2]))


def _now_ms(site: Installation) -> float:
    seconds, microseconds = site.redis.time()
    return float(seconds * 1000 + microseconds / 1000)
