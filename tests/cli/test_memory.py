"""``celery delayed memory``, and who else tells what fills Redis."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from kombu_redisdelay.broker.maintenance import record
from kombu_redisdelay.operations import exporter
from kombu_redisdelay.operations.exporter import QueueCollector
from tests.cli.site import QUEUE, Site
from tests.cli.test_exporter import exported, scrape
from tests.finished import OF_MESSAGES

HOSTILE = "\x1b[2Jevil\n\N{RIGHT-TO-LEFT OVERRIDE}<b>"


def rows_of(site: Site, of: str, *words: str) -> list[dict[str, Any]]:
    return [row for row in site.rows("memory", *words) if row["of"] == of]


def test_which_task_holds_what(site: Site) -> None:
    site.send("shop.render", args=["x" * 10_000])
    site.send("shop.close", countdown=60)
    text = site.text("memory")
    header, first, second, *_ = text.splitlines()
    assert header.split() == [
        "QUEUE",
        "STATE",
        "BYTES",
        "SHARE",
        "MESSAGES",
        "LARGEST",
        "WITH",
        "ZLIB",
        "TASK",
    ]
    assert first.split()[:2] == [QUEUE, "ready"]
    assert first.endswith("shop.render")
    assert second.split()[:2] == [QUEUE, "scheduled"]
    assert "maxmemory is not set, so nobody knows when it is full" in text
    assert [row["task"] for row in rows_of(site, "task")] == ["shop.render", "shop.close"]
    [large, small] = rows_of(site, "task")
    assert large["bytes"] > 13_000 > 3000 > large["bytes_with_zlib"]
    assert large["seen"] == small["messages"] == 1


def test_one_queue(site: Site) -> None:
    site.send()
    site.send(queue="other")
    assert {row["queue"] for row in rows_of(site, "task", "-Q", "other")} == {"other"}
    assert "Not looked at: other queues, and the rest of the database." in site.text("memory", "-Q", "other")


def test_nothing(site: Site) -> None:
    assert "No messages found." in site.run("memory").stderr
    assert rows_of(site, "task") == []


def test_hostile_names_are_printed_safely(site: Site) -> None:
    site.send(HOSTILE)
    site.redis.lpush(QUEUE, "\x1b[2J not a message")
    text = site.text("memory")
    assert "\x1b" not in text
    assert "\N{RIGHT-TO-LEFT OVERRIDE}" not in text
    assert "(not a message)" in text
    assert text.count("evil") == 1


def test_many_tasks_are_one_row(site: Site) -> None:
    for number in range(30):
        site.send(f"shop.task{number}")
    lines = site.text("memory").splitlines()
    [others] = [line for line in lines if line.startswith("others")]
    assert others.endswith("10 tasks")


def test_what_has_expired(site: Site) -> None:
    late = datetime.now(timezone.utc) - timedelta(hours=1)
    for _ in range(3):
        site.send("shop.report", expires=late)
    site.send("shop.close")
    text = site.text("memory")
    assert f"About 75 % of 4 ready messages in {QUEUE} have expired." in text
    [row] = [line for line in text.splitlines() if line.endswith("shop.report")]
    assert "100 %" in row


def test_the_exporter_tells_bytes_and_keeps_them(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.send()
    site.send(countdown=60)
    found = exported(site)
    sizes = {state: found[f'redisdelay_queue_bytes{{state="{state}"}}', QUEUE] for state in OF_MESSAGES}
    assert sizes["ready"] > 300
    assert sizes["scheduled"] > 300
    assert (sizes["unacked"], sizes["failed"], sizes["dead"]) == (0, 0, 0)
    monkeypatch.setattr(exporter, "MOST_QUEUES", 1)
    registry = CollectorRegistry()
    registry.register(QueueCollector(site.store, lambda: ["other", QUEUE]))
    name = 'redisdelay_queue_bytes{state="ready"}'
    first = scrape(registry)
    assert (name, "other") not in first
    site.send()
    assert scrape(registry)[name, QUEUE] == first[name, QUEUE]


def what_the_doctor_finds(site: Site) -> dict[str, Any] | None:
    """With a server that is more than half full."""
    used = int(site.redis.info("memory")["used_memory"])
    site.redis.config_set("maxmemory", int(1.6 * used))
    try:
        # The server of the tests keeps nothing.
        found = {row["check"]: row for row in site.rows("doctor", status=1)}
    finally:
        site.redis.config_set("maxmemory", 0)
    return found.get("what fills Redis")


def test_the_doctor_tells_what_fills_it(site: Site) -> None:
    site.send("shop.render", args=["x" * 100_000])
    assert not any(row["check"] == "what fills Redis" for row in site.rows("doctor", status=1))
    found = what_the_doctor_finds(site)
    assert found is not None
    assert found["level"] == "ok"
    assert "shop.render, ready in celery: " in found["found"]


def test_the_doctor_warns_when_it_is_full_soon(site: Site) -> None:
    site.send("shop.render", args=["x" * 100_000])
    site.add_consumer("worker", 60_000)
    record(site.store, [QUEUE])
    for _ in range(20):
        site.send("shop.render", args=["x" * 100_000])
    found = what_the_doctor_finds(site)
    assert found is not None
    assert found["level"] == "warning"
    assert "an hour, it is full in " in found["found"]
