"""What no key lists any more: doctor says so, and `mend` lists it again."""

from __future__ import annotations

import json

import pytest
from redis.exceptions import NoPermissionError

from kombu_redisdelay.broker.archive import Archive
from kombu_redisdelay.broker.keys import ARCHIVED, known_queues
from kombu_redisdelay.broker.processes import new_consumer
from kombu_redisdelay.broker.server.single import SingleServer
from kombu_redisdelay.operations import mending
from tests.cli.site import QUEUE, Site, sort_by_key
from tests.dead import bury
from tests.failed import keep_failed

Q = ("-Q", QUEUE)
NOTHING = {
    **dict.fromkeys(("consumers", "unacked", "keys", "messages", "scheduled", "kept"), 0),
    "is_unknown": False,
}


def lost(site: Site) -> list[str]:
    """What doctor says of keys that were lost. All of it names the command."""
    rows = map(json.loads, site.run("doctor", "--json").stdout.splitlines())
    found = [row for row in rows if "lost" in row["found"] or "are counted" in row["found"]]
    assert all("`celery delayed mend`" in row["advice"] and row["level"] == "wrong" for row in found)
    return [f"{row['check']}: {row['found']}" for row in found]


def lose_consumer(site: Site, queue: str = QUEUE) -> None:
    """Have a consumer hold two messages, and lose what says so."""
    site.store.remember(queue)
    site.add_consumer("lost", 0, holds=2, queue=queue)
    site.redis.delete(site.store.keys(queue).consumers)


def test_nothing_was_lost(site: Site) -> None:
    site.send(countdown=60)
    result = site.run("mend")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", "There is nothing to list again.\n")
    assert site.rows("mend") == []
    assert lost(site) == []


def test_due_times(site: Site) -> None:
    """Without a worker, nobody else gives them back."""
    for number in range(3):
        site.send(task_id=f"m{number}", countdown=60)
    schedule = site.store.keys(QUEUE).schedule
    before = site.redis.zrange(schedule, 0, -1)
    site.redis.delete(schedule)
    assert site.rows("mend") == [{"queue": QUEUE, **NOTHING, "scheduled": 3}]
    assert site.redis.zrange(schedule, 0, -1) == before
    site.redis.delete(schedule, known_queues(""))
    assert site.rows("mend") == [{"queue": QUEUE, **NOTHING, "scheduled": 3, "is_unknown": True}]
    site.redis.zrem(schedule, "m1")
    assert site.text("mend") == (
        "celery: 1 scheduled message without a due time has the one that it says, or is a dead letter\n"
    )


def test_failed_tasks_and_dead_letters(site: Site) -> None:
    keys = site.store.keys(QUEUE)
    for number in range(3):
        keep_failed(site.store, QUEUE, f"f{number}", "{}")
        bury(site.store, QUEUE, "{}", "rejected")
    # Too old, and too many: none of them goes.
    site.redis.zadd(keys.dead_index, dict.fromkeys(site.redis.zrange(keys.dead_index, 0, -1), 1))
    site.redis.delete(keys.failed, keys.dead_groups)
    assert site.rows("mend") == [{"queue": QUEUE, **NOTHING, "kept": 3}]
    for state in ARCHIVED:
        archive = Archive(site.store, state)
        assert archive.counts([QUEUE]) == [sum(group.count for group in archive.groups(QUEUE))] == [3]
    assert site.redis.pttl(keys.failed) > 0
    site.redis.delete(keys.dead_index)
    assert site.text("mend") == "celery: 3 kept messages are listed again\n"


def test_consumers(site: Site) -> None:
    lose_consumer(site)
    assert lost(site) == [
        "queue celery: 2 messages of 1 consumer that no key lists: if it is lost, nobody gives them back. "
        "Keys in Redis were lost"
    ]
    assert site.text("mend") == "celery: 1 consumer with 2 messages is listed again\n"
    assert site.redis.zrange(site.store.keys(QUEUE).consumers, 0, -1) == ["lost"]
    assert lost(site) == []


def test_what_is_listed_again_is_told_once(site: Site) -> None:
    """Its process is gone, and its lease has ended."""
    site.store.remember(QUEUE)
    process, began, rest = new_consumer().rsplit(":", 2)
    site.add_consumer(f"{process}:{int(began) - 1}:{rest}", 0, holds=2)
    site.redis.delete(site.store.keys(QUEUE).consumers)
    site.text("mend")
    rows = map(json.loads, site.run("doctor", "--json").stdout.splitlines())
    [found] = [row["found"] for row in rows if row["check"] == f"queue {QUEUE}"]
    assert found == "messages are still held by 1 consumer whose lease ended"


def test_keys_without_a_turn(site: Site) -> None:
    site.text("fair", *Q)
    sort_by_key(site, "a", "a", "b")
    site.redis.delete(site.store.keys(QUEUE).turns(0))
    found = sorted(lost(site))
    assert found == [
        "queue celery: 3 messages of 2 keys without a turn, so nobody takes them. Keys in Redis were lost",
        "queue celery: not all messages of its keys are where they are counted: 0 of 3",
    ]
    assert site.rows("mend") == [{**NOTHING, "queue": QUEUE, "keys": 2, "messages": 3}]
    # They are counted again, too.
    assert lost(site) == []


def test_what_is_counted(site: Site) -> None:
    site.text("fair", *Q)
    sort_by_key(site, "a", "a", "b")
    site.redis.delete(site.store.keys(QUEUE).key_list(0, "a"))
    assert lost(site) == ["queue celery: not all messages of its keys are where they are counted: 1 of 3"]
    assert site.run("mend").stderr == "There is nothing to list again.\n"
    assert lost(site) == []


def test_queues(site: Site) -> None:
    keys = site.store.keys("imports")
    site.redis.zadd(keys.schedule, {"id": site.now_ms() + 60_000})
    site.redis.hset(keys.messages, "id", "0:{}")
    # The app declares this one.
    site.send(countdown=60)
    site.redis.delete("redisdelay:known-queues")
    assert lost(site) == [
        "queues: commands for all queues leave out 1 queue that is not listed any more: imports. "
        "Keys in Redis were lost"
    ]
    assert site.text("mend") == (
        "celery is among the known queues again\nimports is among the known queues again\n"
    )
    assert site.store.queues() == ["celery", "imports"]


def test_doctor_looks_at_some_keys_only(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mending, "MOST_LOOKED_AT", 1)
    lose_consumer(site)
    for number in range(5000):
        site.redis.set(f"other{number}", "")
    calls = []
    call = SingleServer.call

    def counted(self: SingleServer, *command: object) -> object:
        calls.append(command[0])
        return call(self, *command)  # type: ignore[arg-type]

    monkeypatch.setattr(SingleServer, "call", counted)
    site.run("doctor")
    assert calls.count("SCAN") == 1


def test_without_the_permission(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    call = SingleServer.call

    def refused(self: SingleServer, *command: object) -> object:
        if command[0] == "SCAN":
            raise NoPermissionError("this user has no permissions to run the 'scan' command")
        return call(self, *command)  # type: ignore[arg-type]

    monkeypatch.setattr(SingleServer, "call", refused)
    result = site.run("mend")
    assert result.exit_code == 1
    assert result.stderr == "Error: The user of the broker URL may not look at all keys: it needs +scan.\n"
    assert "lost keys" not in site.run("doctor").stdout


def test_a_part_that_cannot_be_looked_at(site: Site) -> None:
    lose_consumer(site, "imports")
    site.redis.lpush(site.store.keys("bad").unacked("x"), "no hash")
    result = site.run("mend")
    assert result.exit_code == 1
    assert result.stdout == "imports: 1 consumer with 2 messages is listed again\n"
    assert result.stderr == "Some keys could not be looked at.\n"
