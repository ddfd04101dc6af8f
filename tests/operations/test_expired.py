"""What has expired: found, counted, cancelled, and told of."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from threading import Event
from typing import Any

import pytest
from celery import Celery, chord
from celery.backends.redis import RedisBackend
from kombu import pools

from kombu_redisdelay import Messages, NotMarkedRevokedError, Selection, batch
from kombu_redisdelay.broker.message import expires_ms
from kombu_redisdelay.operations.doctor.messages import expired_share
from tools.harness.redis_server import RedisServer

EXPIRED = Selection(expired=True)
HOUR = timedelta(hours=1)
NOW = datetime.now(timezone.utc)


@pytest.fixture
def app(server: RedisServer) -> Iterator[Celery]:
    pools.reset()
    app = Celery("expired", broker=server.url(), backend=server.url("redis"), set_as_current=False)
    yield app
    app.close()


def send(app: Celery, *ids: str, ago: float = 3600, **options: Any) -> None:
    """Publish tasks that have expired so many seconds ago."""
    for id in ids:
        expires = datetime.now(timezone.utc) - timedelta(seconds=ago)
        app.send_task("report", task_id=id, expires=expires, **options)


def send_many(app: Celery, number: int) -> None:
    with batch(app):
        send(app, *map(str, range(number)))


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("2026-11-22T12:00:00", 12),
        ("2026-11-22T12:00:00+00:00", 12),
        ("2026-11-22T12:00:00Z", 12),
        ("2026-11-22T12:00:00+01:00", 11),
        (datetime(2026, 11, 22, 12, tzinfo=timezone(HOUR)), 11),
        *((unreadable, None) for unreadable in ("soon", "", 60, None, "9999999-01-01")),
    ],
)
def test_it_is_read_as_celery_reads_it(written: object, expected: int | None) -> None:
    at_ms = expires_ms({"task": "report", "expires": written})
    midnight = datetime(2026, 11, 22, tzinfo=timezone.utc)
    assert at_ms == (None if expected is None else (midnight + expected * HOUR).timestamp() * 1000)
    assert expires_ms({"expires": written}) is None, "it is no task"


def test_only_what_has_expired_is_selected(app: Celery, server: RedisServer) -> None:
    send(app, "late")
    send(app, "late and scheduled", countdown=3600)
    send(app, "in time", ago=-3600)
    app.send_task("report", task_id="without")
    send(app, "unreadable", ago=-3600)
    client: Any = server.client()
    [written] = [text for text in client.lrange("celery", 0, -1) if b'"unreadable"' in text]
    expires = json.loads(written)["headers"]["expires"].encode()
    client.lset("celery", 0, written.replace(expires, b"soon"))
    with Messages(app) as messages:
        assert {message.id for message in messages.select(EXPIRED)} == {"late", "late and scheduled"}
        assert messages.count(EXPIRED) == 2
        assert messages.count(Selection(expired=True, state="ready")) == 1
        assert messages.count(Selection(expired=True, task="other")) == 0
        assert messages.cancel(EXPIRED, dry_run=True).count == 2
        assert messages.cancel(EXPIRED, limit=1).count == 1
        assert messages.cancel(EXPIRED).count == 1
        assert messages.count() == 3


def test_the_clock_of_the_server_counts(app: Celery, monkeypatch: pytest.MonkeyPatch) -> None:
    send(app, "late")
    with Messages(app) as messages:
        now_ms = messages.store.now_ms()
        monkeypatch.setattr(type(messages.store), "now_ms", lambda self: now_ms - 2 * 3_600_000)
        assert messages.count(EXPIRED) == 0


def test_with_ids_it_makes_no_sense() -> None:
    with pytest.raises(ValueError, match="either ids, or what messages have in common"):
        Selection(ids=["a"], expired=True)


class TestMarkRevoked:
    def test_who_waits_for_a_result_learns_of_it(self, app: Celery) -> None:
        send(app, "late")
        with Messages(app) as messages:
            assert messages.cancel(EXPIRED, mark_revoked=True).count == 1
        assert app.AsyncResult("late").state == "REVOKED"

    def test_a_chord_learns_of_it(self, app: Celery) -> None:
        header = [app.signature("report", args=[n], expires=NOW - HOUR) for n in range(2)]
        result = chord(header, app=app)(app.signature("total", queue="body"))
        with Messages(app) as messages:
            assert messages.cancel(EXPIRED, mark_revoked=True).count == 2
        # Without the members, whose state the result looks at, too.
        assert app.AsyncResult(result.id).state == "FAILURE"

    def test_each_portion_is_told_before_the_next_one_is_cancelled(
        self, app: Celery, server: RedisServer
    ) -> None:
        send_many(app, 450)
        # Cancelled and told at each call.
        seen: list[tuple[int, int]] = []
        stop = Event()
        client = server.client()

        def look(count: int) -> None:
            seen.append((count, len(client.keys("celery-task-meta-*"))))
            if count:
                stop.set()

        with Messages(app) as messages:
            done = messages.cancel(EXPIRED, mark_revoked=True, progress=look, stop=stop)
            assert 0 < done.count < 450
            assert done.stopped == "asked"
            assert messages.count() == 450 - done.count
            assert seen[-1] == (done.count, done.count)
            assert all(cancelled == told for cancelled, told in seen)
            done = messages.cancel(EXPIRED, mark_revoked=True, stop=Event())
            assert (done.stopped, messages.count()) == ("", 0)

    def test_what_cannot_be_told_is_known_and_the_others_are_told(
        self, app: Celery, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        mark = RedisBackend.mark_as_revoked

        def mark_most(backend: Any, id: str, *args: Any, **kwargs: Any) -> None:
            if id in ("1", "2"):
                raise OSError("no\nroom")
            mark(backend, id, *args, **kwargs)

        monkeypatch.setattr(RedisBackend, "mark_as_revoked", mark_most)
        send_many(app, 5)
        with Messages(app) as messages:
            with pytest.raises(NotMarkedRevokedError, match="no room") as raised:
                messages.cancel(EXPIRED, mark_revoked=True)
            assert messages.count() == 0
        done = raised.value.done
        assert (done.count, done.unmarked, done.stopped, raised.value.ids) == (5, 2, "", ("1", "2"))
        assert app.AsyncResult("4").state == "REVOKED"

    def test_without_the_backend_the_rest_stays(self, app: Celery) -> None:
        send_many(app, 450)
        # Nothing listens there.
        backend = "redis://127.0.0.1:1/0"
        without = Celery("expired", broker=app.conf.broker_url, backend=backend, set_as_current=False)

        def end(count: int) -> None:
            if count:
                raise KeyError("ended")

        with Messages(without) as messages:
            with pytest.raises(NotMarkedRevokedError, match=r"127\.0\.0\.1:1") as raised:
                messages.cancel(EXPIRED, mark_revoked=True)
            done = raised.value.done
            assert 0 < done.count == done.unmarked == len(raised.value.ids) < 450
            assert (done.stopped, messages.count()) == ("backend", 450 - done.count)
            with pytest.raises(NotMarkedRevokedError, match=r"127.*; then it ended: 'ended'"):
                messages.cancel(EXPIRED, mark_revoked=True, progress=end)
        without.close()

    def test_a_part_of_a_chord_that_cannot_be_read_stays(self, app: Celery) -> None:
        header = [app.signature("report", args=[n], expires=NOW - HOUR) for n in range(2)]
        app.conf.task_serializer = "pickle"
        app.conf.accept_content = ["json", "pickle"]
        chord(header, app=app)(app.signature("total", queue="body"))
        send(app, "alone", serializer="pickle")
        with Messages(app) as messages:
            would = messages.cancel(EXPIRED, mark_revoked=True, dry_run=True)
            done = messages.cancel(EXPIRED, mark_revoked=True)
            assert (would.count, would.untold) == (done.count, done.untold) == (1, 2)
            assert messages.count(EXPIRED) == 2
            done = messages.cancel(EXPIRED)
            assert (done.count, done.untold) == (2, 0), "nobody is to be told"


@pytest.mark.parametrize("number", [100, 2000])
def test_the_share_is_about_right(app: Celery, number: int, server: RedisServer) -> None:
    send(app, "late")
    app.send_task("report", task_id="in time")
    client = server.client()
    in_time, late = client.lrange("celery", 0, -1)
    client.delete("celery")
    client.lpush("celery", *([late] * (3 * number // 4)), *([in_time] * (number // 4)))
    with Messages(app) as messages:
        assert expired_share(messages.store, "celery") == pytest.approx(0.75, abs=0.1)
        assert expired_share(messages.store, "nothing") == 0
