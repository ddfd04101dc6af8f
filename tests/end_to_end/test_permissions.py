"""A fleet whose user may do what docs/permissions.rst says, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from celery.bin.base import CLIContext
from click.testing import CliRunner
from kombu.entity import Exchange, Queue

from kombu_redisdelay.cli import delayed
from tests.end_to_end.installation import Installation
from tests.permissions import allow, documented_rules, refused
from tools.harness.celery_worker import STOP_PATIENCE
from tools.harness.process import wait_until
from tools.harness.redis_server import RedisServer

PREFIX = "shop:"


@pytest.fixture
def server() -> Iterator[RedisServer]:
    """As the doctor wants it, and with an ACL of its own."""
    with RedisServer(appendonly=True) as server:
        yield server


@pytest.fixture(params=["", PREFIX], ids=["plain", "global_keyprefix"])
def prefix(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def url(server: RedisServer, prefix: str) -> str:
    return allow(server, *documented_rules("celery", "other", prefix=prefix))


@pytest.fixture
def site(server: RedisServer, tmp_path: Path, prefix: str) -> Iterator[Installation]:
    options = {"global_keyprefix": prefix, "delivery_limit": 3, "dead_letter": True, "keep_finished": {}}
    settings = {"broker_transport_options": options, "task_send_sent_event": True}
    with Installation(server, tmp_path, **settings) as site:
        yield site


@pytest.fixture
def app(site: Installation, url: str) -> Celery:
    app = site.producer()
    app.conf.broker_url = url
    return app


def run(app: Celery, *words: str) -> str:
    """What ``celery delayed`` prints."""
    result = CliRunner().invoke(delayed, words, obj=CLIContext(app, False, None), prog_name="celery delayed")
    assert result.exit_code == 0, (words, result.output, result.exception)
    return str(result.stdout)


def _worker(site: Installation, url: str, **options: Any) -> Any:
    """With mingle, gossip, heartbeats, events and remote control."""
    return site.worker(url=url, pool="prefork", concurrency=2, args=("-E",), **options)


def test_tasks_of_all_kinds(site: Installation, app: Celery, url: str, server: RedisServer) -> None:
    expected = r"Traceback|reached the delivery limit|raised|ValueError"
    _worker(site, url, queues=("celery", "other"), expected=expected)
    app.send_task("work", ["now"])
    app.send_task("work", ["later"], countdown=1)
    app.send_task("work", ["first"], priority=0)
    app.send_task("work", ["last"], priority=9, queue="other")
    app.send_task("work_late", ["late ack"])
    app.send_task("work_late", ["late ack, later"], countdown=1, queue="other")
    app.send_task("retry_once", ["retried"])
    app.send_task("reject", ["rejected"])
    app.send_task("raise_late", ["failed"])
    site.wait_ended(["now", "later", "first", "last", "late ack", "late ack, later"])
    wait_until(lambda: site.ledger.started().count("retried") == 2, 20, "the retry")
    wait_until(lambda: "reject" in run(app, "list", "--state", "dead"), 20, "the dead letter")
    wait_until(lambda: "ValueError" in run(app, "list", "--state", "failed"), 20, "the failed task")
    run(app, "requeue", "--state", "failed", "--error", "ValueError", "--yes")
    wait_until(lambda: "ValueError" in run(app, "list", "--state", "failed"), 20, "that it has failed again")
    assert refused(server) == []


def test_remote_control_and_events(site: Installation, app: Celery, url: str, server: RedisServer) -> None:
    worker = _worker(site, url)
    with app.connection_for_read() as connection:
        heard: list[dict[str, Any]] = []
        receiver = app.events.Receiver(connection, handlers={"*": heard.append})
        for number, _ in enumerate(receiver.itercapture(timeout=20)):
            if not number:
                # It listens by now: a heartbeat of the worker came.
                app.send_task("work", ["heard"])
            kinds = {event["type"] for event in heard}
            if kinds >= {"task-sent", "task-received", "task-succeeded", "worker-heartbeat"}:
                break
    [reply] = app.control.ping(timeout=10, limit=1)
    assert worker.name in str(reply)
    inspected = app.control.inspect(timeout=10, limit=1)
    assert "work" in str(inspected.registered())
    app.control.add_consumer("other", reply=True, timeout=10, limit=1)
    app.send_task("work", ["in the other queue"], queue="other")
    site.wait_ended(["in the other queue"])
    app.control.cancel_consumer("other", reply=True, timeout=10, limit=1)
    app.control.shutdown()
    wait_until(lambda: not worker.running, STOP_PATIENCE, "that it stops")
    assert refused(server) == []


def test_recovery_after_a_kill(
    site: Installation, app: Celery, url: str, server: RedisServer, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    first = _worker(site, url)
    app.send_task("work_late", ["interrupted", 0, str(gate)])
    site.wait_started("interrupted")
    first.kill()
    gate.touch()
    _worker(site, url)
    site.wait_ended(["interrupted"])
    assert refused(server) == []


def test_queues_that_are_purged_deleted_or_expire(app: Celery, server: RedisServer) -> None:
    with app.connection_for_write() as connection:
        channel = connection.channel()
        for arguments in ({}, {"x-expires": 60_000}):
            queue = Queue("other", Exchange("other"), "other", queue_arguments=arguments)(channel)
            queue.declare()
            for countdown in (None, 60):
                app.send_task("work", ["x"], queue=queue, countdown=countdown, connection=connection)
            message = queue.get()
            message.requeue()
            queue.get().ack()
            assert queue.purge() == 1
            queue.delete()
    assert refused(server) == []


def test_the_command_line(site: Installation, app: Celery, server: RedisServer) -> None:
    with app.connection_for_read() as connection:
        # What a worker does that consumes, without the time that one takes to start.
        connection.SimpleQueue("celery").close()
    ids = [app.send_task("work", [str(n)], countdown=3600).id for n in range(5)]
    for words in (
        ("stats",),
        ("list",),
        ("list", "--state", "unacked"),
        ("show", ids[0]),
        ("timeline",),
        ("timeline", "--by", "task"),
        ("cancel", ids[0]),
        ("reschedule", ids[1], "--countdown", "7200"),
        ("deliver-now", ids[2]),
        ("cancel", "--yes", "--state", "scheduled", "--task", "work", "--before", "90m"),
        ("cancel", "--all", "--yes"),
        ("requeue", "--state", "failed", "--all", "--yes"),
        ("requeue", "--state", "dead", "--all", "--yes"),
        ("remove", "--state", "failed", "--all", "--yes"),
        ("remove", "--state", "dead", "--all", "--yes"),
    ):
        run(app, *words)
    assert refused(server) == []


def test_the_doctor_finds_all_well(
    site: Installation, app: Celery, url: str, prefix: str, server: RedisServer
) -> None:
    _worker(site, url)
    consumers = f"{prefix}redisdelay:{{celery}}:consumers"
    with server.client() as client:
        # The worker says that it is ready before it takes from its queue.
        wait_until(lambda: client.exists(consumers), 30, "the worker is a consumer")
    app.send_task("work", ["later"], countdown=60)
    lines = run(app, "doctor").splitlines()
    assert {line.split()[0] for line in lines} == {"ok"}, "\n".join(lines)
    # It asks for more than it needs: the log of refusals, what redis:// has left, and what a producer with
    # another `sep` has sent.
    left = {f"key {prefix}{name} in toplevel" for name in ("unacked", "celery:1")}
    assert set(refused(server)) <= {"command config in toplevel", "command acl in toplevel", *left}
