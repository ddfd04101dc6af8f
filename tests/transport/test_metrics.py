"""What the transport measures for Prometheus while it consumes."""

from __future__ import annotations

import pytest
from kombu.entity import Exchange, Queue
from prometheus_client import REGISTRY

from kombu_redisdelay import metrics
from kombu_redisdelay.transport import pools
from tests.transport.kit import Inbox, Site, drain, in_seconds, publish

pytestmark = pytest.mark.one_server


@pytest.fixture
def queue(request: pytest.FixtureRequest) -> str:
    """A queue of each test's own: counters only grow."""
    return str(request.node.name)


def _measured(name: str, queue: str) -> float:
    return REGISTRY.get_sample_value(f"redisdelay_{name}", {"queue": queue}) or 0.0


def test_what_is_delivered_and_how_late(site: Site, queue: str) -> None:
    channel = site.channel()
    publish(channel, "now", queue=queue)
    publish(channel, "by delay", queue=queue, headers={"x-delay": 10})
    publish(channel, "by eta", queue=queue, headers={"eta": in_seconds(0.2).isoformat()})
    inbox = Inbox(channel, queue)
    drain(channel.connection.client, lambda: len(inbox) == 3)
    assert _measured("messages_delivered_total", queue) == 3
    # An x-delay does not say from when on.
    assert _measured("lateness_seconds_count", queue) == 1
    assert 0 <= _measured("lateness_seconds_sum", queue) < 10


def test_what_comes_back_is_delivered_but_not_late(site: Site, queue: str) -> None:
    channel = site.channel()
    publish(channel, "by eta", queue=queue, headers={"eta": in_seconds(0.05).isoformat()})
    inbox = Inbox(channel, queue, on_message=lambda message: message.requeue() if len(inbox) == 1 else None)
    drain(channel.connection.client, lambda: len(inbox) == 2)
    assert _measured("messages_delivered_total", queue) == 2
    assert _measured("lateness_seconds_count", queue) == 1


def test_what_is_recovered_and_whose_lease_was_lost(
    site: Site, queue: str, caplog: pytest.LogCaptureFixture
) -> None:
    slow = site.channel(visibility_timeout=1000)
    for id in ("a", "b"):
        publish(slow, id, queue=queue, headers={"task": "shop.close", "id": id})
    inbox = Inbox(slow, queue)
    drain(slow.connection.client, lambda: len(inbox) == 2)
    other = site.channel(visibility_timeout=0.3)
    others = Inbox(other, queue)

    def given_to_the_other() -> bool:
        # Again and again: the heartbeat may still be about to renew the lease for the first time.
        if len(others) < 2:
            site.end_leases(queue)
        return len(others) == 2

    drain(other.connection.client, given_to_the_other)
    assert _measured("messages_recovered_total", queue) == 2
    assert _measured("messages_lease_lost_total", queue) == 0
    inbox.messages[0].ack()
    slow.consumer.confirm_acks()
    assert _measured("messages_lease_lost_total", queue) == 2
    [line] = [line for line in caplog.messages if "lease of this consumer was lost" in line]
    # The other one is still held, as this consumer believes. This one was just acked.
    assert "may be handled twice: shop.close[a], shop.close[b]. Was" in line


def test_what_becomes_a_dead_letter(site: Site, queue: str) -> None:
    channel = site.channel(dead_letter=True, delivery_limit=2)
    site.redis.lpush(queue, "not a message")
    publish(channel, "rejected", "requeued", queue=queue)
    inbox = Inbox(
        channel, queue, on_message=lambda message: message.reject(requeue=message.payload == "requeued")
    )
    drain(channel.connection.client, lambda: len(site.dead(queue)) == 3)
    assert len(inbox) == 3
    assert _measured("messages_dead_lettered_total", queue) == 3


COUNTERS = ("messages_delivered_total", "messages_recovered_total", "messages_dead_lettered_total")


def _exist(queue: str) -> set[bool]:
    found = (REGISTRY.get_sample_value(f"redisdelay_{name}", {"queue": queue}) for name in COUNTERS)
    return {value is not None for value in found}


def test_counters_exist_while_a_queue_is_consumed_from(site: Site, queue: str) -> None:
    channel = site.channel()
    publish(channel, "waits", queue=queue)
    assert _exist(queue) == {False}
    Inbox(channel, Queue(queue, Exchange(queue), routing_key=queue))
    assert _exist(queue) == {True}
    channel.queue_delete(queue)
    assert _exist(queue) == {False}


def test_a_queue_without_acks_has_no_counters(site: Site, queue: str) -> None:
    channel = site.channel()
    publish(channel, "an answer", queue=queue)
    Inbox(channel, queue, no_ack=True)
    assert _exist(queue) == {False}


def _of_task(name: str, **labels: str) -> float | None:
    return REGISTRY.get_sample_value(f"redisdelay_{name}", labels)


def test_how_tasks_end(queue: str) -> None:
    metrics.task_ended(queue, "succeeded", "-", 0.2, 3.0)
    metrics.task_ended(queue, "failed", "KeyError", None, 0.5)
    metrics.task_ended(queue, "expired", "-", 9.0, None)
    assert _of_task("task_run_seconds_count", task=queue) == 2
    assert _of_task("task_run_seconds_sum", task=queue) == 3.5
    assert _of_task("task_wait_seconds_sum", task=queue) == 9.2
    assert _of_task("task_errors_total", task=queue, error="KeyError") == 1
    for outcome in ("succeeded", "failed", "expired"):
        assert _of_task("tasks_ended_total", task=queue, outcome=outcome) == 1


def test_there_is_a_bounded_number_of_labels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the names of tasks, and of errors: an application may make new ones for ever."""
    monkeypatch.setattr(metrics, "_tasks", {})
    monkeypatch.setattr(metrics, "_errors", set())
    for number in range(metrics.MOST_TASKS + 50):
        metrics.task_ended(f"bounded-{number}", "failed", f"Error{number}", 1.0, 1.0)
        metrics.task_ended("bounded-0", "failed", f"More{number}", 1.0, 1.0)
    labels = [sample.labels for metric in REGISTRY.collect() for sample in metric.samples]
    tasks = {each["task"] for each in labels if each.get("task", "").startswith("bounded-")}
    errors = {each["error"] for each in labels if "bounded" in each.get("task", "") and "error" in each}
    assert len(tasks) == metrics.MOST_TASKS
    assert len(errors) <= metrics.MOST_ERRORS + 1
    assert (_of_task("task_run_seconds_count", task="other") or 0) >= 50
    assert (_of_task("task_errors_total", task="bounded-0", error="other") or 0) >= 50


class Pool:
    num_processes = 4


class Request:
    def __init__(self, id: str) -> None:
        self.id = id


def test_the_places_of_the_pool() -> None:
    pool = Pool()
    state = pytest.importorskip("celery.worker.state")
    pools.watch_pool(pool)
    assert _of_task("pool_places", state="busy") == 0
    assert _of_task("pool_places", state="free") == 4
    requests = [Request(id) for id in "abc"]
    state.active_requests.update(requests)
    try:
        assert _of_task("pool_places", state="busy") == 3
        assert _of_task("pool_places", state="free") == 1
    finally:
        state.active_requests.difference_update(requests)
    del pool
    assert _of_task("pool_places", state="free") == 0
