"""An entry of a queue that is not a message does not stop a worker, and is not lost."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from tests.end_to_end.fuzz.wellformed import protocol_1, protocol_2, written
from tests.end_to_end.installation import QUEUE, Installation
from tools.harness.process import wait_until

ENTRIES = {
    "garbage": b"garbage",
    "list": b"[1, 2, 3]",
    "number": b"5",
    "null": b"null",
    "empty": b"",
    "empty object": b"{}",
    "not UTF-8": b'{"body": "\xff\xfe"}',
    "cut off": b'{"body": "W1tdLCB7fSwge31d", "headers": {',
    "wrong types": b'{"body": 5, "headers": [], "properties": "x"}',
    "unknown encoding": b'{"body": "x", "headers": {}, "properties": {"body_encoding": "x"}}',
    "nested deeply": b"[" * 100_000,
}


@pytest.mark.parametrize("pool", ["prefork", "gevent"])
def test_a_worker_survives_entries_that_are_not_messages(site: Installation, pool: str) -> None:
    worker = site.worker(pool=pool, expected="Moved an entry of queue 'celery' that is not a message")
    producer = site.producer()
    for number, entry in enumerate(ENTRIES.values()):
        site.redis.execute_command("LPUSH", QUEUE, entry)
        producer.send_task("work", [str(number)])

    site.wait_ended([str(number) for number in range(len(ENTRIES))])
    wait_until(lambda: len(site.dead()) == len(ENTRIES), 20, "the dead letters")
    dead = site.dead()
    assert {letter.partition(b"\n")[2] for letter in dead} == set(ENTRIES.values())
    # It says so when Redis has already done it.
    wait_until(lambda: worker.log().count("Moved an entry") == len(ENTRIES), 20, "that it says so")
    wait_until(lambda: site.unacked() == 0, 20, "acks")
    assert site.ready() == 0
    assert site.ledger.run_twice() == {}


#: What others write, and Celery means to run: where in a message, and what.
BY_OTHERS: dict[str, tuple[int, str, Any]] = {
    "Go": (2, "eta", "0001-01-01T00:00:00Z"),
    "a number as a text": (2, "retries", "0"),
    "PHP": (1, "headers", []),
}


@pytest.mark.parametrize("zone", ["UTC", pytest.param("America/New_York", marks=pytest.mark.thorough)])
def test_messages_of_others_are_run(site: Installation, monkeypatch: pytest.MonkeyPatch, zone: str) -> None:
    monkeypatch.setenv("TZ", zone)
    site.worker(preloaded=zone == "UTC")
    for label, (version, name, value) in BY_OTHERS.items():
        tree = (protocol_2 if version == 2 else protocol_1)(label, "work")
        (tree["headers"] if version == 2 else tree)[name] = value
        site.redis.execute_command("LPUSH", QUEUE, written(label, tree))
    producer = site.producer()
    producer.send_task("work", ["datetime.min"], eta=datetime.min.replace(tzinfo=timezone.utc))
    site.wait_ended([*BY_OTHERS, "datetime.min"])


def test_a_time_that_no_worker_can_read_is_refused_at_the_call(site: Installation) -> None:
    of_1890 = datetime.now(timezone(timedelta(hours=1, seconds=28))) + timedelta(days=90)
    producer = site.producer()
    for name in ("eta", "expires"):
        with pytest.raises(
            ValueError, match=f"header '{name}' must be an ISO 8601 date and time.* no seconds"
        ):
            producer.send_task("work", ["never"], countdown=None, **{name: of_1890})
    assert site.scheduled() == site.ready() == 0
