"""``celery delayed memory``, and who else tells what fills Redis."""

from __future__ import annotations

import re
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from celery import Celery
from kombu.entity import Queue
from prometheus_client import CollectorRegistry

from kombu_redisdelay import Messages
from kombu_redisdelay.broker.known_queues import record
from kombu_redisdelay.cli import memory
from kombu_redisdelay.cli.table import Layout
from kombu_redisdelay.operations import exporter
from kombu_redisdelay.operations.exporter import QueueCollector
from tests.cli.site import QUEUE, Site
from tests.cli.test_exporter import exported, scrape
from tests.finished import OF_MESSAGES
from tests.permissions import allow, documented_rules
from tools.harness.redis_server import RedisServer

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
        "OF",
        "REDIS",
        "MESSAGES",
        "LARGEST",
        "WITH",
        "ZLIB",
        "TASK",
    ]
    assert first.split()[:2] == [QUEUE, "ready"]
    assert first.endswith("shop.render")
    assert second.split()[:2] == [QUEUE, "scheduled"]
    assert "maxmemory is not set" in text
    assert "of what Redis uses." in text
    assert [row["task"] for row in rows_of(site, "task")] == ["shop.render", "shop.close"]
    [large, small] = rows_of(site, "task")
    assert large["bytes"] > 13_000 > 3000 > large["bytes_with_zlib"]
    assert large["seen"] == small["messages"] == 1


def test_one_queue(site: Site) -> None:
    site.send()
    site.send(queue="other")
    assert {row["queue"] for row in rows_of(site, "task", "-Q", "other")} == {"other"}
    assert "Not looked at: other queues, the rest of the database, and when it is full." in site.text(
        "memory", "-Q", "other"
    )


def test_the_largest_keys_of_others(site: Site) -> None:
    site.send()
    for name, size in ("small", 1000), ("large", 2000), ("larger", 3000):
        site.redis.set(name, "x" * size)
    said = site.text("memory")
    assert said.count("The largest of them: 'larger', a string") == 1
    assert said.count("Another large one: 'large', a string") == 1
    assert "'small'" not in said


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


def test_the_task_is_readable_on_a_narrow_terminal(site: Site) -> None:
    task = "shop.reports.read_file_of_imports"
    for _ in range(20):
        site.send(task, countdown=60, queue="imports.of.partners", args=["x" * 10_000])
    site.send(expires=datetime.now(timezone.utc) - timedelta(hours=1))
    with Messages(site.app) as messages:
        rows = memory.table_of(messages.memory())
    layout = Layout(rows, 80)
    lines = ["".join(text for text, _ in line) for line in (*layout.header(), *layout.lines(rows.rows))]
    text = "\n".join(lines)
    assert max(map(len, lines)) <= 80
    assert task[:25] in text
    assert "scheduled" in text
    assert "imports.of.partners" in text


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
    [row] = [line for line in site.text("memory").splitlines() if line.endswith("shop.report")]
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


def test_the_exporter_tells_no_bytes_of_what_cannot_be_read(site: Site) -> None:
    site.send(queue="other")
    site.send()
    site.redis.set(site.store.keys(QUEUE).failed_messages, "of another program")
    registry = CollectorRegistry()
    registry.register(QueueCollector(site.store, lambda: ["other", QUEUE]))
    found = scrape(registry)
    name = 'redisdelay_queue_bytes{state="ready"}'
    assert (name, "other") in found
    assert (name, QUEUE) not in found


def what_the_doctor_finds(site: Site, status: int = 1) -> dict[str, Any] | None:
    """With a server that is more than half full."""
    used = int(site.redis.info("memory")["used_memory"])
    # A buffer of a client that has just sent much counts, and is freed after two seconds.
    site.redis.config_set("maxmemory", int(1.3 * used))
    try:
        # The server of the tests keeps nothing.
        found = {row["check"]: row for row in site.rows("doctor", status=status)}
    finally:
        site.redis.config_set("maxmemory", 0)
    return found.get("what fills Redis")


def test_the_doctor_tells_what_fills_it(site: Site) -> None:
    site.send("shop.render", args=["x" * 100_000])
    assert not any(row["check"] == "what fills Redis" for row in site.rows("doctor", status=1))
    found = what_the_doctor_finds(site)
    assert found is not None
    assert found["level"] == "ok"
    some = r"\d+ KiB \(\d+ %\)"
    assert re.search(
        f"^of what Redis uses: .*queues {some}, of it shop.render, ready in celery, {some}", found["found"]
    )
    site.redis.set("of another program", "x" * 1_000_000)
    found = what_the_doctor_finds(site)
    assert found is not None
    assert re.search(
        r"^of what .*other keys [\d.]+ [KM]iB .*: 'of another program', a string, [\d.]+ [KM]iB; .*queues ",
        found["found"],
    )


def test_the_doctor_warns_when_it_is_full_soon(site: Site) -> None:
    site.send("shop.render", args=["x" * 100_000])
    site.add_consumer("worker", 60_000)
    record(site.store, [QUEUE])
    history = site.store.keys(QUEUE).history
    for mark in ("minute", "hour"):
        began_s, *totals = site.redis.hget(history, mark).split()
        site.redis.hset(history, mark, " ".join([str(int(began_s) - 1000), *totals]))
    for _ in range(20):
        site.send("shop.render", args=["x" * 100_000])
    found = what_the_doctor_finds(site)
    assert found is not None
    assert found["level"] == "warning"
    assert "an hour, measured over 16m" in found["found"]


def test_a_queue_that_may_not_be_read(site: Site, server: RedisServer) -> None:
    # An app declares what it sends to.
    with Celery("another", broker=server.url(), set_as_current=False) as another:
        another.send_task("t", queue="secret")
    url = allow(server, *documented_rules(QUEUE))
    site.app.conf.broker_url = site.app.conf.broker_read_url = site.app.conf.broker_write_url = url
    found = site.run("memory")
    assert found.exit_code == 0
    assert "Could not be read: queue 'secret' (NOPERM" in found.stdout
    assert [row["queue"] for row in rows_of(site, "not read")] == ["secret"]
    found_by_doctor = what_the_doctor_finds(site, status=0)
    assert found_by_doctor is not None
    assert found_by_doctor["found"].endswith("; 1 queue could not be read")
    for _ in range(2):
        asked = site.run("memory", "-Q", "secret")
        assert asked.exit_code == 1
        assert "Could not be read: queue 'secret' (" in asked.stdout
        site.app.amqp.queues.add(Queue("secret"))
    assert site.run("memory").exit_code == 1
