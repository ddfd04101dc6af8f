"""`celery delayed stats`."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import datetime

import pytest

from kombu_redisdelay.broker.members import DUE
from kombu_redisdelay.cli.queues import heading
from kombu_redisdelay.operations.columns import QUEUE_COLUMNS
from kombu_redisdelay.operations.states import STATES
from tests.broker.rig import payload, with_count
from tests.cli.site import QUEUE, Site, consumer_that_is_gone
from tests.transport.kit import Inbox, drain
from tests.web.states import delivered

#: In JSON.
UNLIMITED = {
    "paused_since": None,
    "rate": None,
    "burst": None,
    "concurrency": None,
    "throttled": 0,
    "per_second": None,
}


def test_every_place_of_a_message_is_counted(site: Site) -> None:
    for priority in (0, 3, 9):
        site.send(priority=priority)
    waiting = [site.send(countdown=3600) for _ in range(4)]
    site.make_due(waiting[0], -5000)
    site.make_due(waiting[1], -2000)
    site.add_consumer("alive", 60_000, holds=2)
    site.add_consumer("idle", 60_000)
    site.add_consumer("gone", -1000, holds=1)
    site.bury("{}", "because")

    [stats] = site.rows("stats")
    due = datetime.fromisoformat(stats.pop("next_due")).timestamp() * 1000
    lateness, waited = stats.pop("lateness"), stats.pop("waiting")
    assert stats == {
        "queue": QUEUE,
        **{**dict.fromkeys(STATES, 0), "ready": 3, "scheduled": 4, "unacked": 3, "dead": 1},
        "overdue": 2,
        "consumers": 2,
        "consumers_lost": 1,
        "limits": UNLIMITED,
        "reason": "prefetch full",
        "fairness": None,
        "bound": None,
        **dict.fromkeys(("blocked", "dropped", "replaced", "returned"), 0),
    }
    assert due == site.redis.zscore(site.store.keys(QUEUE).schedule, waiting[0])
    assert 0 < waited < 60
    assert 5 <= lateness <= 5 + (site.store.now_ms() - due - 5000) / 1000


def reason(site: Site) -> str | None:
    [stats] = site.rows("stats")
    text = site.text("stats")
    assert stats["reason"] is None or f" {stats['reason']}\n" in text
    assert ("REASON" in text) == (stats["reason"] is not None)
    return str(stats["reason"]) if stats["reason"] else None


def test_why_messages_wait_although_a_consumer_is_there(site: Site) -> None:
    wake = site.store.keys(QUEUE).wake
    site.send()
    assert reason(site) is None, "nobody is there"
    site.add_consumer("alive", 60_000)
    assert reason(site) == "prefetch full", "who has room takes the token at once"
    site.redis.delete(wake)
    assert reason(site) is None, "somebody has"
    site.redis.rpush(QUEUE, json.dumps({DUE: site.now_ms() - 10_000, "body": ""}))
    assert reason(site) == "prefetch full", "and would have taken it by now"
    site.redis.rpop(QUEUE)
    site.add_consumer("holds", 60_000, holds=2)
    assert reason(site) == "prefetch full"

    site.text("limit", "-Q", QUEUE, "--rate", "1/h", "--concurrency", "3")
    assert reason(site) == "prefetch full"
    site.redis.hset(site.store.keys(QUEUE).limits, "full_at_us", (site.now_ms() + 3_600_000) * 1000)
    assert reason(site) == "rate limit"
    site.add_consumer("another", 60_000, holds=1)
    assert reason(site) == "concurrency limit"
    site.text("pause", "-Q", QUEUE)
    assert reason(site) == "paused"

    site.redis.delete(QUEUE)
    assert reason(site) is None, "none is ready"


def test_nobody_consumes(site: Site) -> None:
    late = site.send(countdown=60)
    site.make_due(late, -4000)
    assert reason(site) is None, "somebody may have begun to consume"
    site.make_due(late, -10_000)
    assert reason(site) == "no consumer"
    site.text("pause", "-Q", QUEUE)
    assert reason(site) == "paused"
    site.text("resume", "-Q", QUEUE)
    site.text("cancel", late)
    site.redis.lpush(QUEUE, json.dumps({"body": ""}))
    assert reason(site) is None, "a worker of redis:// may"
    site.redis.lpush(QUEUE, json.dumps({DUE: site.now_ms() - 10_000, "body": ""}))
    site.redis.rpop(QUEUE)
    assert reason(site) == "no consumer"


def test_the_workers_are_gone(site: Site) -> None:
    site.add_consumer(consumer_that_is_gone(), 60_000, holds=1)
    id = site.send()
    assert reason(site) == "workers lost"
    assert "The workers of the queue are gone" in site.text("show", id)
    site.redis.zadd(site.store.keys(QUEUE).schedule, {site.send(countdown=60): site.now_ms() - 10_000})
    [found] = [each["found"] for each in site.rows("doctor", status=1) if "workers are gone" in each["found"]]
    assert found == "1 message ready and 1 message overdue, and the processes of all its workers are gone"
    site.redis.delete(QUEUE)
    assert reason(site) == "workers lost", "nobody moves what is overdue"
    site.add_consumer("alive", 60_000)
    assert reason(site) is None
    site.text("deliver-now", "--all", "--yes")
    assert reason(site) == "prefetch full"


def hold(site: Site, consumer: str, lost: int = 3, seconds: float = 1, queue: str = QUEUE) -> None:
    """Write down a message that a consumer has taken so long ago, after so many others have died of it."""
    site.add_consumer(consumer, 60_000, queue=queue)
    tag = site.now_ms() * 1000 - round(seconds * 1_000_000)
    site.redis.hset(
        site.store.keys(queue).unacked(consumer), str(tag), "0:" + with_count(payload("a"), lost, lost)
    )


def test_each_consumer_holds_a_suspect_alone(site: Site) -> None:
    site.send()
    hold(site, "one", lost=0, seconds=20)
    hold(site, "one")
    assert reason(site) == "isolated"
    site.add_consumer("another", 60_000)
    assert reason(site) == "prefetch full"
    hold(site, "another", seconds=59)
    assert reason(site) == "isolated"
    site.text("pause", "-Q", QUEUE)
    assert reason(site) == "paused"
    site.text("resume", "-Q", QUEUE)
    hold(site, "another", lost=0)
    assert reason(site) == "prefetch full", "it has taken one since then"


@pytest.mark.parametrize(("lost", "seconds"), [(2, 1), (3, 61)])
def test_one_that_is_no_suspect_and_one_that_has_been_alone(site: Site, lost: int, seconds: int) -> None:
    site.send()
    hold(site, "one", lost=lost, seconds=seconds)
    assert reason(site) == "prefetch full"


def test_a_suspect_of_another_queue(site: Site) -> None:
    site.send()
    site.add_consumer("one", 60_000)
    hold(site, "one", queue="other")
    site.store.remember("other")
    assert {row["queue"]: row["reason"] for row in site.rows("stats")} == {QUEUE: "isolated", "other": None}
    asked = {row["queue"]: row["reason"] for row in site.rows("stats", "-Q", QUEUE)}
    assert asked == {QUEUE: "prefetch full"}, "the other one was not looked at"


@pytest.mark.parametrize(("limit", "expected"), [(3, "isolated"), (4, "prefetch full"), (1, "prefetch full")])
def test_how_many_deaths_make_a_suspect(site: Site, limit: int, expected: str) -> None:
    site.app.conf.broker_transport_options = {"delivery_limit": limit}
    site.send()
    hold(site, "one", lost=2)
    assert reason(site) == expected


def test_no_worker_knows_their_task(site: Site) -> None:
    id = site.leave_unknown("shop.new", 60)
    assert reason(site) is None, "nobody is there"
    site.add_consumer("one", 60_000)
    assert reason(site) == "unknown task"
    site.send()
    assert reason(site) == "prefetch full"
    site.redis.delete(QUEUE)
    site.redis.hdel(site.store.keys(QUEUE).messages, id)
    assert reason(site) is None, "it does not wait any more, though it is listed"
    site.leave_unknown("shop.new", 2)
    assert reason(site) is None, "a worker may be about to take it"


def test_queues_are_in_natural_order(site: Site) -> None:
    names = ["q1", "q2", "q10", "q10a", "q10b"]
    for name in reversed(names):
        site.store.remember(name)
    assert [row["queue"] for row in site.rows("stats")] == [QUEUE, *names]


def test_an_empty_queue_is_all_zeros(site: Site) -> None:
    [stats] = site.rows("stats")
    assert stats.pop("queue") == QUEUE
    assert stats.pop("next_due") is stats.pop("reason") is stats.pop("fairness") is stats.pop("bound") is None
    assert stats.pop("limits") == UNLIMITED
    assert set(stats.values()) == {0}


def test_the_queues_are_those_of_the_broker_and_those_of_the_app(site: Site) -> None:
    site.send(queue="other", countdown=60)
    assert [row["queue"] for row in site.rows("stats")] == [QUEUE, "other"]
    assert [row["queue"] for row in site.rows("stats", "-Q", "other")] == ["other"]
    assert [row["queue"] for row in site.rows("stats", "-Q", "b", "-Q", "a", "-Q", "b")] == ["b", "a"]


@pytest.mark.parametrize("command", [["stats"], ["list"], ["timeline"], ["doctor"]])
def test_a_misspelt_queue_is_told(site: Site, command: list[str]) -> None:
    site.send(queue="other", countdown=60)
    site.redis.lpush("of an old producer", "")
    told = {}
    for queue in (QUEUE, "other", "of an old producer", "othr"):
        told[queue] = "Nobody has used a queue" in site.run(*command, "-Q", queue).stderr
    assert told == {QUEUE: False, "other": False, "of an old producer": False, "othr": True}


def test_the_table_is_plain_text_where_there_is_no_terminal(site: Site) -> None:
    site.send(
        queue="a-queue-with-a-name-that-is-longer-than-a-narrow-terminal-would-have-room-for-at-all",
        countdown=60,
    )
    header, *rows = site.text("stats").splitlines()
    assert header.split() == [
        "QUEUE",
        "READY",
        "WAIT",
        "SCHEDULED",
        "OVERDUE",
        *(each.name.upper() for each in list(STATES.values())[2:] if not each.is_rare),
        *("CONSUMERS", "NEXT", "DUE"),
    ]
    assert rows[0].split()[1:5] == ["0", "-", "1", "0"]
    assert rows[0].startswith(
        "a-queue-with-a-name-that-is-longer-than-a-narrow-terminal-would-have-room-for-at-all "
    )
    assert all(line == line.rstrip() for line in [header, *rows])


def test_a_queue_that_is_consumed_is_known(site: Site) -> None:
    with site.app.connection_for_read() as connection:
        Inbox(connection.channel(), "consumed")
        drain(connection, lambda: "consumed" in site.store.queues())
        assert {row["queue"]: row["consumers"] for row in site.rows("stats")} == {QUEUE: 0, "consumed": 1}


@pytest.mark.parametrize(("command", "name"), [("stats", "schedule"), ("history", "history")])
def test_a_key_of_the_wrong_type_takes_only_its_queue_away(site: Site, command: str, name: str) -> None:
    delivered(site, "a")
    site.store.remember("other")
    key = getattr(site.store.keys("other"), name)
    site.redis.set(key, "x")
    result = site.run(command)
    assert (result.exit_code, QUEUE in result.stdout, "other" in result.stdout) == (1, True, False)
    assert result.stderr.startswith("Cannot read queue 'other': ")
    assert key in result.stderr


def test_they_are_there_when_redis_is_out_of_memory(site: Site) -> None:
    site.send(countdown=3600)
    site.redis.config_set("maxmemory", "1")
    try:
        [stats] = site.rows("stats")
        site.store.remember("other")
    finally:
        site.redis.config_set("maxmemory", "0")
    assert stats["scheduled"] == 1


@pytest.mark.parametrize("words", [("stats",), ("pause", "--all")])
def test_without_any_queue_that_is_said_to_a_person_only(site: Site, words: tuple[str, ...]) -> None:
    site.app.conf.task_default_queue = None
    result = site.run(*words)
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", "No queues found.\n")
    result = site.run(*words, "--json")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", "")


def test_a_rare_state_has_no_column_where_nobody_has_one() -> None:
    dead = QUEUE_COLUMNS["dead"]
    rare = replace(dead, is_rare=True)
    assert (heading(rare).usual, heading(dead).usual) == ("0", None)
    assert heading(rare).header == heading(dead).header == "DEAD"
