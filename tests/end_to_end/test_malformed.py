"""An entry of a queue that is not a message does not stop a worker, and is not lost."""

from __future__ import annotations

import pytest

from tests.end_to_end.installation import QUEUE, Installation
from tools.harness.process import wait_until

DEAD = f"redisdelay:{{{QUEUE}}}:dead"
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
    wait_until(lambda: site.redis.execute_command("LLEN", DEAD) == len(ENTRIES), 20, "the dead letters")
    dead = site.redis.execute_command("LRANGE", DEAD, 0, -1)
    assert {letter.partition(b"\n")[2] for letter in dead} == set(ENTRIES.values())
    # It says so when Redis has already done it.
    wait_until(lambda: worker.log().count("Moved an entry") == len(ENTRIES), 20, "that it says so")
    wait_until(lambda: site.unacked() == 0, 20, "acks")
    assert site.ready() == 0
    assert site.ledger.run_twice() == {}
