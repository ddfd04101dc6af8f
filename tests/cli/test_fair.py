"""`celery delayed fair` and `keys`, and the options for keys of `limit`, `pause` and `resume`."""

from __future__ import annotations

import re

import pytest
from kombu.entity import Queue
from prometheus_client import CollectorRegistry

from kombu_redisdelay.operations.exporter import QueueCollector
from kombu_redisdelay.operations.fairness import key_figures
from tests.cli.site import QUEUE, Site, sort_by_key
from tests.transport.kit import Inbox, drain

Q = ("-Q", QUEUE)


def test_a_queue_is_made_fair_and_plain(site: Site) -> None:
    assert site.text("fair", *Q) == "celery is fair now\n"
    assert site.text("fair", *Q) == "celery is fair already\n"
    # Nothing is to be moved back.
    assert site.text("fair", *Q, "--off") == "celery is not fair any more\n"
    site.text("fair", *Q)
    sort_by_key(site, "a")
    assert site.text("fair", *Q, "--off") == "celery will not be fair: workers move its messages back\n"
    assert site.rows("fair", *Q, "--off") == [{"queue": QUEUE, "fair": "off"}]
    assert site.text("fair", *Q) == "celery is fair again\n"
    assert site.text("fair", "-Q", "b", "--off", "--force") == "b is not fair\n"
    assert site.rows("fair", *Q, "-Q", "b", "--force") == [
        {"queue": QUEUE, "fair": "on"},
        {"queue": "b", "fair": "on"},
    ]
    # A queue that is fair is known.
    site.redis.delete(*(key for key in site.redis.keys("*") if not key.endswith(":control")))
    assert site.text("fair", "-Q", "b") == "b is fair already\n"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("fair",), "Name the queues with -Q."),
        (("keys",), "Name one queue with -Q."),
        (("keys", *Q, "-Q", "b"), "Name one queue with -Q."),
        (("limit", *Q, "--per-key", "--key", "t", "--rate", "1"), "not both"),
        (("limit", *Q, "--per-key"), "`keys` those of one key"),
        (("limit", *Q, "--key", "t", "--burst", "3"), "urst needs a rate"),
        (("limit", *Q, "--key", "t\n", "--rate", "3"), " key must have no control characters"),
        (("pause", *Q, "--key", "t" * 65), " key must have 64 bytes at most"),
        (("pause", *Q, "--key", ""), "t is empty; the key of messages without one is"),
        (("fair", "-Q", "typo"), "obody has used a queue 'typo' yet"),
    ],
)
def test_what_is_a_usage_error(site: Site, words: tuple[str, ...], message: str) -> None:
    result = site.run(*words)
    assert (result.exit_code, result.stdout) == (2, "")
    assert message in result.stderr
    assert site.redis.keys("*control*") == []


def test_a_queue_that_expires(site: Site) -> None:
    site.app.conf.task_queues = [Queue(QUEUE, queue_arguments={"x-expires": 60_000})]
    result = site.run("fair", *Q)
    assert result.exit_code == 2
    assert "ueue 'celery' cannot be fair, because it is declared with 'x-expires'" in result.stderr


def test_limits_of_each_key_and_of_one(site: Site) -> None:
    site.text("fair", *Q)
    limits = ("--per-key", "--rate", "120/m", "--concurrency", "2")
    assert site.text("limit", *Q, *limits) == "celery each key: 2/s, burst 2, concurrency 2\n"
    assert site.text("limit", *Q, "--key", "t", "--concurrency", "8") == (
        "celery key t: 2/s, burst 2, concurrency 8\n"
    )
    [row] = site.rows("limit", *Q, "--key", "t", "--rate", "none")
    assert row == {
        **{"queue": QUEUE, "key": "t", "rate": "2/s", "burst": 2, "concurrency": 8},
        **{"paused_since": None, "is_own": True},
    }
    assert site.text("limit", *Q, "--key", "t", "--clear") == (
        "celery key t: 2/s, burst 2, concurrency 2, as each key\n"
    )
    [row] = site.rows("limit", *Q, "--per-key", "--rate", "none")
    assert (row["per_key"], row["rate"], row["concurrency"]) == (True, None, 2)
    assert site.text("limit", *Q, "--per-key", "--clear") == "celery each key: no limits\n"
    # It was never the limit of the queue.
    assert site.text("limit", *Q, "--concurrency", "5") == "celery: concurrency 5\n"


def test_a_pause_of_one_key(site: Site) -> None:
    site.text("fair", *Q)
    assert site.text("pause", *Q, "--key", "t") == "celery key t paused\n"
    assert site.text("pause", *Q, "--key", "t") == "celery key t was paused already\n"
    assert site.rows("pause", *Q, "--key", '""') == [{"queue": QUEUE, "key": "", "paused": True}]
    assert [row["limits"]["paused_since"] for row in site.rows("stats")] == [None]
    own = {row["key"]: row["own"] for row in site.rows("keys", *Q)}["t"]
    assert (own["is_own"], own["paused_since"] is None, own["concurrency"]) == (True, False, None)
    assert site.text("limit", *Q, "--per-key", "--concurrency", "2") == "celery each key: concurrency 2\n"
    said = "celery key t: concurrency 2, as each key; it is paused\n"
    assert site.text("limit", *Q, "--key", "t", "--rate", "none") == said
    assert site.text("resume", *Q, "--key", "t") == "celery key t resumed\n"
    assert site.rows("resume", *Q, "--key", "t") == [{"queue": QUEUE, "key": "t", "resumed": False}]


def test_a_queue_that_is_not_fair_is_told_of(site: Site) -> None:
    said = "Nobody has used a queue 'nope' yet.\nNo keys found.\n"
    assert site.run("keys", "-Q", "nope").stderr == said
    site.send(headers={"x-key": "t"})
    hint = "It takes effect once celery is fair: `celery delayed fair -Q celery`.\n"
    assert site.run("pause", *Q, "--key", "t", "--force").stderr == hint
    assert site.run("limit", *Q, "--per-key", "--rate", "1").stderr == hint
    assert site.run("limit", *Q, "--per-key", "--clear").stderr == ""
    result = site.run("keys", *Q)
    line = result.stdout.splitlines()[1]
    assert line.split()[:2] == ["t", "1"]
    assert line.split()[5:7] == ["paused", "for"]
    assert "celery is not fair, so pauses and limits of its keys have no effect: " in result.stderr


def test_several_keys(site: Site) -> None:
    site.text("fair", *Q)
    each = ("--key", "a", "--key", "b", "--key", "a")
    assert site.text("pause", *Q, *each) == "celery key a paused\ncelery key b paused\n"
    assert site.text("limit", *Q, *each, "--concurrency", "3") == (
        "celery key a: concurrency 3; it is paused\ncelery key b: concurrency 3; it is paused\n"
    )
    assert [row["key"] for row in site.rows("limit", *Q, *each, "--clear")] == ["a", "b"]
    assert [row["resumed"] for row in site.rows("resume", *Q, *each, "--key", "c")] == [True, True, False]


def test_a_key_without_messages_is_told_of(site: Site) -> None:
    site.text("fair", *Q)
    sort_by_key(site, "a")
    site.send(headers={"x-key": "b"})
    site.send(headers={"x-key": "c"}, countdown=60)
    assert site.run("pause", *Q, *(word for key in "abc" for word in ("--key", key))).stderr == ""
    result = site.run("limit", *Q, "--key", "a", "--key", "te*", "--key", '""', "--rate", "1")
    assert result.stderr == (
        'celery has no messages now with the keys te*, "".\n'
        "te* is the name of one key: * ? [ are not wildcards here.\n"
    )


def test_switching_off_asks_if_keys_are_paused(site: Site) -> None:
    site.text("fair", *Q)
    sort_by_key(site, *"aabc")
    for key in "ab":
        site.text("pause", *Q, "--key", key)
    site.text("limit", *Q, "--key", "c", "--rate", "1")
    result = site.run("fair", *Q, "--off", input="n\n")
    assert result.exit_code == 1
    assert "2 keys of celery are paused: their 3 ready messages will run. " in result.stderr
    assert "The limits of keys of celery have no effect until it is fair again. " in result.stderr
    assert site.text("fair", *Q) == "celery is fair already\n"
    assert "will not be fair" in site.text("fair", *Q, "--off", "--yes")


def test_messages_of_a_paused_key(site: Site) -> None:
    site.text("fair", *Q)
    sort_by_key(site, *"abb")
    site.text("pause", *Q, "--key", "b")
    site.add_consumer("alive", 60_000, holds=1)
    rows = site.rows("list", "--state", "ready")
    assert sorted((row["key"], row["position"]) for row in rows) == [("a", 0), ("b", None), ("b", None)]
    id = next(row["id"] for row in rows if row["key"] == "b")
    [said] = [line for line in site.text("show", id).splitlines() if line.startswith("waits because")]
    assert re.search(r" Its key b is paused since \d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC\.$", said)
    assert site.rows("count", "--by", "key", "--state", "ready") == [
        {"key": "b", "messages": 2},
        {"key": "a", "messages": 1},
    ]


def test_the_only_key_is_paused(site: Site) -> None:
    site.text("fair", *Q)
    site.text("pause", *Q, "--key", "a")
    site.send(headers={"x-key": "a"})
    with site.app.connection_for_read() as connection:
        _inbox = Inbox(connection.channel(), QUEUE)
        drain(connection, lambda: site.redis.hlen(site.store.keys(QUEUE).limited) == 1)
    assert "celery is fair: 1 key waits, and is paused or at a limit\n" in site.text("stats")


def test_no_key_is_written_in_one_way(site: Site) -> None:
    site.send(headers={"x-key": "a"})
    site.send()
    for words in (("keys", *Q), ("count", "--by", "key"), ("list", "--state", "ready")):
        assert ' ""' in site.text(*words).replace("\n", " ")


def test_a_key_is_read_as_it_is_shown(site: Site) -> None:
    site.text("fair", *Q)
    sent = {key: site.send(headers={"x-key": key}) for key in (" a", "a")}
    shown = '" a"'
    assert shown in site.text("keys", *Q)
    assert site.text("pause", *Q, "--key", shown) == f"celery key {shown} paused\n"
    assert [row["key"] for row in site.rows("pause", *Q, "--key", " a")] == [" a"]
    for key in (shown, " a"):
        assert [row["id"] for row in site.rows("list", "--key", key)] == [sent[" a"]]
    assert "no control characters, quotation marks" in site.run("pause", *Q, "--key", '"a').stderr


def test_keys(site: Site) -> None:
    site.text("fair", *Q)
    assert site.run("keys", *Q).stderr == "No keys found.\n"
    for _ in range(3):
        site.send(headers={"x-key": "tenant-2"})
    site.send(headers={"x-key": "tenant-10"}, countdown=60)
    site.send()
    site.text("pause", *Q, "--key", "tenant-2")
    site.text("limit", *Q, "--key", "tenant-10", "--rate", "100/m", "--burst", "7")
    site.text("limit", *Q, "--per-key", "--concurrency", "1")
    header, *lines, remark = site.text("keys", *Q).splitlines()
    assert header.split() == ["KEY", "READY", "WAIT", "SCHEDULED", "UNACKED", "REASON", "OWN", "LIMITS"]
    assert [line.split()[0] for line in lines] == ["tenant-2", '""', "tenant-10"]
    assert " paused  paused for " in lines[0]
    assert lines[2].endswith(" 100/m, burst 7")
    assert remark == "each key of celery is limited: concurrency 1"
    assert [row["key"] for row in site.rows("keys", *Q, "--sort", "key")] == ["", "tenant-2", "tenant-10"]
    result = site.run("keys", *Q, "--sort", "scheduled", "--limit", "1", "--json")
    assert '"key": "tenant-10", "ready": 0, "scheduled": 1, "unacked": 0, "waiting": 0.0' in result.stdout
    assert result.stderr == "1 of 3 keys. See all with --limit 0.\n"


def test_the_greatest_of_many_keys(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kombu_redisdelay.cli.keys.MOST_KEYS", 3)
    site.text("fair", *Q)
    sort_by_key(site, *"abbbccdeff")
    site.send(headers={"x-key": "e"}, countdown=60)
    site.text("pause", *Q, "--key", "z")

    def keys(*words: str) -> tuple[str, str]:
        result = site.run("keys", *Q, *words)
        return "".join(line[0] for line in result.stdout.splitlines()[1:]), result.stderr

    few = "5 were looked at, first those with the most ready messages. See all with --limit 0.\n"
    assert keys("--limit", "2") == ("bc", f"2 of 6 keys. {few}")
    assert keys("--limit", "2", "--sort", "scheduled") == ("eb", f"2 of 6 keys. {few}")
    # It is not one of the greatest, and its ready message counts.
    [scheduled, _] = site.rows("keys", *Q, "--limit", "2", "--sort", "scheduled")
    assert (scheduled["key"], scheduled["ready"], scheduled["scheduled"]) == ("e", 1, 1)
    assert keys("--limit", "0") == ("bcfadez", "")
    assert keys("--limit", "9")[0] == "bcfadez"
    rows = site.rows("keys", *Q, "--limit", "5")
    assert [(row["key"], row["ready"]) for row in rows] == [("b", 3), ("c", 2), ("f", 2), ("a", 1), ("d", 1)]


def test_a_hostile_key(site: Site) -> None:
    """One that another program has written: of ours, none has such a key."""
    site.text("fair", *Q)
    payload = '{"redisdelay-key": "1 \\u202egnp.exe", "body": "", "headers": {}, "properties": {}}'
    site.redis.lpush(QUEUE, payload)
    assert "\u202e" not in site.text("keys", *Q)


def test_key_is_a_filter(site: Site) -> None:
    site.text("fair", *Q)
    ids = {key: site.send(headers={"x-key": key} if key else {}) for key in ("a", "ab", "é-b", "")}
    scheduled = site.send(headers={"x-key": "a", "x-unique": "u"}, countdown=60)

    def found(key: str, *words: str) -> set[str]:
        return {row["id"] for row in site.rows("list", "--key", key, *words)}

    assert found("a") == {ids["a"], scheduled}
    assert found("a*", "--state", "ready") == {ids["a"], ids["ab"]}
    assert found("[é]-b") == found("é-b") == {ids["é-b"]}
    assert found('""') == {ids[""]}
    rows = site.rows("list", "--state", "scheduled")
    assert [(row["key"], row["unique"]) for row in rows] == [("a", "u")]
    assert site.text("list", "--state", "scheduled").split()[:4] == ["DUE", "KEY", "UNIQUE", "ID"]
    shown = site.text("show", scheduled)
    assert shown.index("key ") < shown.index("unique ")
    assert "\nkey " in shown
    [count] = site.rows("count", "--key", "a*")
    assert count["messages"] == 3
    site.text("cancel", "--key", "a", "--yes")
    assert {row["key"] for row in site.rows("list")} == {"ab", "é-b", ""}


@pytest.mark.parametrize("limit", [("--concurrency", "1"), ("--rate", "1/h")], ids=["concurrency", "rate"])
def test_keys_at_their_limits_when_all_consumers_are_full(site: Site, limit: tuple[str, str]) -> None:
    """No take meets them, so nobody has noted them."""
    site.text("fair", *Q)
    site.text("limit", *Q, "--per-key", *limit)
    for key in ("a", "b", "once", "a", "b"):
        site.send(headers={"x-key": key})
    with site.app.connection_for_read() as connection:
        inbox = Inbox(connection.channel(), QUEUE, prefetch=3)
        drain(connection, lambda: len(inbox) == 3)

        def told() -> tuple[str, int, int]:
            [row] = site.rows("stats")
            return row["reason"], row["fairness"]["keys"], row["fairness"]["keys_at_limit"]

        assert told() == ("key limits", 2, 2)
        rows = site.rows("keys", *Q)
        assert {row["key"]: row["is_at_limit"] for row in rows if row["ready"]} == {"a": True, "b": True}
        assert "celery: 2 keys at their limits: a (1 ready), b (1 ready)\n" in site.run("doctor").stdout
        assert key_figures(site.store, QUEUE).quiet_wait == 0
        site.send(headers={"x-key": "other"})
        sort_by_key(site, "another")
        assert told() == ("prefetch full", 4, 2)
        # Limits have no effect any more.
        site.text("fair", *Q, "--off", "--yes")
        # Its heartbeat moves the messages back meanwhile: then it is not fair any more.
        assert site.rows("stats")[0]["reason"] == "prefetch full"
        assert not any(row["is_at_limit"] for row in site.rows("keys", *Q))


def test_stats(site: Site) -> None:
    assert site.rows("stats")[0]["fairness"] is None
    site.text("fair", *Q)
    assert "celery is fair: 0 keys wait\n" in site.text("stats")
    for number in range(3):
        site.send(headers={"x-key": f"t{number}"})
    site.text("pause", *Q, "--key", "t0")
    site.text("limit", *Q, "--per-key", "--rate", "1/h")
    assert "celery is fair, and workers have not sorted its 3 messages by key yet\n" in site.text("stats")
    with site.app.connection_for_read() as connection:
        inbox = Inbox(connection.channel(), QUEUE, prefetch=1)
        drain(connection, lambda: len(inbox) == 1)
        [row] = site.rows("stats")
        assert (row["ready"], row["unacked"]) == (2, 1)
        assert row["fairness"]["state"] == "on"
        assert row["fairness"]["limits"]["rate"] == "1/h"
        assert "each key of celery is limited: 1/h, burst 1\n" in site.text("stats")
        [message] = inbox.messages
        message.ack()
        # The rest is paused, or its turn.
        drain(connection, lambda: len(inbox) == 2)
        inbox.messages[1].ack()
        *_, last = [site.send(headers={"x-key": f"t{number}"}) for number in (1, 2)]

        def counts() -> bool:
            [row] = site.rows("stats")
            fairness, found = row["fairness"], (row["ready"], row["reason"])
            return (fairness["keys"], fairness["keys_at_limit"], *found) == (3, 3, 3, "key limits")

        drain(connection, counts)
        [row] = site.rows("stats")
        assert 0 < row["waiting"] < 60
        assert " Its key t2 is at its limit: 1/h, burst 1.\n" in site.text("show", last)
    assert "celery is fair: 3 keys wait, 3 of them paused or at a limit\n" in site.text("stats")


def test_metrics(site: Site) -> None:
    def metrics() -> dict[str, float]:
        registry = CollectorRegistry()
        registry.register(QueueCollector(site.store, lambda: [QUEUE]))
        samples = (sample for family in registry.collect() for sample in family.samples)
        return {each.name: each.value for each in samples if "_key" in each.name}

    assert metrics() == {}
    site.text("fair", *Q)
    assert set(metrics().values()) == {0}
    sort_by_key(site, *["noisy"] * 7, "a", "b", "c")

    def waits_for_a_minute(key: str) -> None:
        its = site.store.keys(QUEUE).key_list(0, key)
        since = f'"redisdelay-due": {site.now_ms() - 60_000}'
        site.redis.lset(its, -1, re.sub('"redisdelay-due": [0-9]+', since, site.redis.lindex(its, -1)))

    waits_for_a_minute("noisy")
    found = metrics()
    assert found["redisdelay_queue_keys"] == 4
    assert found["redisdelay_queue_greatest_key_ratio"] == 0.7
    assert 60 < found["redisdelay_queue_longest_key_waiting_seconds"] < 120
    quiet = "redisdelay_queue_quiet_keys_waiting_seconds"
    assert 0 < found[quiet] < 60
    waits_for_a_minute("a")
    assert 60 < metrics()[quiet] < 120
    # It is not the workers for whom it waits.
    site.text("pause", *Q, "--key", "a")
    assert 0 < metrics()[quiet] < 60
    for key in ("b", "c"):
        site.text("pause", *Q, "--key", key)
    assert metrics()[quiet] == 0


def test_messages_that_no_worker_has_looked_at_wait_too(site: Site) -> None:
    """Without a worker, an autoscaler that follows these figures would never start the first one."""
    site.text("fair", *Q)
    site.send(headers={"x-key": "a"})
    since = f'"redisdelay-due": {site.now_ms() - 60_000}'
    site.redis.lset(QUEUE, -1, re.sub('"redisdelay-due": [0-9]+', since, site.redis.lindex(QUEUE, -1)))
    figures = key_figures(site.store, QUEUE)
    assert figures.longest_wait is not None
    assert figures.quiet_wait == figures.longest_wait
    assert 60 < figures.longest_wait < 120
    sort_by_key(site, "b")
    figures = key_figures(site.store, QUEUE)
    assert figures.quiet_wait is not None
    assert 60 < figures.quiet_wait < 120


def test_foreign_bytes_in_place_of_a_state_mean_not_fair(site: Site) -> None:
    site.send()
    control = site.store.keys(QUEUE).limits
    for state in (b"\xff\xfe", b"yes"):
        site.redis.hset(control, "fair", state)
        for words in (("stats",), ("keys", *Q), ("doctor",)):
            assert site.run(*words).exit_code in (0, 1)
        assert site.text("fair", *Q, "--off") == "celery is not fair\n"
        assert not site.redis.hexists(control, "fair")
    assert site.text("fair", *Q) == "celery is fair now\n"
