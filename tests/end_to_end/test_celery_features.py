"""What Celery does with a broker besides running tasks, through our URL and with its defaults."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from functools import partial
from pathlib import Path
from threading import Thread
from uuid import uuid4

import celery
import pytest
from celery import Celery, chain, chord, group

from kombu_redisdelay import batch
from tests.end_to_end.installation import ALONE, Installation
from tools.harness.celery_worker import CeleryWorker
from tools.harness.process import wait_until
from tools.harness.redis_server import RedisServer

#: Where results go, and the queue of the worker that sends them there.
RPC, REDIS = "rpc", "redis"


@pytest.fixture(scope="module")
def site(shared_server: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    with shared_server.client() as client:
        client.flushall()
    with Installation(shared_server, tmp_path_factory.mktemp("features")) as site:
        yield site


@pytest.fixture(scope="module")
def backends(shared_server: RedisServer) -> dict[str, str]:
    return {RPC: "rpc://", REDIS: shared_server.url("redis", db=1)}


@pytest.fixture(scope="module", autouse=True)
def workers(site: Installation, backends: dict[str, str]) -> list[CeleryWorker]:
    """Two that know of each other: mingle and gossip are on."""
    started = [
        site.worker(
            pool="threads",
            concurrency=4,
            # Also where its tasks send others.
            settings={"result_backend": url, "task_default_queue": backend},
            args=["-E"],
        )
        for backend, url in backends.items()
    ]
    # A worker is ready before it listens to commands, with any broker: that begins with its event loop.
    ping = site.producer().control.ping
    wait_until(lambda: len(ping(timeout=2, limit=len(started))) == len(started), 20, "workers that listen")
    return started


@pytest.fixture
def app(site: Installation) -> Celery:
    return site.producer()


@pytest.fixture(params=[RPC, REDIS])
def producer(request: pytest.FixtureRequest, site: Installation, backends: dict[str, str]) -> Celery:
    backend = request.param
    return site.producer(result_backend=backends[backend], task_default_queue=backend)


@pytest.fixture
def redis_producer(site: Installation, backends: dict[str, str]) -> Celery:
    return site.producer(result_backend=backends[REDIS], task_default_queue=REDIS)


def test_every_worker_answers_a_ping(app: Celery, workers: list[CeleryWorker]) -> None:
    # `limit` ends the wait with the last answer.
    answers = app.control.inspect(timeout=10, limit=len(workers)).ping()
    assert sorted(name.split("@")[0] for name in answers) == sorted(w.name for w in workers)


def test_workers_know_each_other(workers: list[CeleryWorker]) -> None:
    assert "mingle: sync with 1 nodes" in "".join(worker.log() for worker in workers)


def test_a_queue_is_added_and_cancelled_by_remote_control(app: Celery, site: Installation) -> None:
    answers = app.control.add_consumer("another", reply=True, timeout=10, limit=2)
    assert [list(answer.values()) for answer in answers] == [[{"ok": "add consumer another"}]] * 2
    app.send_task("work", ["in another queue"], queue="another")
    app.send_task("work", ["later in another queue"], queue="another", countdown=1)
    site.wait_ended(["in another queue", "later in another queue"])

    answers = app.control.cancel_consumer("another", reply=True, timeout=10, limit=2)
    assert len(answers) == 2
    app.send_task("work", ["no longer consumed"], queue="another")
    app.send_task("work", ["still consumed"], queue=RPC)
    site.wait_ended(["still consumed"])
    assert site.ready("another") == 1


def test_a_rate_limit_is_set_by_remote_control(app: Celery) -> None:
    answers = app.control.rate_limit("total", "10/m", reply=True, timeout=10, limit=2)
    assert [list(answer.values()) for answer in answers] == [[{"ok": "new rate limit set successfully"}]] * 2


@contextmanager
def listening(app: Celery, site: Installation) -> Iterator[Callable[[str, str], bool]]:
    """Events are caught; gives a function that says whether one came for the task with an id."""
    seen: set[tuple[str, str]] = set()

    def note(event: dict[str, str]) -> None:
        seen.add((event["type"], event.get("uuid", "")))

    def subscriptions() -> int:
        return int(site.redis.execute_command("PUBSUB", "NUMPAT"))

    with app.connection_for_read() as connection:
        receiver = app.events.Receiver(connection, handlers={"*": note})
        before = subscriptions()
        thread = Thread(target=receiver.capture, kwargs={"wakeup": False})
        thread.start()
        try:
            wait_until(lambda: subscriptions() > before, 30, "the subscription")
            yield lambda kind, task_id: (kind, task_id) in seen
        finally:
            receiver.should_stop = True
            thread.join()


def test_events(app: Celery, site: Installation) -> None:
    app.conf.task_send_sent_event = True
    with listening(app, site) as seen:
        task = app.send_task("work", ["watched"], queue=RPC)
        kinds = ["task-sent", "task-received"]
        if celery.VERSION >= (5, 6):
            # The thread pool of Celery 5.5 loses an event of its threads now and then, with any broker.
            kinds.append("task-succeeded")
        for kind in kinds:
            wait_until(partial(seen, kind, task.id), 30, kind)


def test_results(producer: Celery) -> None:
    now = producer.send_task("add", [1, 2])
    later = producer.send_task("add", [3, 4], countdown=1)
    assert (now.get(timeout=10), later.get(timeout=10)) == (3, 7)


def test_results_for_a_client_that_has_gone_do_not_stay_for_ever(site: Installation) -> None:
    gone = str(uuid4())
    site.producer(task_default_queue=RPC).send_task("work", ["for nobody"], reply_to=gone)
    wait_until(lambda: site.redis.llen(gone), 30, "the result")
    assert 0 < site.redis.ttl(gone) <= 24 * 60 * 60


def test_a_chain_with_a_countdown_in_each_link(producer: Celery) -> None:
    link = producer.signature("add", [10]).set(countdown=1)
    result = chain(producer.signature("add", [1, 2]), link, link).apply_async(countdown=1)
    assert result.get(timeout=20) == 23


def test_a_group(producer: Celery) -> None:
    result = group(producer.signature("add", [n, n]).set(countdown=n % 2) for n in range(10)).apply_async()
    assert result.get(timeout=20) == [2 * n for n in range(10)]


def test_a_chord(redis_producer: Celery) -> None:
    header = [redis_producer.signature("add", [n, n]).set(countdown=n % 2) for n in range(10)]
    body = redis_producer.signature("total").set(countdown=1)
    assert chord(header, app=redis_producer)(body).get(timeout=20) == 90


def test_a_group_a_chain_and_a_chord_in_a_batch(redis_producer: Celery) -> None:
    app = redis_producer
    add, total = app.signature("add"), app.signature("total")
    with batch(app):
        of_group = group(add.clone((n, n)).set(countdown=n % 2) for n in range(10)).apply_async()
        of_chain = chain(add.clone((1, 2)), add.clone((10,))).apply_async()
        of_chord = chord([add.clone((n, n)) for n in range(10)], app=app)(total)
    assert of_group.get(timeout=20) == [2 * n for n in range(10)]
    assert (of_chain.get(timeout=20), of_chord.get(timeout=20)) == (13, 90)


def test_a_retry_with_a_countdown(producer: Celery, site: Installation) -> None:
    label = f"retried {producer.conf.task_default_queue}"
    assert producer.send_task("retry_once", [label]).get(timeout=20) == label
    first, second = (entry for entry in site.ledger.entries("started") if entry.task == label)
    assert first.eta is None
    assert second.eta is not None
    assert not site.ledger.early()
    # It is another message, which was delivered once, and not the first one redelivered.
    assert second.deliveries is None


def test_a_link_with_a_countdown(producer: Celery, site: Installation) -> None:
    label = f"linked {producer.conf.task_default_queue}"
    after = producer.signature("after").set(countdown=1)
    producer.send_task("work", [label], link=after).get(timeout=10)
    site.wait_ended([f"after {label}"])
    [entry] = [entry for entry in site.ledger.entries("started") if entry.task == f"after {label}"]
    assert entry.eta is not None
    assert not site.ledger.early()


def in_one_second() -> datetime:
    return datetime.now(timezone.utc) + timedelta(seconds=1)


ETAS: dict[str, Callable[[], datetime | str]] = {
    "aware, UTC": in_one_second,
    "aware, elsewhere": lambda: in_one_second().astimezone(timezone(timedelta(hours=-9, minutes=30))),
    "naive": lambda: in_one_second().replace(tzinfo=None),
    "ISO 8601": lambda: in_one_second().isoformat(),
    "ISO 8601 with Z": lambda: in_one_second().replace(tzinfo=None).isoformat() + "Z",
    "ISO 8601, naive": lambda: in_one_second().replace(tzinfo=None).isoformat(),
}


def test_every_way_to_write_an_eta(app: Celery, site: Installation) -> None:
    moments = {}
    for way, eta in ETAS.items():
        moments[way] = in_one_second().timestamp() - 0.1
        app.send_task("work", [way], eta=eta(), queue=RPC)
    assert site.scheduled(RPC) == len(ETAS)
    site.wait_ended(list(ETAS))
    started = {entry.task: entry.at for entry in site.ledger.entries("started")}
    assert [way for way in ETAS if started[way] < moments[way]] == []


def test_a_periodic_task_with_a_countdown(site: Installation, tmp_path: Path) -> None:
    entry = {"task": "work", "schedule": 0.5, "args": ["tick"], "options": {"countdown": 1}}
    settings = {"beat_schedule": {"tick": entry}, "task_default_queue": "periodic"}
    beat = ["-B", "-s", str(tmp_path / "schedule")]
    worker = site.worker(settings=settings, args=[*ALONE, *beat])
    wait_until(lambda: site.ledger.ended().count("tick") >= 3, 20, "three ticks")
    worker.kill()
    assert all(e.eta is not None for e in site.ledger.entries("started") if e.task == "tick")
    assert not site.ledger.early()
