"""Measuring: the smallest of everything, with a real server and real processes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from threading import Thread

import pytest
from kombu.messaging import Producer

from tools.benchmarks.cores import apart
from tools.benchmarks.peers import MEMORY, OURS, RABBITMQ, REDIS, Peer
from tools.benchmarks.postbox import Postbox, post
from tools.benchmarks.run import MeasurementError, Runner, Servers, measure, run, start_servers
from tools.benchmarks.schedule import keys, multiply, now_ms
from tools.benchmarks.site import Drain
from tools.benchmarks.workload import Case, Measured, Workload, cases
from tools.benchmarks.workloads import WORKLOADS
from tools.benchmarks.workloads.lateness import schedule_far_ahead
from tools.harness import rabbitmq_server
from tools.harness.redis_server import RedisServer


@pytest.fixture(scope="module")
def servers() -> Iterator[Servers]:
    with start_servers([OURS]) as servers:
        yield servers


def tiny(name: str, *peers: Peer, **sizes: int) -> Workload:
    workload = WORKLOADS[name]
    return replace(workload, cases=cases(*peers), sizes={**workload.sizes, **sizes})


def measured(servers: Servers, workload: Workload) -> dict[str, Measured]:
    """What came out, by case."""
    outcomes = {}
    for case, outcome in measure(servers, workload, workload.cases, workload.sizes):
        assert isinstance(outcome, Measured), outcome
        outcomes[case.name] = outcome
    return outcomes


def ignore(workload: Workload, case: Case, round_: int) -> None:
    pass


def fail(workload: Workload, case: Case, error: Exception) -> None:
    raise AssertionError(f"{workload.name}, {case.name}: {error}")


@pytest.mark.thorough
def test_the_peers_take_turns(servers: Servers) -> None:
    workload = tiny("publish", OURS, REDIS, MEMORY, turns=1, ms=5, batch=2)
    order: list[tuple[str, int]] = []
    records = list(
        run(
            servers,
            [workload],
            2,
            quick=False,
            on_start=lambda workload, case, round_: order.append((case.name, round_)),
            on_failure=fail,
        )
    )
    assert order == [(peer.name, round_) for round_ in (0, 1) for peer in (OURS, REDIS, MEMORY)]
    assert [(record.case, record.round) for record in records] == order
    assert all(record.figures["scheduled"] > 0 for record in records)


@pytest.mark.parametrize("peer", [OURS, pytest.param(REDIS, marks=pytest.mark.thorough)])
def test_a_worker_drains_its_tasks(servers: Servers, peer: Peer) -> None:
    workload = tiny("worker-solo", peer, warm=2, tasks=3)
    assert measured(servers, workload)[peer.name].figures["rate"] > 0


@pytest.mark.thorough
def test_side_by_side_each_has_its_turn(servers: Servers, monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[tuple[Runner, bool]] = []

    class Watched(Runner):
        def take_turn(self) -> Measured | None:
            outcome = super().take_turn()
            order.append((self, outcome is None))
            return outcome

    monkeypatch.setattr("tools.benchmarks.run.Runner", Watched)
    outcomes = measured(servers, tiny("ping-pong", OURS, REDIS, turns=2, pings=2))
    assert {name: len(outcome.samples) for name, outcome in outcomes.items()} == {
        OURS.name: 4,
        REDIS.name: 4,
    }
    # Each gets ready, and then has two turns, the second of which is the last.
    ours, redis = (runner for runner, _ in order[:2])
    assert order == [(ours, True), (redis, True), (ours, True), (redis, True), (ours, False), (redis, False)]


@pytest.mark.skipif(
    sys.platform != "linux" or len(os.sched_getaffinity(0)) < 2, reason="needs two cores, and Linux"
)
def test_redis_has_a_core_of_its_own_meanwhile(servers: Servers) -> None:
    everywhere = os.sched_getaffinity(0)
    assert os.sched_getaffinity(servers.redis.pid) == everywhere
    with apart(servers.redis.pid):
        client = subprocess.check_output(
            [sys.executable, "-c", "import os; print(*os.sched_getaffinity(0))"], text=True
        )
        server = os.sched_getaffinity(servers.redis.pid)
    assert len(server) == 1
    assert server | {int(core) for core in client.split()} == everywhere
    assert not server & {int(core) for core in client.split()}
    assert os.sched_getaffinity(0) == os.sched_getaffinity(servers.redis.pid) == everywhere


def test_many_failed_tasks_are_measured(servers: Servers) -> None:
    outcome = measured(servers, tiny("failed-held", OURS, tasks=3000, looks=1))[OURS.name]
    assert outcome.figures.keys() == WORKLOADS["failed-held"].units.keys()
    # Each has been copied, with its message and its traceback.
    assert outcome.figures["bytes of a failed task"] > 1000


@pytest.mark.thorough
def test_what_it_costs_to_keep_failed_tasks(servers: Servers) -> None:
    workload = WORKLOADS["failed"]
    workload = replace(workload, cases=workload.cases[-1:], sizes={"turns": 1})
    [outcome] = measured(servers, workload).values()
    assert outcome.figures.keys() == workload.units.keys()


def test_the_forwarder_is_measured(servers: Servers) -> None:
    workload = tiny("forward", OURS, messages=20, singles=3)
    outcome = measured(servers, workload)[OURS.name]
    assert outcome.figures["rate"] > 0
    # Never too early.
    assert len(outcome.samples) == 3
    assert min(outcome.samples) >= 0


@pytest.mark.thorough
def test_a_limited_queue_is_measured(servers: Servers) -> None:
    sizes = {"consumers": 1, "warm ms": 10, "ms": 10, "burst": 5, "messages": 60, "alone": 5}
    outcome = measured(servers, tiny("control-binding", OURS, **sizes))[OURS.name]
    # By the clock of Redis, none may be early. The sixth decimal of a millisecond is not known.
    assert len(outcome.samples) == 5
    assert min(outcome.samples) > -1e-3
    assert 0.5 < outcome.figures["share"] < 1.2


def test_quick_leaves_out_what_takes_long(servers: Servers) -> None:
    long = replace(tiny("consume", OURS), quick_sizes=None)
    assert list(run(servers, [long], 1, quick=True, on_start=ignore, on_failure=fail)) == []


@pytest.mark.thorough
def test_what_failed_is_told_once_and_the_rest_goes_on(servers: Servers) -> None:
    # `consume` needs to be told how much of it.
    broken = replace(tiny("consume", OURS), sizes={})
    failures: list[str] = []
    records = run(
        servers,
        [broken, tiny("publish", MEMORY, turns=1, ms=1)],
        2,
        quick=False,
        on_start=ignore,
        on_failure=lambda workload, case, error: failures.append(str(error)),
    )
    assert [record.workload for record in records] == ["publish", "publish"]
    (failure,) = failures
    assert "KeyError: 'warm'" in failure


@pytest.mark.thorough
def test_what_failed_leaves_the_others_beside_it_alone(servers: Servers) -> None:
    told_how_much = Case(OURS.name, OURS, {"turns": 2, "ms": 1, "batch": 1})
    workload = replace(tiny("publish"), cases=[*cases(REDIS), told_how_much], sizes={})
    outcomes = [
        (case.name, type(outcome))
        for case, outcome in measure(servers, workload, workload.cases, workload.sizes)
    ]
    assert outcomes == [(REDIS.name, MeasurementError), (OURS.name, Measured)]


@pytest.mark.thorough
def test_what_takes_too_long_is_killed(servers: Servers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tools.benchmarks.run.TIMEOUT", 0)
    workload = tiny("consume", OURS)
    [(_, outcome)] = measure(servers, workload, workload.cases, workload.sizes)
    assert str(outcome) == "killed; it may take 0 s"


def test_a_multiplied_schedule_is_taken_like_any_other(servers: Servers) -> None:
    (site,) = servers.sites([OURS])
    schedule_far_ahead(site, 3)
    with site.redis() as redis, site.connect() as connection:
        k = keys(site.queue)
        (first, due), *_ = redis.zrange(k.schedule, 0, -1, withscores=True)
        assert redis.zcard(k.schedule) == redis.hlen(k.messages) == 3
        assert due > now_ms(redis) + 3_600_000
        # One of these is taken for a model: all shall be due now.
        redis.zremrangebyrank(k.schedule, 1, -1)
        redis.hdel(k.messages, *(id_ for id_ in redis.hkeys(k.messages) if id_ != first))
        multiply(redis, site.queue, 5, now_ms(redis) - 1000, step_ms=0)
        drain = Drain(site, connection, prefetch=16)
        with drain.consumer:
            drain.until(5)
        assert redis.zcard(k.schedule) == redis.hlen(k.messages) == 0


@contextmanager
def posting(box: Postbox, letters: Sequence[tuple[str, int]]) -> Iterator[None]:
    def send() -> None:
        for subject, content in letters:
            post(str(box.path), subject, content)

    thread = Thread(target=send)
    thread.start()
    yield
    thread.join()


def test_letters_arrive_in_order_however_many(tmp_path: Path) -> None:
    letters = [("late", n) for n in range(200)]
    with closing(Postbox(tmp_path / "box")) as box, posting(box, letters):
        assert [box.receive(10) for _ in letters] == letters


def test_waiting_for_a_letter_drops_those_before_it(tmp_path: Path) -> None:
    with closing(Postbox(tmp_path / "box")) as box, posting(box, [("ready", 1), ("begin", 2), ("end", 3)]):
        assert box.wait("begin", 10) == 2
        assert box.wait("end", 10) == 3
        with pytest.raises(TimeoutError):
            box.receive(0.01)


def test_a_site_is_empty_and_its_queue_new(servers: Servers) -> None:
    (before,) = servers.sites([OURS])
    with before.redis() as redis:
        redis.set("left", "over")
        (site,) = servers.sites([OURS])
        assert redis.dbsize() == 0
    assert before.queue != site.queue


def test_sites_side_by_side_share_nothing(servers: Servers) -> None:
    sites = servers.sites([OURS, REDIS])
    for site in sites:
        with site.connect() as connection:
            site.declare(connection)
            Producer(connection.default_channel).publish("order", routing_key=site.queue)
    for site, other in (sites, reversed(sites)):
        with site.redis() as redis:
            assert (redis.exists(site.queue), redis.exists(other.queue)) == (1, 0)


def test_servers_are_their_own(servers: Servers) -> None:
    assert isinstance(servers.redis, RedisServer)
    assert servers.missing(OURS) is None
    assert servers.missing(RABBITMQ) == "it was not asked for"


def test_without_rabbitmq_the_rest_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> None:
        return None

    monkeypatch.setattr(rabbitmq_server, "rabbitmq_server", none)
    workload = tiny("publish", RABBITMQ, MEMORY, turns=1, ms=1)
    with start_servers([RABBITMQ, MEMORY]) as servers:
        records = list(run(servers, [workload], 1, quick=False, on_start=ignore, on_failure=fail))
        assert servers.missing(RABBITMQ) == "no RabbitMQ server: install rabbitmq-server"
    assert [record.case for record in records] == [MEMORY.name]


@pytest.mark.thorough
def test_the_work_of_a_cluster_is_shared(servers: Servers) -> None:
    workload = tiny("cluster-share", OURS, primaries=2, queues=20, messages=200, warm=50)
    [measured_] = measured(servers, workload).values()
    assert 0 < measured_.figures["least share"] <= 0.5 <= measured_.figures["largest share"] < 1


@pytest.mark.thorough
def test_connections_to_a_cluster_grow_with_the_queues(servers: Servers) -> None:
    sizes = {"primaries": 2, "warm ms": 200, "ms": 100}
    one, four = (
        next(iter(measured(servers, tiny("cluster-idle", OURS, queues=count, **sizes)).values()))
        for count in (1, 4)
    )
    assert four.figures["connections"] >= one.figures["connections"] + 3
