"""What the commands for fair queues say beside what they did: what has no effect yet, what is still so."""

from __future__ import annotations

from datetime import datetime, timezone

import pytest
from kombu.entity import Queue

from kombu_redisdelay import keys
from kombu_redisdelay.cli.keys import _table
from kombu_redisdelay.cli.table import Layout
from kombu_redisdelay.operations.fair import KeyLimits
from kombu_redisdelay.operations.key_stats import KeyStats
from tests.cli.site import QUEUE, Site, sort_by_key
from tools.harness.redis_server import RedisServer

Q = ("-Q", QUEUE)


@pytest.fixture
def server(good_server: RedisServer) -> RedisServer:
    return good_server


@pytest.fixture
def fair(site: Site) -> Site:
    """A fair queue of an app that takes nothing ahead."""
    site.app.conf.worker_prefetch_multiplier = 1
    site.text("fair", *Q)
    return site


def test_a_prefetch_that_is_not_fair(site: Site) -> None:
    for number, said in ((4, "4 messages for each of its processes"), (0, "all messages that are ready")):
        site.app.conf.worker_prefetch_multiplier = number
        found = f"fair, but a worker fetches {said}, and those take no part in the turns"
        assert site.run("fair", *Q).stderr == (
            f"{found[0].upper()}{found[1:]}. Set worker_prefetch_multiplier = 1.\n"
        )
        assert site.findings("warning")["queue celery"] == found
    site.app.conf.worker_prefetch_multiplier = 1
    assert site.run("fair", *Q).stderr == ""
    assert site.run("fair", *Q, "--off").stderr == ""


def test_messages_without_keys(fair: Site) -> None:
    said = "none of 10 ready messages has a key, so they do not take turns"
    for _ in range(9):
        fair.send()
    assert fair.run("fair", *Q).stderr == ""
    fair.send()
    assert fair.run("fair", *Q).stderr.startswith(f"{said.capitalize()}. Call kombu_redisdelay.keys(app, ")
    assert said.capitalize() in fair.run("keys", *Q).stderr
    sort_by_key(fair, "")
    fair.add_consumer("alive", 60_000)
    assert "11 ready messages" in fair.findings("warning")["queue celery"]
    sort_by_key(fair, "a")
    assert "has a key" not in fair.run("fair", *Q).stderr + fair.run("keys", *Q).stderr
    assert "queue celery" not in fair.findings("warning")


def test_workers_that_know_no_turns(fair: Site) -> None:
    fair.redis.hset("unacked", "tag", "[]")
    assert fair.run("fair", *Q).stderr.startswith("Workers of redis:// take from this database, too. In a f")


def test_a_declaration_that_makes_it_fair_again(site: Site) -> None:
    site.app.conf.task_queues = [Queue(QUEUE, queue_arguments={"x-fair": True})]
    assert site.run("fair", *Q, "--off").stderr == (
        "The app declares celery with x-fair: the next process that declares it makes it fair again. Remove "
        "x-fair from its declaration.\n"
    )


def test_keys_that_stay_paused(fair: Site) -> None:
    fair.text("pause", *Q, "--key", "a", "--key", "b")
    hint = "of celery {} paused: `celery delayed resume -Q celery --key KEY`.\n"
    assert fair.run("resume", *Q).stderr == f"2 keys {hint.format('are')}"
    assert fair.run("resume", *Q, "--key", "a").stderr == ""
    result = fair.run("resume", "--all")
    assert (result.stdout, result.stderr) == ("", f"No queue was paused.\n1 key {hint.format('is')}")


def test_limits_of_what_is_paused(fair: Site) -> None:
    fair.text("pause", *Q, "--key", "a")
    assert fair.text("limit", *Q, "--key", "a", "--rate", "2") == "celery key a: 2/s, burst 2; it is paused\n"
    cleared = "celery key a: no limits, as each key; it is paused\n"
    assert fair.text("limit", *Q, "--key", "a", "--clear") == cleared
    fair.text("pause", *Q)
    assert fair.text("limit", *Q, "--rate", "2") == "celery: 2/s, burst 2; it is paused\n"


def test_limits_of_keys_that_stay(fair: Site) -> None:
    fair.text("limit", *Q, "--per-key", "--rate", "2")
    result = fair.run("limit", *Q, "--clear")
    assert result.stdout == "celery: no limits\n"
    assert result.stderr == "each key of celery is limited: 2/s, burst 2\n"


def test_a_concurrency_of_nothing(fair: Site) -> None:
    said = "oncurrency must be a whole number from 1 to 1,000,000,000, not 0: to stop it, pause it"
    for words in ((), ("--per-key",), ("--key", "a")):
        assert said in fair.run("limit", *Q, *words, "--concurrency", "0").stderr


def test_each_partition_has_the_limit_of_a_key(fair: Site) -> None:
    fair.app.conf.broker_transport_options = {"partitions": {QUEUE: 3}}

    @fair.app.task(name="early")
    def early() -> None: ...

    said = fair.run("limit", *Q, "--per-key", "--concurrency", "2").stderr
    assert "hold 2 messages of each key together in each of 3 partitions, but " in said
    said = fair.run("limit", *Q, "--key", "a", "--concurrency", "2").stderr
    assert "hold 2 messages of the key together in each of 3 partitions, but " in said
    found = fair.findings("warning")["queue celery"]
    assert "hold 2 messages of each key together in each of 3 partitions, but " in found


def test_what_is_no_key_of_a_task(site: Site) -> None:
    keys(site.app, lambda name, args, kwargs: kwargs["key"])
    for key in (1.5, True, b"a"):
        with pytest.raises(ValueError, match="must be a text, a whole number or a UUID, not"):
            site.send(kwargs={"key": key})


def test_a_key_is_whole_on_a_terminal() -> None:
    """Keys are often UUIDs, of which those of one day begin alike; and one copies them."""
    key = "550e8400-e29b-41d4-a716-446655440000"
    own = KeyLimits("100/m", 2, 8, datetime(2026, 1, 1, tzinfo=timezone.utc), is_own=True)
    some = [
        KeyStats("a", 3, 0, 0, 0.0, KeyLimits()),
        KeyStats(key, 12_345, 10_000, 100, 4000.0, own, is_at_limit=True, own=own),
    ]
    rows = _table(some)
    layout = Layout(rows, 80)
    found = ["".join(text for text, _ in line) for line in [*layout.header(), *layout.lines(rows.rows)]]
    assert all(len(line) <= 80 for line in found)
    assert [line.split() for line in found[:4]] == [
        ["KEY", "READY", "WAIT", "SCHEDULED", "UNACKED"],
        ["REASON", "OWN", "LIMITS"],
        ["a", "3", "-", "0", "0"],
        [key, "12,345", "1h7m", "10,000", "100"],
    ]
    assert " ".join(" ".join(found[4:]).split()).startswith(
        "paused 100/m, burst 2, concurrency 8, paused for "
    )
    assert "…" not in "".join(found)
