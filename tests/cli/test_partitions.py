"""What a reader sees of a queue with partitions: one queue with the option, several without it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from celery import Celery

from kombu_redisdelay import Messages, Selection
from kombu_redisdelay.operations.limits import pause
from tests.cli.site import Site
from tools.harness.redis_server import RedisServer

QUEUE, COUNT = "emails", 4
NAMES = [QUEUE, *(f"{QUEUE}#{number}" for number in range(1, COUNT))]
MESSAGES = 24

LATER = Selection(state="scheduled")
LIST = ("list", "--state", "scheduled")


@pytest.fixture
def reader(server: RedisServer) -> Iterator[Celery]:
    """An app without the option."""
    app = Celery("reader", broker=server.url(), set_as_current=False)
    app.conf.task_default_queue = QUEUE
    yield app
    app.close()


@pytest.fixture
def producer(server: RedisServer, site: Site) -> Iterator[Celery]:
    """An app with the option, which has published to all partitions: as many due now as later."""
    app = Celery("producer", broker=server.url(), set_as_current=False)
    app.conf.task_default_queue = QUEUE
    app.conf.broker_transport_options = {"partitions": {QUEUE: COUNT}}
    for number in range(MESSAGES):
        app.send_task("t", task_id=f"later {number}", countdown=600)
        app.send_task("t", task_id=f"now {number}")
    yield app
    app.close()


def rows(site: Site, app: Celery, *words: str) -> list[dict[str, Any]]:
    site.app = app
    return site.rows(*words)


class TestWithTheOption:
    def test_a_partition_that_is_paused_is_not_why_the_others_wait(
        self, site: Site, producer: Celery
    ) -> None:
        for name in NAMES:
            site.add_consumer("living", 60_000, queue=name)
        pause(site.store, [NAMES[1]])
        [row] = rows(site, producer, "stats")
        assert row["reason"] == "prefetch full"
        site.app = producer
        assert site.text("resume", "-Q", QUEUE) == f"{QUEUE} resumed\n"
        assert site.text("resume", "-Q", QUEUE) == f"{QUEUE} was not paused\n"
        pause(site.store, NAMES)
        [row] = rows(site, producer, "stats")
        assert row["reason"] == "paused"

    def test_it_is_one_queue(self, site: Site, producer: Celery) -> None:
        [row] = rows(site, producer, "stats")
        assert (row["queue"], row["ready"], row["scheduled"]) == (QUEUE, MESSAGES, MESSAGES)
        assert Counter(row["queue"] for row in rows(site, producer, *LIST)) == {QUEUE: MESSAGES}
        with Messages(producer) as delayed:
            assert delayed.queues() == [QUEUE]
            assert delayed.count(LATER) == delayed.count(replace(LATER, queue=QUEUE)) == MESSAGES

    def test_a_partition_can_be_asked_for(self, site: Site, producer: Celery) -> None:
        each = rows(site, producer, "stats", *(word for name in NAMES for word in ("-Q", name)))
        assert [row["queue"] for row in each] == NAMES
        whole, *parts = each
        assert whole["scheduled"] == MESSAGES, "the name of the queue stands for all of them"
        assert all(0 < row["scheduled"] < MESSAGES for row in parts)
        assert len(rows(site, producer, *LIST, "-Q", NAMES[1])) == parts[0]["scheduled"]

    def test_cancel_and_purge_are_about_all(self, producer: Celery) -> None:
        with Messages(producer) as delayed:
            ids = [f"later {number}" for number in range(MESSAGES)]
            assert delayed.cancel(ids=ids[:10]).by_id == dict.fromkeys(ids[:10], 1)
            assert delayed.cancel(replace(LATER, queue=QUEUE)).count == MESSAGES - 10
            assert delayed.count(LATER) == 0

    def test_all_are_moved_once(self, site: Site, producer: Celery) -> None:
        site.app = producer
        [row] = site.rows("reschedule", "-Q", QUEUE, "--countdown", "1h", "--yes")
        assert row["messages"] == MESSAGES
        with Messages(producer) as delayed:
            ids = [f"later {number}" for number in range(MESSAGES)]
            assert delayed.reschedule(ids=ids, countdown=60).by_id == dict.fromkeys(ids, 1)
            some = delayed.deliver_now(Selection(queue=NAMES[1])).count
            assert 0 < some < MESSAGES
            assert delayed.deliver_now(Selection(queue=[NAMES[1], QUEUE])).count == MESSAGES - some
        [row] = site.rows("stats")
        assert (row["ready"], row["scheduled"]) == (2 * MESSAGES, 0)


class TestWithoutTheOption:
    def test_each_partition_is_a_queue(self, site: Site, producer: Celery, reader: Celery) -> None:
        each = rows(site, reader, "stats")
        assert [row["queue"] for row in each] == NAMES
        assert sum(row["scheduled"] for row in each) == sum(row["ready"] for row in each) == MESSAGES
        listed = Counter(row["queue"] for row in rows(site, reader, *LIST))
        assert listed == {row["queue"]: row["scheduled"] for row in each}
        [asked] = rows(site, reader, "stats", "-Q", NAMES[1])
        assert asked["scheduled"] == listed[NAMES[1]] > 0
        with Messages(reader) as delayed:
            assert delayed.queues() == NAMES
            assert delayed.count(LATER) == MESSAGES
            assert {name: delayed.count(replace(LATER, queue=name)) for name in NAMES} == listed

    def test_the_name_of_the_queue_is_that_of_its_first_partition(
        self, producer: Celery, reader: Celery
    ) -> None:
        with Messages(reader) as delayed:
            first = delayed.count(replace(LATER, queue=QUEUE))
            assert 0 < first < MESSAGES
            assert delayed.cancel(replace(LATER, queue=QUEUE)).count == first
            assert delayed.count(LATER) == MESSAGES - first

    def test_a_message_is_found_wherever_it_is(self, producer: Celery, reader: Celery) -> None:
        with Messages(reader) as delayed:
            ids = [f"later {number}" for number in range(MESSAGES)]
            found = [delayed.get(id) for id in ids]
            assert {message.queue for message in found if message} == set(NAMES)
            assert delayed.reschedule(ids=[ids[0]], countdown=900)
            assert delayed.cancel(ids=ids).by_id == dict.fromkeys(ids, 1)
            assert delayed.count(LATER) == 0
