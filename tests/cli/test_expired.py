"""What has expired, on the command line and in the doctor."""

from __future__ import annotations

import json
import os
import re
import signal
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from celery import Celery
from celery.backends.cache import CacheBackend

from kombu_redisdelay import batch
from kombu_redisdelay.cli import stopping
from tests.cli.site import QUEUE, Site
from tools.harness.process import wait_until
from tools.harness.redis_server import RedisServer


@pytest.fixture
def server(good_server: RedisServer) -> RedisServer:
    return good_server


def send(site: Site, expired: int, others: int) -> None:
    for number in range(expired):
        expires = datetime.now(timezone.utc) - timedelta(hours=1)
        site.send(task_id=f"late {number}", expires=expires)
    for number in range(others):
        site.send(task_id=f"in time {number}", expires=3600)


def test_list_count_and_cancel(site: Site) -> None:
    send(site, 2, 1)
    assert [row["id"] for row in site.rows("list", "--expired")] == ["late 0", "late 1"]
    assert [row["messages"] for row in site.rows("count", "--expired")] == [2]
    assert "Would cancel 2 messages." in site.text("cancel", "--expired", "--dry-run")
    assert "Cancelled 2 messages." in site.text("cancel", "--expired", "--yes")
    assert [row["id"] for row in site.rows("list")] == ["in time 0"]


def test_column(site: Site) -> None:
    site.send(task_id="never")
    assert "EXPIRES" not in site.text("list") + site.text("list", "--state", "ready")
    assert [row["expires"] for row in site.rows("list")] == [None]
    send(site, 1, 0)
    for state in ([], ["--state", "ready"]):
        heading, never, late = site.text("list", *state).splitlines()
        assert "EXPIRES" in heading
        assert re.search(r" - +never ", never)
        assert re.search(r" 1h(0m)? ago +late 0", late)


def test_show(site: Site) -> None:
    send(site, 1, 1)
    late, in_time = site.text("show", "late 0"), site.text("show", "in time 0")
    assert re.search(r"^waits because +It has expired: a worker will discard it\.", late, re.MULTILINE)
    assert re.search(r"^expires +20.* \(1h ago\)$", late, re.MULTILINE)
    assert re.search(r"^expires +20.* \(in (1h|60m|59m).*\)$", in_time, re.MULTILINE)
    assert "has expired" not in in_time


def test_what_stays_because_its_chord_cannot_be_told(site: Site) -> None:
    app = Celery(
        "shop", broker=site.access.app.conf.broker_url, backend="cache+memory://", set_as_current=False
    )
    expires = datetime.now(timezone.utc) - timedelta(hours=1)
    for number in range(2):
        app.send_task("part", expires=expires, group_id="g", group_index=number, serializer="pickle")
    app.send_task("alone", expires=expires)
    words = ("cancel", "--expired", "--mark-revoked")
    [would] = map(json.loads, site.run(*words, "--dry-run", "--json", app=app).stdout.splitlines())
    assert (would["messages"], would["untold"]) == (1, 2)
    result = site.run(*words, "--yes", app=app)
    assert (result.exit_code, result.stdout) == (
        0,
        "Cancelled 1 message, which is REVOKED in the result backend.\n",
    )
    assert result.stderr == (
        "2 expired tasks stay for a worker: they may be parts of a chord, which cannot be told, because "
        "their bodies cannot be read.\n"
    )
    app.close()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_it_when_all_that_it_cancelled_are_told(
    site: Site, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    told: list[str] = []

    def mark(backend: Any, id: str, *args: Any, **kwargs: Any) -> None:
        if not told:
            os.kill(os.getpid(), number)
        told.append(id)

    monkeypatch.setattr(CacheBackend, "mark_as_revoked", mark)
    app = Celery(
        "shop", broker=site.access.app.conf.broker_url, backend="cache+memory://", set_as_current=False
    )
    expires = datetime.now(timezone.utc) - timedelta(hours=1)
    with batch(app):
        for _ in range(450):
            app.send_task("late", expires=expires)
    # It may be ignored where the tests run.
    later: list[int] = []
    before = signal.signal(number, lambda number, _: later.append(number))
    monkeypatch.setattr(stopping, "AGAIN", 0)
    try:
        result = site.run("cancel", "--expired", "--mark-revoked", "--yes", app=app)
        # The next one ends it as ever.
        assert later == []
        os.kill(os.getpid(), number)
        wait_until(lambda: later == [number], 30, "what was there before")
    finally:
        signal.signal(number, before)
    assert result.exit_code == 130
    assert result.stdout == (f"Cancelled {len(told)} messages, which are REVOKED in the result backend.\n")
    assert result.stderr == "Stopped. The others stay.\n"
    assert 0 < len(told) == 450 - site.redis.llen(QUEUE) < 450
    app.close()


def test_beside_ids_it_is_an_error(site: Site) -> None:
    result = site.run("cancel", "--expired", "late 0")
    assert result.exit_code == 2
    assert "not both" in result.output


@pytest.mark.parametrize(("expired", "others", "share"), [(9, 3, "75 %"), (2, 30, ""), (3, 1, "")])
def test_the_doctor_tells_the_share(site: Site, expired: int, others: int, share: str) -> None:
    send(site, expired, others)
    found = [row["found"] for row in site.rows("doctor", "-Q", QUEUE) if "expired" in row["found"]]
    text = f"about {share} of {expired + others} messages ready have expired, and no worker takes them"
    assert found == ([text] if share else [])
