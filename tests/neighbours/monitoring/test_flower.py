"""Flower asks workers, which it finds with our URL, and Redis, which it finds with `redis://` only."""

from __future__ import annotations

import json

import pytest
from kombu.connection import Connection

from kombu_redisdelay import Messages, Selection
from tests.neighbours.extensions.shop import Shop, printed
from tests.neighbours.monitoring.flower import Flower
from tools.harness.process import wait_until
from tools.harness.redis_server import RedisServer

PAGES = ["/", "/workers", "/tasks", "/metrics"]


@pytest.mark.parametrize("scheme", ["redisdelay", "redis"])
def test_workers_tasks_and_control(shop: Shop, server: RedisServer, scheme: str) -> None:
    worker = shop.worker("shop")
    with Flower(shop, server.url(scheme)) as flower:
        assert [flower.get(page)[0] for page in PAGES] == [200] * len(PAGES)
        (name,) = flower.json("/api/workers?refresh=1")
        assert name.startswith(worker.name)

        done = flower.post("/api/task/async-apply/shop.remind", '{"args": [1], "countdown": 1}')
        later = flower.post("/api/task/async-apply/shop.remind", '{"args": [2], "countdown": 3600}')
        wait_until(lambda: printed(worker, "reminded 1"), 20, "a task with a countdown")
        wait_until(lambda: state(flower, done) == "SUCCESS", 20, "its events")

        with Connection(server.url()) as connection, Messages(connection) as delayed:

            def scheduled() -> list[str | None]:
                return [message.id for message in delayed.select(Selection(state="scheduled"))]

            wait_until(lambda: scheduled() == [later["task-id"]], 20, "the other one is scheduled")
            flower.post(f"/api/task/revoke/{later['task-id']}")
            wait_until(lambda: scheduled() == [], 20, "it is revoked")
        wait_until(lambda: state(flower, later) == "REVOKED", 20, "the event of that")

        flower.post(f"/api/task/rate-limit/shop.remind?workername={name}&ratelimit=100/m")
        flower.post(f"/api/worker/queue/add-consumer/{name}?queue=emails")
        wait_until(lambda: "Started consuming from emails" in worker.log(), 20, "a new queue")
        flower.post(f"/api/worker/shutdown/{name}")
        wait_until(lambda: not worker.running, 60, "the end of the worker")


def state(flower: Flower, task: dict[str, str]) -> str:
    status, text = flower.get(f"/api/task/info/{task['task-id']}")
    return "" if status != 200 else str(json.loads(text)["state"])


def test_with_our_url_it_knows_no_lengths(shop: Shop) -> None:
    shop.worker("shop")
    with Flower(shop) as flower:
        assert flower.get("/broker")[0] == 404
        status, text = flower.get("/api/queues/length")
        assert status == 404
        assert "broker is not supported" in text


def test_with_that_of_redis_it_knows_what_is_ready(shop: Shop, server: RedisServer) -> None:
    shop.worker("shop")
    with Flower(shop, server.url("redis")) as flower:
        wait_until(lambda: flower.json("/api/workers?refresh=1"), 20, "the worker")
        assert flower.get("/broker")[0] == 200
        shop.run("celery", "-A", "shop", "control", "cancel_consumer", "celery")
        shop.python(
            "from shop import remind\n"
            "for number in range(3): remind.apply_async([number], priority=3 * number)\n"
            "remind.apply_async([3], countdown=3600)"
        )
        # What is scheduled is not among them.
        lengths = flower.json("/api/queues/length")["active_queues"]
        assert lengths == [{"name": "celery", "messages": 3}]
