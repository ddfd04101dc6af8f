"""An app with a broker, `celery delayed` for it, and what is in Redis."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from typing import Any
from uuid import uuid4

from celery import Celery
from celery.bin.base import CLIContext
from click.testing import CliRunner, Result
from kombu import pools

from kombu_redisdelay import Messages, Selection
from kombu_redisdelay.broker.unknown_tasks import listed
from kombu_redisdelay.cli import delayed
from kombu_redisdelay.operations.access import Access
from tests.dead import bury
from tests.transport.kit import Inbox, drain
from tools.harness.redis_server import RedisServer

QUEUE = "celery"


class Site:
    """One broker, and one app of which it is.

    Attributes:
        redis: typed as Any because redis-py's types say that each command may return an awaitable.
    """

    def __init__(self, server: RedisServer) -> None:
        self.redis: Any = server.client(decode_responses=True)
        self.app = Celery("shop", broker=server.url(), set_as_current=False)
        self.access = Access(self.app)
        self.store = self.access.store

    def close(self) -> None:
        self.access.close()
        self.redis.close()
        self.app.close()
        # Producers are kept by broker URL, and they remember what they told a server that is emptied now.
        pools.reset()

    def send(self, task: str = "shop.close_order", **options: Any) -> str:
        """Publish a task. Returns its id."""
        return str(self.app.send_task(task, **options).id)

    def make_due(self, task_id: str, in_ms: int, queue: str = QUEUE) -> None:
        """Have a scheduled message be due so many ms from now, or before."""
        self.redis.zadd(self.store.keys(queue).schedule, {task_id: self.now_ms() + in_ms}, xx=True)

    def add_consumer(self, name: str, lease_ms: int, holds: int = 0, queue: str = QUEUE) -> None:
        """Write down a consumer whose lease ends so many ms from now."""
        keys = self.store.keys(queue)
        self.redis.zadd(keys.consumers, {name: self.now_ms() + lease_ms})
        for tag in range(holds):
            self.redis.hset(keys.unacked(name), str(tag), "0:{}")

    def bury(self, payload: str, reason: str, queue: str = QUEUE) -> None:
        """Keep a dead letter."""
        bury(self.store, queue, payload, reason)

    def leave_unknown(self, task: str, seconds: float, queue: str = QUEUE, **options: Any) -> str:
        """Write down a message that has waited so long for a worker that knows its task. Returns its id."""
        id = self.send(task, countdown=3600, queue=queue, **options)
        keys, since_ms = self.store.keys(queue), self.now_ms() - round(seconds * 1000)
        step, _, payload = self.redis.hget(keys.messages, id).partition(":")
        payload = re.sub('"eta": "[^"]*"', '"eta": null', payload)
        unknown = f', "redisdelay-unknown": {since_ms}'
        members = re.sub(', "(?:redisdelay-unique|body)"', rf"{unknown}\g<0>", payload, count=1)
        self.redis.hset(keys.messages, id, f"{step}:{members}")
        self.redis.zadd(keys.unknown, {f"{listed(task)}\x1f{step}\x1f{since_ms:015}\x1f{id}": 0})
        return id

    def findings(self, level: str) -> dict[str, str]:
        """What of this level the doctor finds, by check."""
        rows = self.rows("doctor", status=1 if level == "wrong" else 0)
        assert all(bool(row["advice"]) == (row["level"] != "ok") for row in rows)
        return {row["check"]: row["found"] for row in rows if row["level"] == level}

    def now_ms(self) -> int:
        seconds, microseconds = self.redis.time()
        return int(seconds) * 1000 + int(microseconds) // 1000

    def run(self, *words: str, app: Celery | None = None, input: str | None = None) -> Result:
        """``celery delayed ...``, from whose errors only those are let through that are bugs."""
        return run_delayed(app or self.app, *words, input=input)

    def rows(self, *words: str, status: int = 0) -> list[dict[str, Any]]:
        """What ``celery delayed ... --json`` prints."""
        result = self.run(*words, "--json")
        assert result.exit_code == status, (result.output, result.exception)
        return [json.loads(line) for line in result.stdout.splitlines()]

    def text(self, *words: str, input: str | None = None) -> str:
        """What ``celery delayed ...`` prints when all is well."""
        result = self.run(*words, input=input)
        assert result.exit_code == 0, (result.output, result.exception)
        return result.stdout


def run_delayed(app: Celery, *words: str, input: str | None = None) -> Result:
    """``celery delayed ...`` for an app."""
    context = CLIContext(app, False, None)
    return CliRunner().invoke(
        delayed, words, obj=context, input=input, prog_name="celery delayed", standalone_mode=True
    )


def consumer_that_is_gone() -> str:
    """The name of a consumer whose process does not exist any more."""
    program = "from kombu_redisdelay.broker.processes import new_consumer as n; print(n())"
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    return done.stdout.strip()


def payload(id: str) -> str:
    """A message of the task ``shop.close_order``."""
    headers = {"id": id, "task": "shop.close_order", "argsrepr": "()", "kwargsrepr": "{}"}
    return json.dumps({"body": "", "headers": headers, "properties": {"delivery_tag": f"tag of {id}"}})


def bury_long_ago(site: Site, id: str, task: str, hours_ago: float, queue: str) -> None:
    headers = {"id": id, "task": task, "argsrepr": "()", "kwargsrepr": "{}"}
    payload = json.dumps({"body": "", "headers": headers, "properties": {"delivery_tag": str(uuid4())}})
    site.store.remember(queue)
    since_ms = int(site.now_ms() - hours_ago * 3_600_000)
    site.redis.lpush(site.store.keys(queue).dead, f"{since_ms} 1 0 rejected\n{payload}")


def states(site: Site) -> dict[str, list[Any]]:
    with Messages(site.app) as queues:
        return {
            state: [(message.id, message.due) for message in queues.select(Selection(state=state))]
            for state in ("scheduled", "ready", "dead")
        }


def count_of(rows: list[dict[str, Any]]) -> int:
    """What a command says in JSON that it was done to, or would be."""
    [row] = rows
    return int(row["messages"])


def sort_by_key(site: Site, *keys: str) -> None:
    """Have a worker sort a message of each of these keys, of which it takes none: a fair queue."""
    site.text("pause", "-Q", QUEUE)
    for key in keys:
        site.send(headers={"x-key": key})
    with site.app.connection_for_read() as connection:
        _inbox = Inbox(connection.channel(), QUEUE)
        drain(connection, lambda: site.redis.llen(QUEUE) == 0)
    site.text("resume", "-Q", QUEUE)
