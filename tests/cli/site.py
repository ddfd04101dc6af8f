"""An app with a broker, `celery delayed` for it, and what is in Redis."""

from __future__ import annotations

import json
from typing import Any

from celery import Celery
from celery.bin.base import CLIContext
from click.testing import CliRunner, Result

from harness.redis_server import RedisServer
from kombu_redisdelay.broker.store import Store
from kombu_redisdelay.cli import delayed

QUEUE = "celery"
SEPARATOR = "\x06\x16"
STEPS = (0, 3, 6, 9)


class Site:
    """One broker.

    Attributes:
        redis: typed as Any because redis-py's types say that each command may return an awaitable.
    """

    def __init__(self, server: RedisServer, broker: str | None = None, **settings: Any) -> None:
        self.redis: Any = server.client(decode_responses=True)
        self.app = Celery("shop", broker=broker or server.url(), set_as_current=False)
        self.app.conf.update(settings)
        self.store = Store(server.client(), "", STEPS, SEPARATOR)

    def close(self) -> None:
        self.redis.close()
        self.store.client.close()
        self.app.close()

    def send(self, task: str = "shop.close_order", **options: Any) -> str:
        """Publish a task. Returns its id."""
        return str(self.app.send_task(task, **options).id)

    def run(self, *words: str, input: str | None = None) -> Result:
        """``celery delayed ...``. Only what click makes of an error is let through."""
        result = CliRunner().invoke(delayed, words, obj=CLIContext(self.app, False, None), input=input)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result

    def rows(self, *words: str, status: int = 0) -> list[dict[str, Any]]:
        """What ``celery delayed ... --json`` prints."""
        result = self.run(*words, "--json")
        assert result.exit_code == status, result.output
        return [json.loads(line) for line in result.stdout.splitlines()]

    def stats(self, queue: str = QUEUE) -> dict[str, Any]:
        [row] = self.rows("stats", "-Q", queue)
        return row

    def now_ms(self) -> int:
        seconds, microseconds = self.redis.time()
        return int(seconds) * 1000 + int(microseconds) // 1000

    def bury(self, reason: str, payload: bytes = b"not a message", queue: str = QUEUE, deliveries: int = 1) -> None:
        """Have the broker make a dead letter."""
        raise NotImplementedError
