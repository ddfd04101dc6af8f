"""One task for each key, with real workers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.installation import Installation
from tools.harness.process import wait_until
from tools.harness.redis_server import RedisServer


@pytest.fixture
def site(server: RedisServer, tmp_path: Path) -> Iterator[Installation]:
    with Installation(server, tmp_path) as site:
        yield site


def start(site: Installation, **options: Any) -> Any:
    return site.worker(app="tests.end_to_end.unique_app", **options)


def send(site: Installation, task: str, key: str, label: str, mode: str, **kwargs: Any) -> None:
    site.producer().send_task(
        task, (key, label), kwargs, headers={"x-unique": key, "x-unique-while": mode}, ignore_result=True
    )


def held(site: Installation) -> int:
    """How many keys are held."""
    names = ("unique", "running")
    return sum(site.redis.execute_command("HLEN", f"redisdelay:{{celery}}:{name}") for name in names)


@pytest.mark.parametrize("pool", ["prefork", "threads", "solo", "gevent", "eventlet"])
def test_one_runs_and_the_newest_is_next(site: Installation, tmp_path: Path, pool: str) -> None:
    gate = tmp_path / "gate"
    start(site, pool=pool, concurrency=1 if pool == "solo" else 4)
    send(site, "sync", "a", "first", "latest", gate=str(gate))
    site.wait_started("first")
    for number in range(5):
        send(site, "sync", "a", f"a{number}", "latest")
        send(site, "rebuild", "b", f"b{number}", "done", gate=str(gate))
    if pool != "solo":
        # Tasks with other keys do not wait.
        site.wait_started("b0")
    assert not {f"a{number}" for number in range(5)} & set(site.ledger.started())
    gate.touch()
    site.wait_ended(["first", "a4", "b0 done"])
    wait_until(lambda: held(site) == site.unacked() == site.ready() == site.scheduled() == 0, 20, "the end")
    assert sorted(site.ledger.ended()) == ["a4", "b0 done", "first"]


@pytest.mark.parametrize("pool", ["prefork", "gevent"])
def test_a_retry_keeps_the_key(site: Installation, pool: str) -> None:
    start(site, pool=pool, concurrency=4)
    send(site, "rebuild", "a", "first", "done", fails=True)
    site.wait_started("first")
    wait_until(lambda: site.scheduled() == 1 and site.unacked() == 0, 20, "that it waits for its retry")
    send(site, "rebuild", "a", "dropped", "done")
    site.wait_ended(["first done"])
    wait_until(lambda: held(site) == 0, 20, "that the key is free")
    send(site, "rebuild", "a", "second", "done")
    site.wait_ended(["second done"])
    assert "dropped" not in site.ledger.started()


def test_a_task_that_replaces_itself(site: Installation, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    start(site, pool="threads", concurrency=4)
    producer = site.producer()
    headers = {"x-unique": "a", "x-unique-while": "latest"}
    producer.send_task("grow", ("a", "old", 1, str(gate)), headers=headers, ignore_result=True)
    site.wait_started("old 1")
    producer.send_task("grow", ("a", "new", 0), headers=headers, ignore_result=True)
    gate.touch()
    site.wait_ended(["old 0", "new 0"])
    assert site.ledger.ended() == ["old 1", "old 0", "new 0"]
    wait_until(lambda: held(site) == site.unacked() == 0, 20, "that no key is held")


def test_it_is_put_off_for_so_long_at_most(site: Installation) -> None:
    """A worker that takes a task before its ``eta`` puts it back."""
    start(site)
    producer = site.producer()
    headers = {"x-unique": "a", "x-unique-while": "latest", "x-unique-at-most": 2}
    for label, countdown in (("first", 2), ("second", 3600)):
        producer.send_task("sync", ("a", label), headers=headers, countdown=countdown, ignore_result=True)
    site.wait_ended(["second"])
    assert site.ledger.started() == ["second"]


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_a_worker_that_is_killed_leaves_no_key_behind(site: Installation, tmp_path: Path, pool: str) -> None:
    gate = tmp_path / "gate"
    worker = start(site, pool=pool, concurrency=2)
    send(site, "sync", "a", "first", "latest", gate=str(gate))
    site.wait_started("first")
    send(site, "sync", "a", "second", "latest")
    worker.kill()
    gate.touch()
    start(site, pool=pool, concurrency=2)
    site.wait_ended(["first", "second"])
    wait_until(lambda: held(site) == site.unacked() == 0, 20, "that no key is held")
    assert site.ledger.ended() == ["first", "second"]


def test_many_producers_of_a_few_keys(site: Installation) -> None:
    """At most one of a key runs at a time, and the last one that was published is seen."""
    for _ in range(2):
        start(site, pool="threads", concurrency=8)
    producers = [site.producer() for _ in range(4)]
    for number in range(100):
        for index, producer in enumerate(producers):
            key = f"k{(number + index) % 5}"
            headers = {"x-unique": key, "x-unique-while": "latest"}
            producer.send_task("sync", (key, f"{key} {number}"), headers=headers, ignore_result=True)
    wait_until(lambda: held(site) == site.unacked() == site.ready() == site.scheduled() == 0, 60, "the end")
    running: set[str] = set()
    for entry in site.ledger.entries():
        key = entry.task.partition(" ")[0]
        if entry.event == "started":
            assert key not in running, "two of one key run"
            running.add(key)
        else:
            running.discard(key)
    last = {f"k{(99 + index) % 5} 99" for index in range(4)}
    assert last <= set(site.ledger.ended())
