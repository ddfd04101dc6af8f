"""What an operator sees of messages with keys, and does to them."""

from __future__ import annotations

import re
from uuid import uuid4

import pytest

from kombu_redisdelay import MessageInfo, Messages, Selection
from kombu_redisdelay.broker.known_queues import record
from kombu_redisdelay.cli.messages import message_table
from kombu_redisdelay.cli.table import Layout
from kombu_redisdelay.operations.states import STATES
from tests.cli.site import QUEUE, Site
from tests.transport.kit import Inbox, drain

HEADERS = {"x-unique": "account:42", "x-unique-while": "latest"}


@pytest.fixture
def holder(site: Site) -> str:
    return site.send(headers=HEADERS, task_id="holder")


@pytest.fixture
def blocked(site: Site, holder: str) -> str:
    return site.send(headers=HEADERS, task_id="blocked")


def fields(text: str) -> dict[str, str]:
    """What ``show`` says of a message."""
    return dict(re.split(r"\s{2,}", line, maxsplit=1) for line in text.splitlines() if "  " in line)


def test_what_waits_for_its_key(site: Site, blocked: str) -> None:
    site.send(countdown=3600)
    assert {row["id"]: (row["unique"], row["due"], row["reason"]) for row in site.rows("list")}.items() >= {
        "holder": ("account:42", None, ""),
        "blocked": ("account:42", None, "blocked by holder"),
    }.items()
    header, *lines = site.text("list").splitlines()
    assert header.split()[:4] == ["STATE", "WHEN", "UNIQUE", "ID"]
    header, *lines = site.text("list", "--state", "scheduled").splitlines()
    assert header.split()[:3] == ["DUE", "UNIQUE", "ID"]
    assert lines[1].split()[:3] == ["blocked", "account:42", "blocked"]
    [stats] = site.rows("stats")
    assert (stats["scheduled"], stats["blocked"], stats["next_due"] is None) == (2, 1, False)
    shown = site.text("show", "blocked")
    assert "It is blocked by holder, which has the same unique key: account:42." in shown
    assert sum(row["messages"] for row in site.rows("timeline")) == 1
    for options in ([], ["--by", "task"]):
        last = site.text("timeline", *options).splitlines()[-1]
        assert last == "1 message waits for its unique key, and has no due time."
    assert sum(row["messages"] for row in site.rows("timeline", "--by", "task")) == 1


def test_without_a_due_time_nothing_comes_next(site: Site, blocked: str) -> None:
    [stats] = site.rows("stats")
    assert (stats["scheduled"], stats["next_due"], stats["lateness"]) == (1, None, 0)
    header, line = site.text("stats").splitlines()
    assert dict(zip(header.split(), line.split(), strict=False)).items() >= {"BLOCKED": "1"}.items()
    assert site.rows("doctor", status=1)


def test_a_queue_without_keys_has_no_wider_table(site: Site) -> None:
    site.send(countdown=3600)
    assert "BLOCKED" not in site.text("stats")


def test_what_was_dropped_and_replaced_is_counted(site: Site) -> None:
    with site.app.connection_for_read() as connection:
        site.send()
        connection.channel().basic_get(QUEUE).ack()
        record(site.store, [QUEUE])
    for number in range(5):
        site.send(headers={"x-unique": "index"}, task_id=f"index-{number}")
    for number in range(4):
        site.send(headers=HEADERS, task_id=f"sync-{number}")
    [stats] = site.rows("stats")
    assert (stats["dropped"], stats["replaced"], stats["blocked"]) == (4, 2, 1)
    assert site.text("stats").splitlines()[-1] == (
        f"{QUEUE}: because of unique keys, 4 messages dropped and 2 messages replaced since its history began"
    )
    [minute] = site.rows("history")
    assert (minute["published"], minute["dropped"], minute["replaced"]) == (3, 4, 2)


def test_they_are_found_by_their_keys(site: Site, blocked: str) -> None:
    site.send()
    assert {row["id"] for row in site.rows("list", "--unique", "account:*")} == {"holder", "blocked"}
    assert site.rows("list", "--unique", "another") == []


@pytest.mark.parametrize("words", ["deliver-now", "reschedule --by 1h", "reschedule --countdown 5"])
def test_what_is_blocked_is_not_moved(site: Site, blocked: str, words: str) -> None:
    verb, *options = words.split()
    result = site.run(verb, "blocked", *options)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == "blocked waits for its unique key: holder holds the unique key 'account:42'\n"
    site.run(verb, "--state", "scheduled", *options, "--yes")
    assert site.redis.zscore(site.store.keys(QUEUE).schedule, "blocked") == float("inf")


@pytest.mark.parametrize("words", ["deliver-now", "reschedule --countdown 1h"])
@pytest.mark.parametrize("which", ["--all", "--unique account:*"])
def test_what_stays_is_told(site: Site, blocked: str, words: str, which: str) -> None:
    words = f"{words} {which}"
    expected = "1 message stays, because another one holds its unique key: holder holds that of blocked.\n"
    result = site.run(*words.split(), "--yes")
    assert (result.exit_code, result.stderr) == (1, expected)
    assert re.fullmatch(r"(Delivered|Rescheduled) 0 messages\.\n", result.stdout)
    result = site.run(*words.split(), "--dry-run")
    assert (result.exit_code, result.stderr) == (1, expected)
    assert "Would " in result.stdout
    for options in ([], ["--dry-run"]):
        [row] = site.rows(*words.split(), "--yes", *options, status=1)
        assert (row["messages"], row["blocked"], row["holders"]) == (0, 1, {"blocked": "holder"})
    # Nothing is asked: there is nothing to do.
    assert "0 messages" in site.run(*words.split()).stdout
    [row] = site.rows(*words.replace(which, blocked).split(), status=1)
    assert (row["messages"], row["state"], row["holder"]) == (0, "scheduled", "holder")


def test_who_holds_a_key(site: Site, blocked: str) -> None:
    shown = fields(site.text("show", "holder"))
    assert shown["unique"] == "account:42, which it holds"
    shown = fields(site.text("show", "blocked"))
    assert shown["unique"] == "account:42, which holder holds"
    assert shown["due"] == "when its unique key is free"
    assert not {"since", "reason"} & shown.keys()
    assert [row["holder"] for row in site.rows("show", "holder", "blocked")] == ["holder", "holder"]
    site.redis.delete(QUEUE)
    assert fields(site.text("show", "blocked"))["unique"] == "account:42, which no message holds"
    assert "holder" not in site.rows("show", site.send())[0]


def test_a_task_that_runs_holds_no_key_of_the_mode_waiting(site: Site) -> None:
    headers = {"x-unique": "index"}
    site.send(headers=headers, task_id="runs")
    with site.app.connection_for_read() as connection:
        inbox = Inbox(connection.channel(), QUEUE)
        drain(connection, lambda: len(inbox) == 1)
        inbox.consumer.cancel()
        assert fields(site.text("show", "runs"))["unique"] == "index, which no message holds"
        site.send(headers=headers, task_id="waits")
        assert fields(site.text("show", "runs"))["unique"] == "index, which waits holds"
        assert fields(site.text("show", "waits"))["unique"] == "index, which it holds"


def test_a_retry_waits_for_the_task_that_runs(site: Site) -> None:
    site.send(headers=HEADERS, task_id="a")
    with site.app.connection_for_read() as connection:
        inbox = Inbox(connection.channel(), QUEUE)
        drain(connection, lambda: len(inbox) == 1)
        inbox.consumer.cancel()
        site.send(headers={**HEADERS, "retries": 1}, task_id="a", countdown=600)
        _, retry, runs = site.text("show", "a").split("\n\n")
        assert fields(retry)["unique"] == "account:42, which another message with its id holds"
        assert fields(runs)["unique"] == "account:42, which it holds"


def test_messages_are_counted_by_their_keys(site: Site, blocked: str) -> None:
    site.send(headers={**HEADERS, "x-unique": "another"})
    site.send(headers={**HEADERS, "x-unique": "another"})
    rows = site.rows("count", "--by", "unique", "--by", "reason")
    assert {(row["unique"], row["reason"], row["messages"]) for row in rows} == {
        *{("account:42", "", 1), ("account:42", "blocked", 1)},
        *{("another", "", 1), ("another", "blocked", 1)},
    }
    assert {row["reason"]: row["messages"] for row in site.rows("count", "--by", "reason")} == {
        "": 2,
        "blocked": 2,
    }


def test_it_can_be_cancelled(site: Site, blocked: str) -> None:
    site.text("cancel", "blocked")
    assert [row["id"] for row in site.rows("list")] == ["holder"]


def test_a_dead_letter_whose_key_is_held_stays(site: Site, holder: str) -> None:
    with site.app.connection_for_read(transport_options={"dead_letter": True}) as connection:
        inbox = Inbox(connection.channel(), QUEUE)
        drain(connection, lambda: len(inbox) == 1)
        inbox.messages[0].reject()
        site.send(headers=HEADERS, task_id="another")
        drain(connection, lambda: len(inbox) == 2)
        result = site.run("requeue", "holder")
        assert (result.exit_code, result.stdout) == (1, "")
        assert result.stderr == "holder is a dead letter: another holds the unique key 'account:42'\n"
        assert site.run("requeue", "holder", "--dry-run").stderr == result.stderr
        assert site.rows("requeue", "holder", "--dry-run", status=1) == [
            {
                **{"verb": "requeue", "dry_run": True, "id": "holder", "messages": 0},
                **{"state": "dead", "holder": "another"},
            }
        ]
        for options in (["--yes"], ["--dry-run"]):
            result = site.run("requeue", "--all", "--state", "dead", *options)
            assert result.exit_code == 1
            assert "equeue" in result.stdout
            assert " 0 dead letters" in result.stdout
            assert result.stderr == (
                "1 dead letter stays, because another one holds its unique key: another holds that of "
                "holder.\n"
            )
        inbox.messages[1].ack()
        running = site.store.keys(QUEUE).running
        drain(connection, lambda: not site.redis.exists(running))
        site.text("requeue", "holder")
        drain(connection, lambda: len(inbox) == 3)


def test_pages_go_on_after_what_is_blocked(site: Site) -> None:

    for number in range(5):
        for queue in ("a", "b"):
            headers = {**HEADERS, "x-unique": f"key {number}"}
            site.send(queue=queue, headers=headers)
            site.send(queue=queue, headers=headers, task_id=f"{queue}{number}")
    expected = [f"{queue}{number}" for queue in ("a", "b") for number in range(5)]
    for newest_first in (False, True):
        found: list[str] = []
        start = ""
        scheduled = Selection(state="scheduled")
        with Messages(site.app) as messages:
            while True:
                page = messages.page(scheduled, start=start, newest_first=newest_first, size=3)
                found += [message.id for message in page.messages]
                start = page.next
                if not start:
                    break
        assert found == (expected[::-1] if newest_first else expected)


@pytest.mark.parametrize("width", [80, 130])
@pytest.mark.parametrize("states", [["scheduled"], list(STATES)], ids=["scheduled", "all"])
@pytest.mark.parametrize("queue", [QUEUE, "orders.of.customers.of.all.shops"])
def test_the_id_of_a_holder_is_never_cut(width: int, states: list[str], queue: str) -> None:
    id, holder = str(uuid4()), str(uuid4())
    message = MessageInfo(
        id=id,
        queue=queue,
        state="scheduled",
        task="shop.close_all_orders",
        args="(1, 2)",
        kwargs="{}",
        priority=0,
        failures=0,
        size=100,
        unique="account:42 of a shop",
        reason=f"blocked by {holder}",
    )
    rows = message_table([STATES[name] for name in states])([message])
    layout = Layout(rows, width)
    lines = ["".join(text for text, _ in line) for line in layout.lines(rows.rows)]
    assert max(map(len, lines)) <= width
    text = "\n".join(lines)
    assert id in text
    assert holder in text
