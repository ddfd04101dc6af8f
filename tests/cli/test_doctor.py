"""`celery delayed doctor`: each thing that is wrong is found, and nothing else."""

from __future__ import annotations

import re
import socket
from collections.abc import Callable, Iterator
from typing import Any
from uuid import uuid4

import pytest
from celery import Celery

from kombu_redisdelay.broker.failure import CONTINUATION, RESULT
from kombu_redisdelay.operations.access import natural
from kombu_redisdelay.operations.doctor import settings
from kombu_redisdelay.operations.doctor.settings import check_result_backend, check_transport_options
from tests.cli.site import QUEUE, Site, run_delayed
from tests.failed import keep_failed
from tools.harness.cluster import Cluster
from tools.harness.full import fill
from tools.harness.redis_server import HOST, RedisServer, free_port


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    # No replica takes over while a server is paused.
    with Cluster(primaries=3, replicas=1, appendonly=True, node_timeout=60_000) as cluster:
        yield cluster


@pytest.fixture
def server(good_server: RedisServer) -> RedisServer:
    return good_server


def test_all_is_well(site: Site) -> None:
    site.send()
    site.send(countdown=60)
    site.add_consumer("alive", 60_000, holds=3)
    assert {row["level"] for row in site.rows("doctor")} == {"ok"}
    assert set(site.findings("ok")) == {
        *("clock", "version", "role", "persistence", "eviction", "memory", "permissions"),
        *("transport options", "visibility_timeout", "result backend", "redis:// leftovers", "queues"),
    }


def test_queues_in_order_are_one_line(site: Site) -> None:
    for number in (10, 9, 1):
        site.store.remember(f"q{number}")
    for number in (10, 2):
        site.send(queue=f"q{number}")
    assert site.findings("ok")["queues"] == "3 in order"
    assert [check for check in site.findings("warning") if check.startswith("queue")] == [
        "queue q2",
        "queue q10",
    ]


def test_many_failed_of_late(site: Site) -> None:
    def fail(first: int, last: int) -> None:
        for number in range(first, last):
            keep_failed(site.store, QUEUE, str(number), "{}")

    fail(0, 9)
    assert f"queue {QUEUE}" not in site.findings("warning")
    fail(9, 11)
    assert site.findings("warning")[f"queue {QUEUE}"] == "11 failed tasks, 11 of them in the last hour"
    for number in (0, 1):
        site.redis.zadd(site.store.keys(QUEUE).failed, {str(number): site.now_ms() - 3_700_000})
    assert f"queue {QUEUE}" not in site.findings("warning")


def test_what_follows_a_task_that_has_returned(site: Site) -> None:
    for number in range(20):
        keep_failed(site.store, QUEUE, f"h{number}", "{}", returned=RESULT)
    # Of these, nothing else is missing.
    assert f"queue {QUEUE}" not in site.findings("warning")
    keep_failed(site.store, QUEUE, "c", "{}", returned=CONTINUATION)
    assert site.findings("wrong")[f"queue {QUEUE}"] == (
        "1 task has returned, and what follows it was not sent, or not all"
    )


@pytest.mark.parametrize(
    ("settings", "is_told"),
    [
        ({}, True),
        ({"result_backend_always_retry": True}, False),
        ({"task_ignore_result": True}, False),
        # It knows no error after which it may try again.
        ({"result_backend": "cache+memory://"}, False),
    ],
)
def test_results_that_are_stored_at_once_or_never(
    server: RedisServer, settings: dict[str, Any], is_told: bool
) -> None:
    backend = {"result_backend": server.url("redis"), **settings}
    app = Celery("results", broker="memory://", set_as_current=False, **backend)
    found = [finding.level.value for finding in check_result_backend(app)]
    assert found == ["ok", *(["warning"] if is_told else [])]


@pytest.mark.parametrize("scheme", ["redis", "redisdelay"])
def test_results_that_cannot_be_stored(monkeypatch: pytest.MonkeyPatch, scheme: str) -> None:
    """Nobody answers at the port, or the system alone does."""
    monkeypatch.setattr(settings, "PATIENCE", 1.0)
    with socket.create_server((HOST, 0)) as silent:
        for port, said in (
            (free_port(), r"\w+Error|it does not answer within 1 s"),
            (silent.getsockname()[1], "it does not answer within 1 s$"),
        ):
            where = f"{scheme}://{HOST}:{port}/0"
            app = Celery("results", broker="memory://", set_as_current=False, result_backend=where)
            [found, *_] = check_result_backend(app)
            assert found.level.value == "wrong"
            assert re.match(f"{where}: ({said})", found.found), found.found


def test_failed_tasks_that_were_dropped(site: Site) -> None:
    keep_failed(site.store, QUEUE, "1", "{}")
    assert f"queue {QUEUE}" not in site.findings("warning")
    history, now_s = site.store.keys(QUEUE).history, site.now_ms() // 1000
    site.redis.hset(history, "minutes", f"{now_s - 90} 60 0 0 0 0 0 0 9 7")
    assert site.findings("warning")[f"queue {QUEUE}"] == (
        "at its bound of 1 failed task; 7 were dropped in the last hour"
    )


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
        ({"maxmemory-policy": "volatile-lru"}, "wrong", "eviction", "x-expires"),
    ],
)
def test_settings_of_the_server(
    site: Site, settings: dict[str, str], level: str, check: str, found: str
) -> None:
    before = {name: site.redis.config_get(name)[name] for name in settings}
    try:
        for name, value in settings.items():
            site.redis.config_set(name, value)
        assert found in site.findings(level)[check]
    finally:
        for name, value in before.items():
            site.redis.config_set(name, value)


@pytest.mark.once
def test_keys_that_were_thrown_away_are_told() -> None:
    with RedisServer(appendonly=True) as server:
        site = Site(server)
        try:
            site.redis.config_set("maxmemory-policy", "allkeys-lru")
            site.redis.config_set("maxmemory", site.redis.info("memory")["used_memory"] + 2**20)
            for number in range(64):
                site.redis.set(f"key-{number}", "x" * 2**16)
            assert "keys thrown away" in site.findings("wrong")["eviction"]
            site.redis.config_set("maxmemory", 0)
            site.redis.config_set("maxmemory-policy", "noeviction")
            assert "keys thrown away" in site.findings("warning")["eviction"]
            site.redis.config_resetstat()
            assert "eviction" in site.findings("ok")
        finally:
            site.close()


@pytest.mark.once
def test_a_server_without_lua() -> None:
    """As Valkey from 9.1 on without its module: here, EVAL is taken away."""
    names = [word for name in ("EVAL", "EVALSHA") for word in ("--rename-command", name, "")]
    with RedisServer(args=names) as server:
        site = Site(server)
        try:
            [finding] = [row for row in site.rows("doctor", status=1) if row["check"] == "Lua"]
        finally:
            site.close()
    assert finding["level"] == "wrong"
    assert "runs no Lua scripts" in finding["found"]
    assert "Valkey 9.1" in finding["advice"]


def test_memory_that_is_almost_full(site: Site) -> None:
    # So large that it makes no difference what the server frees meanwhile: buffers of clients, for instance.
    site.redis.setrange("ballast", 2**25, "x")
    info = site.redis.info("memory")
    site.redis.config_set("maxmemory", info["used_memory"] * 10 // 9)
    try:
        assert "(maxmemory)" in site.findings("warning")["memory"]
    finally:
        site.redis.config_set("maxmemory", info["maxmemory"])


def test_it_examines_a_server_that_is_full(site: Site) -> None:
    site.send()
    site.add_consumer("alive", 60_000)
    before = site.redis.info("memory")["maxmemory"]
    fill(site.redis)
    try:
        assert set(site.findings("wrong")) == {"memory"}
        assert site.findings("wrong")["memory"].endswith("it is full, and publishing fails")
    finally:
        site.redis.config_set("maxmemory", before)


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
        assert site.findings("warning") == {
            "queue mial": "it is in the option `partitions`, and nobody has used it yet"
        }


def test_a_lease_that_was_long_because_tasks_are(site: Site) -> None:
    site.app.conf.broker_transport_options = {"visibility_timeout": 43_200}
    assert "43200 seconds" in site.findings("warning")["visibility_timeout"]


@pytest.mark.parametrize(("pool", "warns"), [("gevent", True), ("eventlet", True), ("prefork", False)])
def test_a_prefetch_count_that_sinks(site: Site, pool: str, warns: bool) -> None:
    site.app.conf.worker_pool = pool
    assert ("prefetch count" in site.findings("warning")) is warns
    site.app.conf.worker_enable_prefetch_count_reduction = False
    assert "prefetch count" not in site.findings("warning")


@pytest.mark.parametrize(("multiplier", "is_said"), [(1, True), (2, False), (0, False)])
def test_a_pool_that_may_not_grow_again(site: Site, multiplier: int, is_said: bool) -> None:
    site.app.conf.worker_prefetch_multiplier = multiplier
    found = site.findings("ok").get("prefetch count", "")
    assert ("worker_enable_prefetch_count_reduction = False" in found) is is_said
    site.app.conf.worker_enable_prefetch_count_reduction = False
    assert "prefetch count" not in site.findings("ok")


def test_two_workers_of_one_name(site: Site) -> None:
    for boot, pid, name in ("a", 1, "w@x"), ("a", 2, "other@x"), ("b", 3, "w@x"):
        for queue in ("celery", "emails"):
            site.add_consumer(f"{boot}:4026531836:{pid}:99:{uuid4().hex}/{name}", 60_000, queue=queue)
    # It was killed on another machine, and was started again.
    site.add_consumer(f"c:4026531836:4:99:{uuid4().hex}/other@x", 30_000)
    site.send(queue="emails")
    [row] = [row for row in site.rows("doctor") if row["check"] == "workers"]
    assert (row["level"], row["found"]) == ("warning", "2 are named w@x: process 1 on a, process 3 on b")
    assert "with -n" in row["advice"]


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
    assert "TLS" not in site.findings("warning")
    [*_, finding] = check_transport_options({}, is_unverified=True)
    assert (finding.level.value, finding.check) == ("warning", "TLS")
    assert "the certificate of the server is not verified" in finding.found


def test_a_replica(site: Site) -> None:
    site.redis.execute_command("REPLICAOF", "127.0.0.1", "1")
    try:
        assert "read-only" in site.findings("wrong")["role"]
    finally:
        site.redis.execute_command("REPLICAOF", "NO", "ONE")


def test_another_clock(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kombu_redisdelay.operations.doctor.server.time", lambda: site.now_ms() / 1000 + 90)
    assert "are 90.0 s apart" in site.findings("wrong")["clock"]


def test_a_queue_that_is_named_as_a_key(site: Site) -> None:
    name = f"redisdelay:{{{QUEUE}}}:dead"
    site.store.remember(name)
    assert "its name is that of a key of another queue" in site.findings("wrong")[f"queue {name}"]


def test_leftovers_of_stock_workers(site: Site) -> None:
    check = "redis:// leftovers"
    site.redis.hset("unacked", mapping={"a": "[]", "b": "[]"})
    now = site.now_ms() // 1000
    site.redis.zadd("unacked_index", {"a": now - 10, "b": now - 60})
    assert site.findings("warning")[check].startswith("2 messages in 'unacked'")
    site.redis.zadd("unacked_index", {"b": now - 7200})
    assert "; 1 for more than an hour" in site.findings("wrong")[check]


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


def _work() -> None:
    """What the tasks below do."""
