"""`celery delayed doctor`: each thing that is wrong is found, and nothing else."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator

import pytest
from celery import Celery

from harness.cluster import Cluster
from harness.redis_server import RedisServer
from kombu_redisdelay.broker.members import DUE
from kombu_redisdelay.operations import limits
from kombu_redisdelay.operations.access import natural
from kombu_redisdelay.operations.doctor.transport_options import check_transport_options
from tests.cli.site import QUEUE, Site, run_delayed


@pytest.fixture(scope="module")
def good_server() -> Iterator[RedisServer]:
    """As the doctor wants it."""
    with RedisServer(appendonly=True) as server:
        yield server


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    # No replica takes over while a server is paused.
    with Cluster(primaries=3, replicas=1, appendonly=True, node_timeout=60_000) as cluster:
        yield cluster


@pytest.fixture
def server(good_server: RedisServer) -> RedisServer:
    with good_server.client() as client:
        client.flushall()
    return good_server


def _findings(site: Site, level: str) -> dict[str, str]:
    """What of this level is found, by check."""
    rows = site.rows("doctor", status=1 if level == "wrong" else 0)
    assert all(bool(row["advice"]) == (row["level"] != "ok") for row in rows)
    return {row["check"]: row["found"] for row in rows if row["level"] == level}


def test_all_is_well(site: Site) -> None:
    site.send()
    site.send(countdown=60)
    site.add_consumer("alive", 60_000, holds=3)
    assert {row["level"] for row in site.rows("doctor")} == {"ok"}
    assert set(_findings(site, "ok")) == {
        *("clock", "version", "role", "persistence", "eviction", "memory", "permissions"),
        *("transport options", "visibility_timeout", "result backend", "redis:// leftovers", "queues"),
    }


def test_queues_in_order_are_one_line(site: Site) -> None:
    for number in (10, 9, 1):
        site.store.remember(f"q{number}")
    for number in (10, 2):
        site.send(queue=f"q{number}")
    assert _findings(site, "ok")["queues"] == "3 in order"
    assert [check for check in _findings(site, "warning") if check.startswith("queue")] == [
        "queue q2",
        "queue q10",
    ]


def test_it_leaves_nothing_behind(site: Site) -> None:
    site.send()
    before = {key: site.redis.dump(key) for key in site.redis.scan_iter()}
    site.rows("doctor")
    assert {key: site.redis.dump(key) for key in site.redis.scan_iter()} == before


def test_the_text_has_the_advice_below(site: Site) -> None:
    site.bury("{}", "because")
    lines = site.text("doctor").splitlines()
    at = next(number for number, line in enumerate(lines) if line.startswith("warning"))
    assert lines[at : at + 2] == [
        f"warning queue {QUEUE}: 1 dead letter",
        "        See `celery delayed list --state dead`, then requeue or remove them.",
    ]


@pytest.mark.parametrize(
    ("settings", "level", "check", "found"),
    [
        ({"maxmemory-policy": "allkeys-lru"}, "wrong", "eviction", "allkeys-lru"),
        ({"appendonly": "no"}, "wrong", "persistence", "none"),
        ({"appendonly": "no", "save": "3600 1"}, "warning", "persistence", "snapshots only"),
        ({"appendfsync": "no"}, "warning", "persistence", "appendfsync no"),
        ({"maxmemory": "1000"}, "wrong", "memory", "it is full"),
    ],
)
def test_settings_of_the_server(
    site: Site, settings: dict[str, str], level: str, check: str, found: str
) -> None:
    before = {name: site.redis.config_get(name)[name] for name in settings}
    try:
        for name, value in settings.items():
            site.redis.config_set(name, value)
        assert found in _findings(site, level)[check]
    finally:
        for name, value in before.items():
            site.redis.config_set(name, value)


def test_memory_that_is_almost_full(site: Site) -> None:
    # So large that it makes no difference what the server frees meanwhile: buffers of clients, for instance.
    site.redis.setrange("ballast", 2**25, "x")
    used = site.redis.info("memory")["used_memory"]
    site.redis.config_set("maxmemory", used * 10 // 9)
    try:
        assert "(maxmemory)" in _findings(site, "warning")["memory"]
    finally:
        site.redis.config_set("maxmemory", 0)


class TestServersOfACluster:
    """Each is named once, and those without a finding together."""

    @pytest.fixture
    def lines(self, cluster: Cluster) -> Callable[[], list[str]]:
        app = Celery("shop", broker=cluster.url(), set_as_current=False)
        return lambda: run_delayed(app, "doctor").stdout.splitlines()

    def test_all_are_in_order(self, cluster: Cluster, lines: Callable[[], list[str]]) -> None:
        first, *others = lines()
        addresses = [node.address for node in cluster.primaries]
        assert first == f"ok      servers: 3 in order, {', '.join(sorted(addresses, key=natural))}"
        assert not [line for line in others if "127.0.0.1" in line]
        checks = [line.removeprefix("ok").strip().partition(":")[0] for line in others]
        assert checks == [
            "permissions",
            "transport options",
            "visibility_timeout",
            "result backend",
            "queues",
        ]

    def test_some_are_not(self, cluster: Cluster, lines: Callable[[], list[str]]) -> None:
        one, two, three = sorted(cluster.primaries, key=lambda node: natural(node.address))
        for node in (one, three):
            node.call("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
        cluster.pause(two)
        try:
            found = lines()
        finally:
            cluster.resume(two)
            cluster.everywhere("CONFIG", "SET", "maxmemory-policy", "noeviction")
            cluster.wait_until_ok()
        assert found[0] == f"        servers {one.address}, {three.address}:"
        assert found[1].startswith("wrong     eviction: maxmemory-policy allkeys-lru")
        assert found[2].startswith("          CONFIG SET")
        assert found[3] == f"        server {two.address}:"
        assert found[4].startswith("wrong     connection: it does not answer: ")
        assert found[5] == "          Its queues wait until it is back."


class TestPartitions:
    def put(self, site: Site, name: str) -> None:
        site.store.remember(name)
        site.store.run(site.store.put(name, 0, "{}"))

    def spread(self, site: Site, **counts: int) -> None:
        site.app.conf.broker_transport_options = {"partitions": counts}

    def test_those_that_the_option_does_not_have(self, site: Site) -> None:
        for name in ("mail", "mail#2", "mail#3", "mail#4", "room#7"):
            self.put(site, name)
        site.redis.delete("mail#4")
        self.spread(site, mail=3)
        found = [row for row in site.rows("doctor", "-Q", "mail") if "partition" in row["found"]]
        assert [(row["check"], row["level"]) for row in found] == [("queue mail", "warning")]
        assert "1 message in the partition mail#3, which no worker takes" in found[0]["found"]
        assert "at least 4 again" in found[0]["advice"]
        # Those of `room#7` are those of a queue.
        rest = {row["check"]: row["found"] for row in site.rows("doctor") if row["level"] == "warning"}
        assert set(rest) == {"queue mail", "queue room#7"}
        assert rest["queue room#7"] == "1 message ready, and no worker"

    def test_without_the_option(self, site: Site) -> None:
        for name in ("mail", "mail#1"):
            self.put(site, name)
        found = [row["found"] for row in site.rows("doctor") if "partition" in row["found"]]
        assert found == [
            "1 message in the partition mail#1, which no worker takes: the option `partitions` says 1 here"
        ]

    def test_one_that_has_a_worker_of_its_own(self, site: Site) -> None:
        for name in ("mail", "mail#1"):
            self.put(site, name)
        site.add_consumer("alive", 60_000, queue="mail#1")
        assert not [row for row in site.rows("doctor") if "partition" in row["found"]]

    def test_a_queue_that_nobody_uses(self, site: Site) -> None:
        self.spread(site, celery=2, mial=8)
        assert _findings(site, "warning") == {
            "queue mial": "it is in the option `partitions`, and nobody has used it yet"
        }


def test_a_lease_that_was_long_because_tasks_are(site: Site) -> None:
    site.app.conf.broker_transport_options = {"visibility_timeout": 43_200}
    assert "43200 seconds" in _findings(site, "warning")["visibility_timeout"]


@pytest.mark.parametrize(("pool", "warns"), [("gevent", True), ("eventlet", True), ("prefork", False)])
def test_a_prefetch_count_that_sinks(site: Site, pool: str, warns: bool) -> None:
    site.app.conf.worker_pool = pool
    assert ("prefetch count" in _findings(site, "warning")) is warns
    site.app.conf.worker_enable_prefetch_count_reduction = False
    assert "prefetch count" not in _findings(site, "warning")


def test_transport_options_that_nobody_reads(site: Site) -> None:
    site.app.conf.broker_transport_options = {"delivery_limits": 3, "region": "eu", "socket_timeout": 3}
    found = [row for row in site.rows("doctor") if row["check"] == "transport options"]
    assert [(row["level"], row["found"], row["advice"]) for row in found] == [
        ("warning", "'delivery_limits' is unknown, and has no effect", "Did you mean 'delivery_limit'?"),
        (
            "warning",
            "'region' is unknown, and has no effect",
            "Take it out of broker_transport_options, unless another program reads it there.",
        ),
    ]


def test_a_server_that_is_not_verified(site: Site) -> None:
    assert "TLS" not in _findings(site, "warning")
    [*_, finding] = check_transport_options({}, is_unverified=True)
    assert (finding.level.value, finding.check) == ("warning", "TLS")
    assert "the certificate of the server is not verified" in finding.found


def test_a_replica(site: Site) -> None:
    site.redis.execute_command("REPLICAOF", "127.0.0.1", "1")
    try:
        assert "read-only" in _findings(site, "wrong")["role"]
    finally:
        site.redis.execute_command("REPLICAOF", "NO", "ONE")


def test_another_clock(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kombu_redisdelay.operations.doctor.server.time", lambda: site.now_ms() / 1000 + 90)
    assert "are 90.0 s apart" in _findings(site, "wrong")["clock"]


def test_a_queue_that_nobody_has_used(site: Site) -> None:
    site.send(queue="emails")
    site.add_consumer("alive", 60_000, queue="emails")
    rows = site.rows("doctor", "-Q", "nosuch", "-Q", "emails", "-Q", QUEUE)
    found = {row["check"]: (row["level"], row["found"]) for row in rows}
    assert found["queue nosuch"] == ("warning", "nobody has used it yet, and the app does not declare it")
    assert found["queues"] == ("ok", "2 in order")


def test_a_queue_that_is_named_as_a_key(site: Site) -> None:
    name = f"redisdelay:{{{QUEUE}}}:dead"
    site.store.remember(name)
    assert "its name is that of a key of another queue" in _findings(site, "wrong")[f"queue {name}"]


def test_overdue_messages_without_a_worker(site: Site) -> None:
    site.make_due(site.send(countdown=60), -30_000)
    assert "overdue" in _findings(site, "wrong")[f"queue {QUEUE}"]


def test_overdue_messages_that_workers_leave(site: Site) -> None:
    site.add_consumer("alive", 60_000)
    site.make_due(site.send(countdown=60), -30_000)
    assert "that no worker moves" in _findings(site, "wrong")[f"queue {QUEUE}"]


def test_workers_that_are_merely_busy_are_no_problem(site: Site) -> None:
    site.add_consumer("busy", 60_000, holds=2)
    site.send()
    assert f"queue {QUEUE}" not in _findings(site, "ok"), "it was published just now"
    site.redis.rpush(QUEUE, json.dumps({DUE: site.now_ms() - 40_000, "body": ""}))
    found = _findings(site, "ok")
    assert re.fullmatch(r"2 messages ready, for up to \d+ s: all workers are busy", found[f"queue {QUEUE}"])
    assert found["queues"] == "1 in order"
    assert f"queue {QUEUE}" not in _findings(site, "warning")


def test_scheduled_messages_without_a_worker(site: Site) -> None:
    site.send(countdown=3600)
    assert _findings(site, "warning")[f"queue {QUEUE}"] == "1 message scheduled, and no worker"
    site.add_consumer("alive", 60_000)
    assert _findings(site, "ok")["queues"] == "1 in order"


def test_ready_messages_without_a_worker(site: Site) -> None:
    site.send()
    assert "ready, and no worker" in _findings(site, "warning")[f"queue {QUEUE}"]


def test_consumers_whose_lease_ended(site: Site) -> None:
    site.add_consumer("gone", -1000, holds=2)
    site.add_consumer("gone, and holds nothing", -1000)
    assert _findings(site, "wrong")[f"queue {QUEUE}"].endswith("held by 1 consumer whose lease ended")
    site.add_consumer("alive", 60_000)
    assert _findings(site, "warning")[f"queue {QUEUE}"].endswith("held by 1 consumer whose lease ended")


def test_leftovers_of_stock_workers(site: Site) -> None:
    check = "redis:// leftovers"
    site.redis.hset("unacked", mapping={"a": "[]", "b": "[]"})
    now = site.now_ms() // 1000
    site.redis.zadd("unacked_index", {"a": now - 10, "b": now - 60})
    assert _findings(site, "warning")[check].startswith("2 messages in 'unacked'")
    site.redis.zadd("unacked_index", {"b": now - 7200})
    assert "; 1 for more than an hour" in _findings(site, "wrong")[check]


def test_a_schedule_of_which_a_part_is_gone(site: Site) -> None:
    task_id = site.send(countdown=60)
    site.redis.hdel(site.store.keys(QUEUE).messages, task_id)
    assert "1 scheduled id, but 0 messages" in _findings(site, "wrong")[f"queue {QUEUE}"]


@pytest.mark.parametrize("name", ["ready", "schedule", "messages", "consumers", "wake", "dead", "history"])
def test_a_key_of_the_wrong_type(site: Site, name: str) -> None:
    key = getattr(site.store.keys(QUEUE), name)
    site.redis.set(key, "")
    assert f"{key!r} holds a string" in _findings(site, "wrong")[f"queue {QUEUE}"]


def _limited(site: Site, server: RedisServer, *rules: str) -> Celery:
    """An app whose user may do all but what *rules* take away."""
    site.redis.execute_command("ACL", "SETUSER", "limited", "reset", "on", ">secret", *rules)
    return Celery("limited", broker=server.url().replace("://", "://limited:secret@"), set_as_current=False)


def test_a_server_whose_settings_may_not_be_asked_for(site: Site, server: RedisServer) -> None:
    """As most of those that are hosted: what cannot be known is not claimed."""
    app = _limited(site, server, "~*", "&*", "+@all", "-config")
    site.redis.config_set("appendonly", "no")
    try:
        result = site.run("doctor", app=app)
    finally:
        site.redis.config_set("appendonly", "yes")
    assert "warning persistence: no append-only file; whether there are snapshots" in result.stdout


def test_messages_that_are_held_for_long(site: Site) -> None:
    site.add_consumer("boot:4026531836:4711:99:abc", 60_000, holds=1)
    hours_ago_us = (site.now_ms() - 3 * 3_600_000) * 1000
    unacked = site.store.keys(QUEUE).unacked("boot:4026531836:4711:99:abc")
    site.redis.hset(unacked, str(hours_ago_us), "0:{}")
    site.redis.hset(unacked, str(site.now_ms() * 1000), "0:{}")
    [found] = _findings(site, "warning").values()
    assert found.startswith("1 message held for more than an hour, for up to 3.0 h")
    assert "process 4711" in found


def test_a_paused_queue(site: Site) -> None:
    limits.pause(site.store, [QUEUE])
    assert _findings(site, "warning")[f"queue {QUEUE}"].startswith("paused since ")


def test_partitions_of_which_some_are_limited(site: Site) -> None:
    limits.limit(site.store, QUEUE, rate="1/s")
    site.app.conf.broker_transport_options = {"partitions": {QUEUE: 2}}
    assert _findings(site, "warning") == {
        f"queue {QUEUE}": "its partitions are not all paused or limited alike"
    }


def test_limited_places_and_early_acks(site: Site) -> None:
    limits.limit(site.store, QUEUE, concurrency=3)
    found = "workers may hold 3 messages together, but tasks without acks_late are acked before they run"
    assert _findings(site, "warning") == {f"queue {QUEUE}": found}
    site.app.conf.task_acks_late = True
    assert _findings(site, "warning") == {}


def _work() -> None:
    """What the tasks below do."""


def test_early_acks_of_the_tasks_of_a_queue(site: Site) -> None:
    site.app.conf.task_routes = {"shop.other": "other"}
    site.app.task(name="shop.late", acks_late=True)(_work)
    site.app.task(name="shop.other")(_work)
    limits.limit(site.store, QUEUE, concurrency=3)
    assert _findings(site, "warning") == {}
    site.app.task(name="shop.early")(_work)
    [found] = _findings(site, "warning").values()
    assert found.endswith("but these tasks are acked before they run: shop.early")


def test_a_queue_with_a_warning_is_not_in_order(site: Site) -> None:
    site.store.remember("other")
    limits.pause(site.store, [QUEUE])
    rows = [row for row in site.rows("doctor") if row["check"].startswith("queue")]
    assert [(row["check"], row["level"]) for row in rows] == [(f"queue {QUEUE}", "warning"), ("queues", "ok")]
    assert rows[1]["found"] == "1 in order"


def test_a_pause_is_told_in_the_time_zone_of_the_app(site: Site) -> None:
    site.app.conf.timezone = "Asia/Tokyo"
    limits.pause(site.store, [QUEUE])
    assert _findings(site, "warning")[f"queue {QUEUE}"].endswith("+09:00")


@pytest.mark.parametrize(("key", "field"), [("control", "interval_us"), ("history", "delivered")])
def test_a_foreign_value(site: Site, key: str, field: str) -> None:
    name = getattr(site.store.keys(QUEUE), key)
    site.store.remember(QUEUE)
    site.redis.hset(name, mapping={field: "abc", "burst": 1})
    found = _findings(site, "wrong")[f"queue {QUEUE}"]
    assert found == f"key {name!r} has what does not belong there: {field}"


def test_stock_workers_know_no_limits(site: Site) -> None:
    site.redis.hset("unacked", "tag", "[]")
    assert "pauses and limits" not in _findings(site, "warning")
    limits.limit(site.store, QUEUE, rate="1/s")
    assert _findings(site, "warning")["pauses and limits"].startswith("workers of redis:// take")


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
    assert "queue celery" not in _findings(site, "warning")
    site.leave_unknown("shop.new", 90)
    site.leave_unknown("shop.new", 3600)
    site.leave_unknown("\x1b[31m", 20)
    for number in range(10):
        site.leave_unknown(f"shop.task{number}", 30)
    found = _findings(site, "warning")["queue celery"]
    assert found.startswith(
        "messages of 12 tasks wait for a worker that knows it: shop.new (for 1h), shop.task0 (for "
    )
    assert found.endswith(", ...")
    assert "\x1b" not in found
