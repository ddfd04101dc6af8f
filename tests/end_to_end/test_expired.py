"""Tasks that have expired: every pool discards them, and Celery tells of it as ever."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from celery import VERSION

from tests.end_to_end.installation import ALONE, QUEUE, Installation
from tests.end_to_end.test_pools import POOLS
from tools.harness.process import wait_until

LATE = timedelta(hours=-1)
EARLY = timedelta(hours=1)


def ways(moment: datetime) -> dict[str, str]:
    """How *moment* may be written."""
    elsewhere = timezone(timedelta(hours=1))
    return {
        "naive": moment.replace(tzinfo=None).isoformat(),
        "+01:00": moment.astimezone(elsewhere).isoformat(),
        "Z": moment.strftime("%Y-%m-%dT%H:%M:%SZ"),
    }


@pytest.mark.parametrize("pool", POOLS)
def test_it_is_discarded_and_what_is_in_time_runs(site: Installation, pool: str) -> None:
    results = site.server.url("redis")
    producer = site.producer(result_backend=results)
    now = datetime.now(timezone.utc)
    for word, by in (("late", LATE), ("in time", EARLY)):
        for way, text in ways(now + by).items():
            label = f"{word}, {way}"
            # Celery would write it in its own way.
            producer.send_task("work_late", [label], task_id=label, headers={"expires": text})
    worker = site.worker(pool=pool, concurrency=POOLS[pool], settings={"result_backend": results})
    in_time = [f"in time, {way}" for way in ways(now)]
    site.wait_ended(in_time)
    late = [f"late, {way}" for way in ways(now)]
    wait_until(lambda: {producer.AsyncResult(id).state for id in late} == {"REVOKED"}, 30, "no REVOKED")
    assert sorted(site.ledger.started()) == sorted(in_time)
    assert worker.log().count("Discarding revoked task") == len(late)
    wait_until(lambda: (site.ready(QUEUE), site.unacked(QUEUE)) == (0, 0), 30, "something is left")


@pytest.mark.skipif(
    (int(VERSION.major), int(VERSION.minor)) < (5, 6), reason="worker_disable_prefetch came with Celery 5.6"
)
@pytest.mark.parametrize("disabled", [False, True], ids=["fetched ahead", "disable-prefetch"])
@pytest.mark.parametrize("pool", ["threads", "gevent"])
def test_one_that_expires_while_it_waits_behind_another(
    site: Installation, tmp_path: Path, pool: str, disabled: bool
) -> None:
    """celery/celery#7918: it runs if the worker has fetched it ahead."""
    gate, producer = tmp_path / "gate", site.producer()
    args = (*ALONE, "--disable-prefetch") if disabled else ALONE
    worker = site.worker(pool=pool, concurrency=1, prefetch_multiplier=4, args=args)
    producer.send_task("work_late", ["first"], {"gate": str(gate)})
    wait_until(lambda: site.ledger.started() == ["first"], 30, "the first one has not begun")
    expires = datetime.now(timezone.utc) + timedelta(seconds=2)
    producer.send_task("work_late", ["second"], expires=expires)
    if not disabled:
        wait_until(lambda: site.unacked(QUEUE) == 2, 30, "it was not fetched ahead")
    wait_until(lambda: datetime.now(timezone.utc) > expires, 30, "it does not expire")
    if disabled:
        assert (site.ready(QUEUE), site.unacked(QUEUE)) == (1, 1)
    gate.touch()
    wait_until(lambda: (site.ready(QUEUE), site.unacked(QUEUE)) == (0, 0), 30, "something is left")
    assert site.ledger.started() == (["first"] if disabled else ["first", "second"])
    assert ("Discarding revoked task" in worker.log()) == disabled
