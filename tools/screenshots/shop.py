"""The queues of a shop in the middle of a day.

Messages are published with Celery. What would take an hour is written down as scripts would have: workers,
what they hold, dead letters, and the history.
"""

from __future__ import annotations

import random
from typing import Any
from uuid import UUID

from celery import Celery

from kombu_redisdelay import Queues, batch
from kombu_redisdelay.broker.failure import Failure
from kombu_redisdelay.broker.options import Options
from kombu_redisdelay.broker.server.scripts import KEEP
from tools.harness.redis_server import RedisServer

EMAILS, IMPORTS, INVOICES, REPORTS, THUMBNAILS = "emails", "imports", "invoices", "reports", "thumbnails"

MINUTE, HOUR = 60, 3600


class Shop:
    """Fills a server that is empty."""

    def __init__(self, server: RedisServer) -> None:
        self.app = Celery("shop", broker=server.url(), set_as_current=False)
        self.app.conf.update(task_default_queue=EMAILS, task_acks_late=True)
        self._connection = self.app.connection_for_read()
        self._queues = Queues(self.app)
        self._store = self._queues.store
        self._redis: Any = server.client(decode_responses=True)
        # The same pictures each time, as far as the clock allows.
        self._random = random.Random(16)

    def close(self) -> None:
        self._connection.close()
        self._queues.close()
        self._redis.close()
        self.app.close()

    def fill(self) -> None:
        self._fill_emails()
        self._fill_imports()
        self._fill_invoices()
        self._fill_reports()
        self._fill_thumbnails()

    def _fill_emails(self) -> None:
        for number in range(480):
            # Reminders of a basket come within hours, and those of a review within days.
            task, longest = ("remind_of_basket", 3 * HOUR) if number % 3 else ("ask_for_review", 72 * HOUR)
            countdown = self._random.uniform(MINUTE, longest)
            self._send(EMAILS, f"shop.emails.{task}", self._order(), countdown=countdown)
        for _ in range(6):
            self._send(EMAILS, "shop.emails.confirm_order", self._order())
        for host in ("worker-1", "worker-2"):
            self._hold(EMAILS, host, 2, "shop.emails.confirm_order")
        self._bury(EMAILS, 52 * MINUTE, 1, "rejected", "shop.emails.confirm_order")
        refused = "SMTPServerDisconnected", "Connection unexpectedly closed"
        self._fail(EMAILS, 127, 2 * HOUR, 6 * MINUTE, "shop.emails.confirm_order", *refused)
        self._happened(EMAILS, per_minute=34, failed=0.02)

    def _fill_imports(self) -> None:
        """One tenant has uploaded much. A worker has sorted what came by key, and holds some of it."""
        self._queues.make_fair(IMPORTS)
        self._queues.limit_keys(IMPORTS, concurrency=2)
        self._queues.limit_key(IMPORTS, "acme", concurrency=8)
        self._queues.pause_key(IMPORTS, "globex")
        ready = {"initech": 1402, "acme": 311, "umbrella": 57, "globex": 12, "hooli": 3}
        for tenant, count in ready.items():
            with batch(self.app):
                for _ in range(count):
                    self._import(tenant)
        for number in range(7):
            self._import(f"tenant-{number}")
            self._import(f"tenant-{number}", countdown=3 * HOUR)
        channel = self._connection.channel()
        while self._redis.llen(IMPORTS):
            channel.basic_get(IMPORTS)
        self._happened(IMPORTS, per_minute=61, failed=0.01)

    def _import(self, tenant: str, countdown: float | None = None) -> None:
        self._send(IMPORTS, "shop.imports.row", self._order(), countdown, headers={"x-key": tenant})

    def _fill_invoices(self) -> None:
        for _ in range(75):
            self._send(
                INVOICES,
                "shop.invoices.dun",
                self._order(),
                countdown=self._random.uniform(HOUR, 14 * 24 * HOUR),
            )
        self._hold(INVOICES, "worker-1", 1, "shop.invoices.write")
        for minutes in (44, 21, 7):
            self._bury(INVOICES, minutes * MINUTE, 9, "delivery limit of 9 reached", "shop.invoices.write")
        self._fail(INVOICES, 9, 75 * HOUR, 41 * MINUTE, "shop.invoices.dun", "KeyError", "'customer'")
        self._happened(INVOICES, per_minute=5, failed=0.1)

    def _fill_reports(self) -> None:
        for region in ("north", "south", "east", "west"):
            self._send(REPORTS, "shop.reports.daily", (region,))
        self._send(REPORTS, "shop.reports.weekly", countdown=31 * HOUR)
        self._hold(REPORTS, "worker-2", 0)
        self._happened(REPORTS, per_minute=0.2, failed=0)
        self._queues.pause(REPORTS)

    def _fill_thumbnails(self) -> None:
        for _ in range(230):
            self._send(
                THUMBNAILS, "shop.thumbnails.make", (f"photo-{self._random.randrange(10**5)}.jpg", 480)
            )
        for host in ("worker-2", "worker-3"):
            self._hold(THUMBNAILS, host, 4, "shop.thumbnails.make")
        broken = "UnidentifiedImageError", "cannot identify image file"
        self._fail(THUMBNAILS, 31, 160 * HOUR, 3 * HOUR, "shop.thumbnails.make", *broken)
        self._happened(THUMBNAILS, per_minute=85, failed=0.01)
        self._queues.limit(THUMBNAILS, rate="100/m", concurrency=8)

    def _order(self) -> tuple[int]:
        return (self._random.randrange(10_000, 99_999),)

    def _send(
        self,
        queue: str,
        task: str,
        arguments: tuple[object, ...] = (),
        countdown: float | None = None,
        **options: Any,
    ) -> str:
        id = str(UUID(int=self._random.getrandbits(128), version=4))
        self.app.send_task(task, arguments, queue=queue, countdown=countdown, task_id=id, **options)
        return id

    def _taken(self, queue: str, task: str) -> tuple[str, str]:
        """Publish a message and take it out of its queue. Returns its id and its payload."""
        id = self._send(queue, task, self._order())
        return id, str(self._redis.lpop(queue))

    def _hold(self, queue: str, host: str, count: int, task: str = "") -> None:
        """A worker, and so many messages that it holds."""
        keys = self._store.keys(queue)
        consumer = (
            f"{host}:4026531836:{self._random.randrange(200, 30_000)}:1:{self._random.getrandbits(128):032x}"
        )
        self._redis.zadd(keys.consumers, {consumer: self._now_ms() + HOUR * 1000})
        for _ in range(count):
            id, payload = self._taken(queue, task)
            self._redis.hset(keys.unacked(consumer), id, f"0:{payload}")

    def _bury(self, queue: str, seconds_ago: float, deliveries: int, reason: str, task: str) -> None:
        """A dead letter."""
        _, payload = self._taken(queue, task)
        died_ms = self._now_ms() - int(seconds_ago * 1000)
        # As an older release keeps it: it is moved when it is read.
        self._redis.lpush(self._store.keys(queue).dead, f"{died_ms} {deliveries} 0 {reason}\n{payload}")

    def _fail(
        self, queue: str, count: int, first: float, last: float, task: str, error: str, text: str
    ) -> None:
        """Failed tasks, over the time from *first* to *last*, in seconds ago."""
        keys, keep = self._store.keys(queue), Options().kept_failed
        assert keep is not None
        now_ms = self._now_ms()
        first_ms, last_ms = (now_ms - int(ago * 1000) for ago in (first, last))
        for number in range(count):
            id, payload = self._taken(queue, task)
            traceback = f'Traceback (most recent call last):\n  File "shop.py", line 42\n{error}: {text}'
            failure = Failure(id, task, error, text, traceback, "celery@worker-1", 4, None)
            KEEP(
                self._store.server,
                (keys.unacked("nobody"), keys.wake, keys.failed),
                KEEP.arguments(
                    tag=id,
                    id=id,
                    group=failure.group,
                    details=failure.details,
                    copy=f"0:{payload}",
                    failed_now=0,
                    is_limited=0,
                    count=keep.count,
                    age_ms=keep.age_ms,
                    bytes=keep.bytes,
                ),
            )
            at_ms = first_ms + (last_ms - first_ms) * number // max(1, count - 1)
            self._redis.zadd(keys.failed, {id: at_ms})
        self._redis.hset(keys.failed_groups, failure.group, f"{count} {first_ms} {last_ms}")

    def _happened(self, queue: str, per_minute: float, failed: float) -> None:
        """What happened in each minute of the last hour, and in each hour of the last week."""
        now_s = self._now_ms() // 1000
        fields = {}
        for name, seconds, count in (("minutes", MINUTE, 59), ("hours", HOUR, 7 * 24)):
            periods = (
                (now_s - ago * seconds, seconds, per_minute * seconds / MINUTE) for ago in range(count, 0, -1)
            )
            fields[name] = "".join(self._period(*period, failed) for period in periods)
        self._redis.hset(self._store.keys(queue).history, mapping=fields)

    def _period(self, start_s: int, seconds: int, mean: float, failed: float) -> str:
        """A line of the history. At night there is less to do."""
        hour = start_s // HOUR % 24
        busy = 1 if seconds == MINUTE else (0.15, 0.5, 1, 0.9, 1, 0.4)[hour // 4]
        delivered = self._about(busy * mean * self._random.uniform(0.6, 1.4))
        published = self._about(delivered * self._random.uniform(0.9, 1.1))
        failures, tasks = self._about(delivered * failed), self._about(delivered * failed / 4)
        return f"{start_s} {seconds} {published} {delivered} {failures} 0 0 0 {tasks} 0\n"

    def _about(self, value: float) -> int:
        """A whole number next to it, so that the mean is right."""
        return int(value + self._random.random())

    def _now_ms(self) -> int:
        seconds, microseconds = self._redis.time()
        return int(seconds) * 1000 + int(microseconds) // 1000
