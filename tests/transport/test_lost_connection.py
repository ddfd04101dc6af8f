"""What a worker had received when its connection was lost runs once: here if the pool has it, else again."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.transport.kit import Site
from tools.harness.redis_server import RedisServer

#: A worker with one place, which has received three tasks. The first one runs when all connections are
#: killed, and ends when what keeps their messages has looked at them for some time.
WORKER = """
import os, sys
from pathlib import Path
from time import sleep
# As Celery 5.7 does for `-c auto`, and as any application may: it says nothing about the pool that works.
import celery.concurrency.asynpool
from celery import Celery
from celery.contrib.testing.worker import start_worker
from redis import Redis
from kombu_redisdelay.transport import orphan_keeper
from tools.harness.process import wait_until

url, server, pool, folder = sys.argv[1:]
ledger, gate, looks = Path(folder) / "ledger", Path(folder) / "gate", []
app = Celery("lost", broker=url)
app.conf.update(
    task_ignore_result=True,
    # One more: a worker that waits for nothing notices nothing.
    worker_prefetch_multiplier=4,
    worker_enable_prefetch_count_reduction=False,
    broker_connection_retry_on_startup=True,
)

@app.task(name="late", acks_late=True)
def late(name):
    with ledger.open("a") as file:
        file.write(f"{name}\\n")
    while not gate.exists():
        sleep(0.01)

class Keeper(orphan_keeper.OrphanKeeper):
    def _give_back(self):
        try:
            return super()._give_back()
        finally:
            looks.append(self)

def ran():
    return ledger.read_text().split() if ledger.exists() else []

def held():
    return sum(map(redis.hlen, redis.scan_iter("redisdelay:*:unacked:*")))

orphan_keeper.INTERVAL = 0.05
sys.modules["kombu_redisdelay.transport.channel"].OrphanKeeper = Keeper
redis = Redis.from_url(server)
with start_worker(app, pool=pool, concurrency=1, perform_ping_check=False):
    for name in "abc":
        late.delay(name)
    wait_until(lambda: ran() == ["a"] and held() == 3, 30, "the prefetch")
    redis.execute_command("CLIENT", "KILL", "TYPE", "normal")
    wait_until(lambda: len(looks) > 5, 30, "the looks")
    gate.touch()
    wait_until(lambda: {*"abc"} <= {*ran()} and not held(), 30, "all acks")
"""


@pytest.mark.one_server
@pytest.mark.parametrize("pool", ["threads", "prefork"])
def test_what_waits_for_the_pool_runs_once(
    site: Site, server: RedisServer, tmp_path: Path, pool: str
) -> None:
    command = [sys.executable, "-c", WORKER, site.url, server.url("redis"), pool, str(tmp_path)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == 0, result.stderr
    assert Counter((tmp_path / "ledger").read_text().split()) == Counter("abc")
