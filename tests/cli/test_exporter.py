"""What `celery delayed exporter` serves, and what workers measure."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from threading import Event, Thread
from typing import Any

import pytest
from prometheus_client import REGISTRY, CollectorRegistry
from prometheus_client.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from kombu_redisdelay import metrics
from kombu_redisdelay.broker.known_queues import record
from kombu_redisdelay.cli import exporter
from kombu_redisdelay.cli.exporter import _listen
from kombu_redisdelay.cli.serving import MOST_CONNECTIONS
from kombu_redisdelay.operations.exporter import QueueCollector
from tests.cli.site import QUEUE, Site
from tests.finished import OF_MESSAGES
from tools.harness.full import BALLAST, fill
from tools.harness.process import wait_until
from tools.harness.redis_server import RedisServer


def scrape(registry: CollectorRegistry) -> dict[tuple[str, str], float]:
    """What Prometheus reads, by name, with its state if it has one, and queue."""

    def name(sample: Sample) -> str:
        state = sample.labels.get("state")
        return sample.name if state is None else f'{sample.name}{{state="{state}"}}'

    families = text_string_to_metric_families(generate_latest(registry).decode())
    return {
        (name(sample), sample.labels.get("queue", "")): sample.value
        for family in families
        for sample in family.samples
        if sample.name.startswith("redisdelay_")
    }


def exported(site: Site) -> dict[tuple[str, str], float]:
    registry = CollectorRegistry()
    registry.register(QueueCollector(site.store, lambda: [QUEUE, "other"]))
    return scrape(registry)


def test_the_columns_of_stats_are_gauges(site: Site) -> None:
    site.send()
    first, second = site.send(countdown=3600), site.send(countdown=7200)
    site.make_due(first, -10_000)
    site.add_consumer("alive", 60_000, holds=2)
    site.bury("{}", "because")
    found = exported(site)
    lateness = found.pop(("redisdelay_queue_oldest_lateness_seconds", QUEUE))
    assert 10 <= lateness < 70
    due_ms = site.redis.zscore(site.store.keys(QUEUE).schedule, first)
    assert found.pop(("redisdelay_queue_next_due_timestamp_seconds", QUEUE)) == pytest.approx(due_ms / 1000)
    assert 0 < found.pop(("redisdelay_queue_waiting_seconds", QUEUE)) < 60
    of_queue = {name: value for (name, queue), value in found.items() if queue == QUEUE}
    sizes = [of_queue.pop(f'redisdelay_queue_bytes{{state="{state}"}}') for state in OF_MESSAGES]
    assert [bool(size) for size in sizes] == [True, True, True, False, True]
    counts = {**dict.fromkeys(OF_MESSAGES, 0), "scheduled": 2, "ready": 1, "unacked": 2, "dead": 1}
    assert of_queue == {
        **{f'redisdelay_queue_messages{{state="{state}"}}': count for state, count in counts.items()},
        "redisdelay_queue_overdue_messages": 1,
        "redisdelay_queue_blocked_messages": 0,
        "redisdelay_queue_consumers": 1,
        "redisdelay_queue_paused": 0,
        "redisdelay_queue_concurrency_limit": 0,
        "redisdelay_queue_rate_limit_per_second": 0,
        "redisdelay_queue_throttled_total": 0,
        "redisdelay_queue_published_total": 0,
        "redisdelay_queue_delivered_total": 0,
        "redisdelay_queue_failures_total": 0,
        "redisdelay_queue_dead_lettered_total": 0,
        "redisdelay_queue_failed_total": 0,
        "redisdelay_queue_failed_dropped_total": 0,
        "redisdelay_queue_returned_total": 0,
        "redisdelay_queue_continuations_lost_total": 0,
        "redisdelay_queue_dropped_total": 0,
        "redisdelay_queue_replaced_total": 0,
    }
    assert {value for (_, queue), value in found.items() if queue == "other"} == {0}
    assert found["redisdelay_up", ""] == 1
    assert second


def test_what_is_blocked_is_a_gauge(site: Site) -> None:
    for id in ("holder", "blocked"):
        site.send(headers={"x-unique": "key", "x-unique-while": "latest"}, task_id=id)
    assert exported(site)["redisdelay_queue_blocked_messages", QUEUE] == 1


def test_the_memory_of_each_server(site: Site) -> None:
    def memory() -> dict[str, float]:
        registry = CollectorRegistry()
        registry.register(QueueCollector(site.store, lambda: []))
        samples = (sample for family in registry.collect() for sample in family.samples)
        [address] = {one.address for one in site.store.server.servers()}
        return {sample.name: sample.value for sample in samples if sample.labels.get("server") == address}

    fill(site.redis)
    try:
        site.redis.config_set("maxmemory-policy", "volatile-lru")
        found = memory()
    finally:
        site.redis.config_set("maxmemory-policy", "noeviction")
        site.redis.config_set("maxmemory", 0)
    assert (
        found["redisdelay_redis_memory_used_bytes"]
        > found["redisdelay_redis_memory_limit_bytes"]
        > BALLAST / 2
    )
    assert found["redisdelay_redis_evicts"] == 1
    assert memory()["redisdelay_redis_evicts"] == 0


def test_the_totals_of_the_history_are_counters(site: Site) -> None:
    for _ in range(3):
        site.send()
    with site.app.connection_for_read() as connection:
        channel = connection.channel()
        channel.basic_get(QUEUE).reject(requeue=True)
        channel.basic_get(QUEUE).ack()
        record(site.store, [QUEUE])
        for id in ("holder", "next", "replaces-the-next", "replaces-it-again"):
            site.send(headers={"x-unique": "sync", "x-unique-while": "latest"}, task_id=id)
        for _ in range(4):
            site.send(headers={"x-unique": "index"})
        found = {name: value for (name, queue), value in exported(site).items() if queue == QUEUE}
        found.pop("redisdelay_queue_throttled_total")
        totals = {name: value for name, value in found.items() if name.endswith("_total")}
        assert totals == {
            "redisdelay_queue_published_total": 3,
            "redisdelay_queue_delivered_total": 2,
            "redisdelay_queue_failures_total": 1,
            "redisdelay_queue_dead_lettered_total": 0,
            "redisdelay_queue_failed_total": 0,
            "redisdelay_queue_failed_dropped_total": 0,
            "redisdelay_queue_returned_total": 0,
            "redisdelay_queue_continuations_lost_total": 0,
            "redisdelay_queue_dropped_total": 3,
            "redisdelay_queue_replaced_total": 2,
        }


def test_a_time_that_is_unknown_is_left_out(site: Site) -> None:
    site.redis.lpush(QUEUE, "of a stock producer")
    assert ("redisdelay_queue_waiting_seconds", QUEUE) not in exported(site)


@pytest.mark.parametrize(
    "name", ["delivered", "flow", "minute", "minutes", "hours"], ids=lambda name: f"{name} of the history"
)
def test_a_foreign_value_takes_no_metrics_away(site: Site, name: str) -> None:
    site.send()
    history = site.store.keys(QUEUE).history
    site.redis.hset(
        history, mapping={"failed": 3, "minute": "1 2 3 4 5", name: "abc\n1 2 3\n\ud7ff 9 9 9 9 9\n"}
    )
    found = exported(site)
    assert found['redisdelay_queue_messages{state="ready"}', QUEUE] == 1
    assert found["redisdelay_queue_failures_total", QUEUE] == 3
    assert found["redisdelay_queue_delivered_total", QUEUE] == 0


@pytest.mark.parametrize("name", ["history", "limits", "schedule"])
def test_a_key_of_the_wrong_type_takes_only_its_queue_away(
    site: Site, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    site.send(queue="other")
    site.redis.set(getattr(site.store.keys(QUEUE), name), "x")
    found = exported(site)
    assert found["redisdelay_up", ""] == 1
    assert found['redisdelay_queue_messages{state="ready"}', "other"] == 1
    assert ('redisdelay_queue_messages{state="ready"}', QUEUE) not in found
    assert f"Cannot read queue {QUEUE!r}" in caplog.text


def test_a_redis_that_is_gone_is_said_so() -> None:
    with RedisServer() as server:
        site = Site(server)
        assert exported(site)["redisdelay_up", ""] == 1
        server.stop()
        assert exported(site) == {("redisdelay_up", ""): 0}
        site.close()


@pytest.fixture
def serving() -> Iterator[tuple[Event, list[str], str]]:
    """An exporter with something slow: it waits for the event. What was asked of it, and its address."""
    go_on, asked = Event(), list[str]()

    def metrics(environ: dict[str, Any], start_response: Any) -> list[bytes]:
        asked.append(environ.get("HTTP_ACCEPT", ""))
        go_on.wait(20)
        start_response("200 OK", [("Content-Type", "text/plain")])
        return [b"metrics"]

    with _listen("127.0.0.1", 0, metrics) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield go_on, asked, f"http://127.0.0.1:{server.server_port}/metrics"
        go_on.set()
        server.shutdown()
        thread.join()


def test_those_who_ask_at_a_time_get_the_same(serving: tuple[Event, list[str], str]) -> None:
    go_on, asked, url = serving

    def get(accept: str) -> bytes:
        request = urllib.request.Request(url, headers={"Accept": accept})
        return bytes(urllib.request.urlopen(request, timeout=30).read())

    with ThreadPoolExecutor(9) as pool:
        answers = [pool.submit(get, "text/plain") for _ in range(8)]
        wait_until(lambda: bool(asked), 30, "that it is asked")
        time.sleep(0.5)
        go_on.set()
        assert {answer.result() for answer in answers} == {b"metrics"}
        assert asked == ["text/plain"]
        assert pool.submit(get, "application/openmetrics-text").result() == b"metrics"
        assert len(asked) == 2


def test_clients_that_are_silent_end(
    serving: tuple[Event, list[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert 0 < exporter._Handler.timeout <= 10
    monkeypatch.setattr(exporter._Handler, "timeout", 0.3)
    go_on, _, url = serving
    go_on.set()
    place = url.split("/")[2].split(":")
    with ExitStack() as clients:
        silent = [
            clients.enter_context(socket.create_connection((place[0], int(place[1])), timeout=20))
            for _ in range(MOST_CONNECTIONS + 5)
        ]
        # Those that are too many are not even waited for.
        assert [client.recv(1) for client in silent] == [b""] * len(silent)
    wait_until(lambda: _answers(url), 30, "that it answers again")


def test_clients_that_are_silent_leave_room_for_others(serving: tuple[Event, list[str], str]) -> None:
    """They are slow all the time: for each that ends, another one comes."""
    go_on, _, url = serving
    go_on.set()
    place = url.split("/")[2].split(":")
    with ExitStack() as clients:
        for _ in range(3):
            for _ in range(MOST_CONNECTIONS):
                client = socket.create_connection((place[0], int(place[1])), timeout=20)
                clients.enter_context(client)
                client.sendall(b"GET /metrics HTTP/1.1\r\nHost:")
            assert _answers(url)


def _answers(url: str) -> bool:
    try:
        return bool(urllib.request.urlopen(url, timeout=10).read())
    except OSError:
        return False


def _measured(name: str, queue: str) -> float:
    return REGISTRY.get_sample_value(name, {"queue": queue}) or 0.0


def test_what_workers_measure(request: pytest.FixtureRequest) -> None:
    queue = request.node.name
    metrics.delivered(queue, 2)
    metrics.late(queue, 0.02)
    metrics.recovered(queue, 3)
    metrics.dead_lettered(queue, 4)
    metrics.lease_lost(queue, 5)
    assert _measured("redisdelay_messages_delivered_total", queue) == 2
    assert _measured("redisdelay_messages_recovered_total", queue) == 3
    assert _measured("redisdelay_messages_dead_lettered_total", queue) == 4
    assert _measured("redisdelay_messages_lease_lost_total", queue) == 5
    assert _measured("redisdelay_lateness_seconds_count", queue) == 1
    assert _measured("redisdelay_lateness_seconds_sum", queue) == 0.02


def test_without_the_extra_nothing_is_measured() -> None:
    """In an interpreter of its own, in which prometheus-client cannot be imported."""
    program = (
        "import sys; sys.modules['prometheus_client'] = None\n"
        "from kombu_redisdelay import metrics\n"
        "metrics.delivered('q', 1); metrics.late('q', 0.1); metrics.recovered('q', 1)\n"
        "metrics.dead_lettered('q', 1); metrics.lease_lost('q', 1)\n"
        "print(hasattr(metrics, 'DELIVERED'))"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout == "False\n"
