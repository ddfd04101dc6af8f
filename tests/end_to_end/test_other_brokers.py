"""The examples that move tasks from another broker: docs/migrating.rst."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from celery import Celery
from kombu.entity import Exchange, Queue
from kombu.transport import native_delayed_delivery

import examples.from_celery_redis_plus as from_celery_redis_plus
import examples.from_rabbitmq as from_rabbitmq
from tests.end_to_end.installation import Installation
from tools.harness.process import wait_until
from tools.harness.rabbitmq_server import RabbitMQServer, rabbitmq_server
from tools.harness.redis_server import RedisServer

NOW = [f"now {number}" for number in range(5)]
LATER = [f"later {number}" for number in range(5)]


def send(app: Celery, queue: str = "celery") -> None:
    for task in NOW:
        app.send_task("work", [task], queue=queue)
    for task in LATER:
        app.send_task("work", [task], queue=queue, countdown=3600)


def stored(site: Installation, queue: str = "celery") -> tuple[list[str], list[str]]:
    """The labels of the tasks that are ready, in their order, and of those that are scheduled."""
    redis: Any = site.redis
    ready = reversed(redis.lrange(queue, 0, -1))
    scheduled = redis.hvals(f"redisdelay:{{{queue}}}:messages")
    return [_label(text) for text in ready], sorted(_label(text.partition(b":")[2]) for text in scheduled)


def _label(text: bytes) -> str:
    label: str = json.loads(text)["headers"]["argsrepr"]
    return label.strip("[](),'")


@pytest.mark.skipif(rabbitmq_server() is None, reason="RabbitMQ is not installed here")
def test_from_rabbitmq(site: Installation, tmp_path: Path) -> None:
    with RabbitMQServer() as rabbitmq:
        app = Celery("shop", broker=rabbitmq.url(), set_as_current=False)
        topic = Exchange("tasks", type="topic")
        quorum = Queue("quorum", topic, routing_key="a.b", queue_arguments={"x-queue-type": "quorum"})
        app.conf.task_queues = [Queue("classic"), quorum, Queue("not there")]
        app.conf.broker_native_delayed_delivery_queue_type = "quorum"
        queues = [app.amqp.queues[name] for name in ("classic", "quorum")]
        with app.connection_for_write() as connection:
            for queue in queues:
                queue(connection.default_channel).declare()
            native_delayed_delivery.declare_native_delayed_delivery_exchanges_and_queues(connection, "quorum")
            native_delayed_delivery.bind_queue_to_native_delayed_delivery_exchange(connection, quorum)
            for queue in queues:
                send(app, queue.name)
            wait_until(lambda: _counts(connection) == {"classic": 10, "quorum": 5}, 20, "all to arrive")

        assert from_rabbitmq.move(app, rabbitmq.url(), site.server.url()) == 20

        assert stored(site, "classic") == (NOW, LATER)
        assert stored(site, "quorum") == (NOW, LATER)
        assert from_rabbitmq.move(app, rabbitmq.url(), site.server.url()) == 0

        # A queue that the app does not declare, and the app is in the current directory.
        send(app, "reports")
        (tmp_path / "shop.py").write_text("from celery import Celery\napp = Celery('shop')\n")
        command = (from_rabbitmq, "shop:app", rabbitmq.url(), site.server.url(), "reports")
        assert run(*command, cwd=tmp_path) == "Moved 10 tasks.\n"
        assert stored(site, "reports") == (NOW, LATER)
        assert run(*command, cwd=tmp_path) == "Moved 0 tasks.\n"
        app.close()


def test_the_program_for_celery_redis_plus(server: RedisServer) -> None:
    # It needs nothing that this process has imported.
    assert run(from_celery_redis_plus, server.url("redis"), server.url()) == "Moved 0 tasks.\n"
    client = server.client()
    queue, tag = b"celery", b"t"
    published = {
        "body": "W10=",
        "headers": {"task": "t", "id": "t"},
        "properties": {"delivery_tag": "t", "priority": 0, "delivery_info": {}, "body_encoding": "base64"},
    }
    client.hset(b"message:" + tag, mapping={"payload": json.dumps(published)})
    client.zadd(b"queue:" + queue, {tag: 1})
    assert run(from_celery_redis_plus, server.url("redis"), server.url()) == "Moved 1 tasks.\n"
    assert client.llen(queue) == 1
    client.close()


def run(example: ModuleType, *arguments: str, cwd: Path | None = None) -> str:
    """What an example prints as a program."""
    path = example.__file__
    assert path is not None
    done = subprocess.run(
        [sys.executable, path, *arguments], cwd=cwd, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def _counts(connection: Any) -> dict[str, int]:
    channel = connection.default_channel
    return {name: channel.queue_declare(name, passive=True).message_count for name in ("classic", "quorum")}


def test_from_celery_redis_plus(site: Installation, server: RedisServer) -> None:
    pytest.importorskip("celery_redis_plus", reason="celery-redis-plus needs Python 3.13: tox -e moving")
    if tuple(map(int, str(site.redis.info()["redis_version"]).split(".")[:2])) < (7, 0):
        pytest.skip("celery-redis-plus needs Redis 7")
    import celery_redis_plus.signals  # noqa: F401

    app = Celery("shop", broker=server.url("redis"), set_as_current=False)
    app.conf.broker_transport = "celery_redis_plus.transport:Transport"
    send(app)
    redis: Any = site.redis
    # As a worker does that takes one.
    [(taken, _)] = redis.zpopmin("queue:celery")
    # Tasks of the same millisecond have any order there.
    tags = [*redis.zrange("queue:celery", 0, -1), taken]
    labels = [_label(redis.hget(b"message:" + tag, "payload")) for tag in tags]

    assert from_celery_redis_plus.move(server.url("redis"), server.url()) == 10

    ready, scheduled = stored(site)
    # What was taken comes last.
    assert (ready, scheduled) == (labels, LATER)
    left: list[Any] = redis.keys("*")
    assert [key for key in left if key.startswith((b"message", b"queue:"))] == []
    assert from_celery_redis_plus.move(server.url("redis"), server.url()) == 0
    app.close()
