"""KEDA's scaler `redis` asks for `LLEN`. A task that is due must get there while no worker is."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path

from kombu.connection import Connection

from kombu_redisdelay import Messages, Selection
from tests.neighbours.extensions.shop import Shop, printed
from tools.harness.process import ChildProcess, wait_until
from tools.harness.redis_server import RedisServer


class Forward(ChildProcess):
    def __init__(self, shop: Shop) -> None:
        super().__init__()
        self._shop = shop

    def command(self) -> Sequence[str]:
        return [sys.executable, "-m", "celery", "-A", "shop", "delayed", "forward", "-Q", "celery"]

    def environment(self) -> dict[str, str]:
        return self._shop.environment

    def working_directory(self) -> Path:
        return self._shop.folder

    def is_ready(self) -> bool:
        return "Forwarding what is due" in self.log()


def test_from_zero_it_needs_the_forwarder(shop: Shop, server: RedisServer) -> None:
    shop.python("from shop import remind; remind.apply_async([1], countdown=1)")
    with (
        server.client() as client,
        Connection(server.url()) as connection,
        Messages(connection) as delayed,
    ):
        (task,) = delayed.select(Selection(state="scheduled", queue="celery"))
        due = task.due
        assert due is not None
        wait_until(lambda: datetime.now(timezone.utc) > due, 20, "it is overdue")
        assert client.llen("celery") == 0
        with Forward(shop):
            wait_until(lambda: client.llen("celery") == 1, 20, "it is where KEDA looks")
        worker = shop.worker("shop")
        wait_until(lambda: printed(worker, "reminded 1"), 20, "it runs")
        assert client.llen("celery") == 0


def test_another_priority_has_another_list(shop: Shop, server: RedisServer) -> None:
    shop.python("from shop import remind; remind.apply_async([1], priority=3)")
    with server.client() as client:
        assert client.llen("celery") == 0
        assert client.llen("celery\x06\x163") == 1
