"""`celery delayed doctor`: what is wrong with queues."""

from __future__ import annotations

import json
import re

import pytest
from kombu.common import Broadcast
from kombu.connection import Connection
from kombu.entity import Exchange, Queue

from kombu_redisdelay.broker.members import DUE
from kombu_redisdelay.operations import limits
from tests.cli.site import QUEUE, Site, payload
from tools.harness.redis_server import RedisServer


@pytest.fixture
def server(good_server: RedisServer) -> RedisServer:
    return good_server


def _work() -> None:
    """What the tasks below do."""


def test_a_queue_that_nobody_has_used(site: Site) -> None:
    site.send(queue="emails")
    site.add_consumer("alive", 60_000, queue="emails")
    rows = site.rows("doctor", "-Q", "nosuch", "-Q", "emails", "-Q", QUEUE)
    found = {row["check"]: (row["level"], row["found"]) for row in rows}
    assert found["queue nosuch"] == ("warning", "nobody has used it yet, and the app does not declare it")
    assert found["queues"] == ("ok", "2 in order")


def test_overdue_messages_without_a_worker(site: Site) -> None:
    site.make_due(site.send(countdown=60), -30_000)
    assert "overdue" in site.findings("wrong")[f"queue {QUEUE}"]


def test_overdue_messages_that_workers_leave(site: Site) -> None:
    site.add_consumer("alive", 60_000)
    site.make_due(site.send(countdown=60), -30_000)
    assert "that no worker moves" in site.findings("wrong")[f"queue {QUEUE}"]


def test_workers_that_are_merely_busy_are_no_problem(site: Site) -> None:
    site.add_consumer("busy", 60_000, holds=2)
    site.send()
    assert f"queue {QUEUE}" not in site.findings("ok"), "it was published just now"
    site.redis.rpush(QUEUE, json.dumps({DUE: site.now_ms() - 40_000, "body": ""}))
    found = site.findings("ok")
    assert re.fullmatch(
        r"2 messages ready, for up to \d+s: all workers are busy, or stop", found[f"queue {QUEUE}"]
    )
    assert found["queues"] == "1 in order"
    assert f"queue {QUEUE}" not in site.findings("warning")


def test_scheduled_messages_without_a_worker(site: Site) -> None:
    site.send(countdown=3600)
    assert site.findings("warning")[f"queue {QUEUE}"] == "1 message scheduled, and no worker"
    site.add_consumer("alive", 60_000)
    assert site.findings("ok")["queues"] == "1 in order"


def test_ready_messages_without_a_worker(site: Site) -> None:
    site.send()
    assert "ready, and no worker" in site.findings("warning")[f"queue {QUEUE}"]


def test_consumers_whose_lease_ended(site: Site) -> None:
    site.add_consumer("gone", -1000, holds=2)
    site.add_consumer("gone, and holds nothing", -1000)
    assert site.findings("wrong")[f"queue {QUEUE}"].endswith("held by 1 consumer whose lease ended")
    site.add_consumer("alive", 60_000)
    assert site.findings("warning")[f"queue {QUEUE}"].endswith("held by 1 consumer whose lease ended")


def test_a_schedule_of_which_messages_are_gone(site: Site) -> None:
    task_id = site.send(countdown=60)
    site.redis.hdel(site.store.keys(QUEUE).messages, task_id)
    assert site.findings("wrong")[f"queue {QUEUE}"].startswith("1 scheduled message lost: ")


def test_a_schedule_of_which_times_are_gone(site: Site) -> None:
    site.send(countdown=60)
    site.redis.delete(site.store.keys(QUEUE).schedule)
    assert site.findings("wrong")[f"queue {QUEUE}"].startswith("1 scheduled message without a due time: ")
    site.text("mend")
    assert site.findings("warning")[f"queue {QUEUE}"] == "1 message scheduled, and no worker"


def test_dead_letters_that_are_in_no_list(site: Site) -> None:
    site.bury(payload("a"), "not a message")
    site.redis.delete(site.store.keys(QUEUE).dead_index)
    found = site.findings("wrong")[f"queue {QUEUE}"]
    assert found.startswith("1 message of failed tasks or dead letters in no list")
    site.text("mend")
    assert site.findings("warning")[f"queue {QUEUE}"] == "1 dead letter"


@pytest.mark.parametrize("name", ["ready", "schedule", "messages", "consumers", "wake", "dead", "history"])
def test_a_key_of_the_wrong_type(site: Site, name: str) -> None:
    key = getattr(site.store.keys(QUEUE), name)
    site.redis.set(key, "")
    assert f"{key!r} holds a string" in site.findings("wrong")[f"queue {QUEUE}"]


def test_messages_that_are_held_for_long(site: Site) -> None:
    site.add_consumer("boot:4026531836:4711:99:abc", 60_000, holds=1)
    hours_ago_us = (site.now_ms() - 3 * 3_600_000) * 1000
    unacked = site.store.keys(QUEUE).unacked("boot:4026531836:4711:99:abc")
    site.redis.hset(unacked, str(hours_ago_us), "0:{}")
    site.redis.hset(unacked, str(site.now_ms() * 1000), "0:{}")
    [found] = site.findings("warning").values()
    assert found.startswith("1 message held for more than an hour, for up to 3.0 h")
    assert "process 4711" in found


def test_a_paused_queue(site: Site) -> None:
    limits.pause(site.store, [QUEUE])
    assert site.findings("warning")[f"queue {QUEUE}"].startswith("paused since ")


def test_partitions_of_which_some_are_limited(site: Site) -> None:
    limits.limit(site.store, QUEUE, rate="1/s")
    site.app.conf.broker_transport_options = {"partitions": {QUEUE: 2}}
    assert site.findings("warning") == {
        f"queue {QUEUE}": "its partitions are not all paused or limited alike"
    }


def test_a_partition_that_is_paused_by_its_own_name(site: Site) -> None:
    limits.pause(site.store, [f"{QUEUE}#1"])
    site.app.conf.broker_transport_options = {"partitions": {QUEUE: 2}}
    assert site.findings("warning") == {
        f"queue {QUEUE}": f"its partitions are not all paused or limited alike: {QUEUE}#1 paused"
    }


def test_limited_places_and_early_acks(site: Site) -> None:
    limits.limit(site.store, QUEUE, concurrency=3)
    found = "workers may hold 3 messages together, but tasks without acks_late are acked before they run"
    assert site.findings("warning") == {f"queue {QUEUE}": found}
    site.app.conf.task_acks_late = True
    assert site.findings("warning") == {}


def test_early_acks_of_the_tasks_of_a_queue(site: Site) -> None:
    site.app.conf.task_routes = {"shop.other": "other"}
    site.app.task(name="shop.late", acks_late=True)(_work)
    site.app.task(name="shop.other")(_work)
    limits.limit(site.store, QUEUE, concurrency=3)
    assert site.findings("warning") == {}
    site.app.task(name="shop.early")(_work)
    [found] = site.findings("warning").values()
    assert found.endswith("but these tasks are acked before they run: shop.early")
    # The command that sets the limit says so, too.
    said = "Workers may hold 2 messages together, but these tasks are acked before they run: shop.early. A"
    assert site.run("limit", "-Q", QUEUE, "--concurrency", "2").stderr.startswith(said)
    site.text("fair", "-Q", QUEUE)
    result = site.run("limit", "-Q", QUEUE, "--per-key", "--concurrency", "1")
    assert "1 message of each key together, but these tasks are acked" in result.stderr
    result = site.run("limit", "-Q", QUEUE, "--key", "a", "--concurrency", "1")
    assert "1 message of the key together, but these tasks are acked" in result.stderr
    assert "acked" not in site.run("limit", "-Q", QUEUE, "--key", "a", "--rate", "9").stderr
    assert "acked" not in site.run("limit", "-Q", QUEUE, "--concurrency", "none").stderr


def test_a_queue_with_a_warning_is_not_in_order(site: Site) -> None:
    site.store.remember("other")
    limits.pause(site.store, [QUEUE])
    rows = [row for row in site.rows("doctor") if row["check"].startswith("queue")]
    assert [(row["check"], row["level"]) for row in rows] == [(f"queue {QUEUE}", "warning"), ("queues", "ok")]
    assert rows[1]["found"] == "1 in order"


def test_a_pause_is_told_in_the_time_zone_of_the_app(site: Site) -> None:
    site.app.conf.timezone = "Asia/Tokyo"
    limits.pause(site.store, [QUEUE])
    assert site.findings("warning")[f"queue {QUEUE}"].endswith("+09:00")


@pytest.mark.parametrize(("key", "field"), [("limits", "interval_us"), ("history", "delivered")])
def test_a_foreign_value(site: Site, key: str, field: str) -> None:
    name = getattr(site.store.keys(QUEUE), key)
    site.store.remember(QUEUE)
    site.redis.hset(name, mapping={field: "abc", "burst": 1})
    found = site.findings("wrong")[f"queue {QUEUE}"]
    assert found == f"key {name!r} has what does not belong there: {field}"


def test_stock_workers_know_no_limits(site: Site) -> None:
    site.redis.hset("unacked", "tag", "[]")
    assert "pauses and limits" not in site.findings("warning")
    limits.limit(site.store, QUEUE, rate="1/s")
    assert site.findings("warning")["pauses and limits"].startswith("workers of redis:// take")


def test_a_queue_that_never_had_a_consumer(site: Site) -> None:
    """Its name is misspelt."""
    for _ in range(3):
        site.send(queue="tpyo")
    # The app of another process has not sent to it.
    del site.app.amqp.queues["tpyo"]
    said = site.run("doctor").output
    assert "queue tpyo: 3 messages ready, and no worker" in said
    assert "The app does not declare it: is its name misspelt?" in " ".join(said.split())
    [row] = [row for row in site.rows("stats") if row["queue"] == "tpyo"]
    assert row["ready"] == 3


def test_tasks_that_no_worker_takes(site: Site) -> None:
    site.add_consumer("alive", 60_000)
    site.leave_unknown("shop.soon", 2)
    assert "queue celery" not in site.findings("warning")
    site.leave_unknown("shop.new", 90)
    site.leave_unknown("shop.new", 3600)
    site.leave_unknown("\x1b[31m", 20)
    for number in range(10):
        site.leave_unknown(f"shop.task{number}", 30)
    found = site.findings("warning")["queue celery"]
    assert found.startswith(
        "messages of 12 tasks wait for a worker that knows it: shop.new (for 1h), shop.task0 (for "
    )
    assert found.endswith(", ...")
    assert "\x1b" not in found


def test_what_is_ready_and_scheduled_without_a_worker_is_one_finding(site: Site) -> None:
    site.send()
    site.send(countdown=3600)
    found = [row["found"] for row in site.rows("doctor") if row["check"] == f"queue {QUEUE}"]
    assert found == ["1 message ready and 1 message scheduled, and no worker"]


MEDIA = Exchange("media", "topic")
SHOP = Exchange("shop", "direct")


def bind(site: Site, *queues: Queue, scheme: str = "redisdelay") -> None:
    """As a worker does that consumes from them."""
    with Connection(site.app.conf.broker_url.replace("redisdelay", scheme)) as connection:
        for queue in queues:
            queue(connection.default_channel).declare()


@pytest.mark.parametrize(
    ("new", "old"),
    [
        (Queue("new", MEDIA, "video.#"), Queue("old", MEDIA, "video.#")),
        (Queue("new", MEDIA, "video.#"), Queue("old", MEDIA, "video.cut")),
        (Queue("new", MEDIA, "video.cut"), Queue("old", MEDIA, "#")),
        (Queue("new", SHOP, "orders"), Queue("old", SHOP, "orders")),
    ],
)
@pytest.mark.parametrize("scheme", ["redis", "redisdelay"])
def test_a_queue_that_is_still_bound(site: Site, new: Queue, old: Queue, scheme: str) -> None:
    site.app.conf.task_queues = [new]
    bind(site, old, scheme=scheme)
    bind(site, new)
    for number in range(2):
        send_to(site, new)
        site.add_consumer("of the new one", 60_000, queue="new")
        # Then nothing but the binding shows that there is such a queue.
        assert (site.redis.llen("old"), site.redis.llen("new")) == (number + 1, number + 1)
    [row] = [row for row in site.rows("doctor") if row["level"] != "ok"]
    assert (row["check"], row["level"]) == ("queue old", "warning")
    named = "" if new.exchange is MEDIA else " and names its exchange"
    assert row["found"] == (
        f"it gets a copy of what is for new{named}: it is still bound to {old.exchange.name!r} by "
        f"{old.routing_key!r}, and the app does not declare it"
    )
    assert "`celery amqp queue.delete old` takes its bindings away, and drops 2 messages." in row["advice"]
    assert "Start a worker" not in row["advice"]
    assert [row] == [row for row in site.rows("doctor", "-Q", "old") if row["level"] != "ok"]

    # What it advises.
    with site.app.connection_for_write() as connection:
        connection.default_channel.queue_delete("old")
    send_to(site, new)
    assert (site.redis.llen("old"), site.redis.llen("new")) == (0, 3)
    assert site.findings("warning") == {}


def send_to(site: Site, queue: Queue) -> None:
    routing_key = "video.cut" if queue.exchange is MEDIA else "orders"
    site.send(queue=queue, exchange=queue.exchange.name, routing_key=routing_key)


def test_what_was_published_to_a_direct_queue_by_its_name_alone_is_no_copy(site: Site) -> None:
    old, new = Queue("old", SHOP, "orders"), Queue("new", SHOP, "orders")
    site.app.conf.task_queues = [new]
    bind(site, old, new)
    site.add_consumer("of the new one", 60_000, queue="new")
    site.send(queue=new)
    assert site.redis.llen("old") == 0
    assert site.findings("warning") == {}
    site.send(queue=old)
    [advice] = [row["advice"] for row in site.rows("doctor") if row["check"] == "queue old"]
    assert "for this queue alone runs nowhere else: `celery delayed list -Q old`" in advice


def test_an_old_binding_of_a_queue_with_a_worker_is_not_old(site: Site) -> None:
    """Another program reads it."""
    site.app.conf.task_queues = [Queue("new", MEDIA, "video.#")]
    bind(site, *site.app.conf.task_queues, Queue("statistics", MEDIA, "#"))
    assert "queue statistics" in site.findings("warning")
    site.add_consumer("of another program", 60_000, queue="statistics")
    assert site.findings("warning") == {}


def test_another_key_gets_no_copy(site: Site) -> None:
    site.app.conf.task_queues = [Queue("new", MEDIA, "video.#"), Queue("orders", SHOP, "orders")]
    bind(site, *site.app.conf.task_queues, Queue("a", MEDIA, "audio.#"), Queue("b", SHOP, "bills"))
    site.redis.sadd("_kombu.binding.media", "(\x06\x16(\x06\x16c")
    assert site.findings("warning") == {}


def test_a_broadcast_queue_whose_worker_is_gone_gets_no_copy(site: Site) -> None:
    """Each process gives it another name."""
    site.app.conf.task_queues = [Queue("new", MEDIA, "video.#"), Broadcast("news")]
    with Connection(site.app.conf.broker_url) as connection:
        gone = Broadcast("news")(connection.default_channel)
        gone.declare()
        left = site.redis.smembers("_kombu.binding.news")
    # As after SIGKILL.
    site.redis.sadd("_kombu.binding.news", *left)
    assert site.findings("warning") == {}
