"""The commands on messages: list, show, and those that change them."""

from __future__ import annotations

import json
import os
import re
import socket
from datetime import datetime, timezone
from typing import Any
from uuid import uuid4

import pytest
from celery import Celery

from kombu_redisdelay import MessageInfo
from kombu_redisdelay.broker.keys import known_queues
from kombu_redisdelay.cli.messages import LONGEST
from kombu_redisdelay.words import ACKED_EARLY
from tests.cli.site import QUEUE, Site, consumer_that_is_gone, payload
from tests.finished import OF_MESSAGES, keep_finished

#: A worker on another machine: boot id, PID namespace, PID, start time and what tells it from others.
ELSEWHERE = "3f2a1c58-5a0c-4c2e-9d1b-6f0e8a7b1c2d:4026531836:4321:99:consumer"


def _scheduled(site: Site) -> list[str]:
    return list(site.redis.zrange(site.store.keys(QUEUE).schedule, 0, -1))


def _on_a_terminal(site: Site, monkeypatch: pytest.MonkeyPatch, *words: str) -> list[str]:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setenv("COLUMNS", "80")
    return site.text(*words).splitlines()


def _fields(text: str) -> dict[str, str]:
    """What `show` says of one message, by name."""
    names = "id|queue|state|due|since|position|worker|host|lost|reason|task"
    return dict(re.findall(rf"^({names}) +(.*)$", text, re.MULTILINE))


def test_list_is_in_due_order_across_queues(site: Site) -> None:
    ids = [
        site.send(countdown=countdown, queue=queue) for countdown, queue in ((30, "b"), (10, "b"), (20, "a"))
    ]
    assert [row["id"] for row in site.rows("list", "-Q", "b")] == [ids[1], ids[0]]
    assert [row["id"] for row in site.rows("list")] == [ids[1], ids[2], ids[0]]


def test_list_picks_by_task_time_and_number(site: Site) -> None:
    soon = site.send("shop.remind", countdown=60)
    later = site.send("shop.remind", countdown=7200)
    site.send(countdown=30)
    assert [row["id"] for row in site.rows("list", "--task", "shop.remind")] == [soon, later]
    words = ("list", "--state", "scheduled", "--task", "shop.remind", "--before", "10m")
    assert [row["id"] for row in site.rows(*words)] == [soon]
    assert len(site.rows("list", "--limit", "2")) == 2


def test_list_shows_what_will_be_called(site: Site) -> None:
    task_id = site.send("shop.remind", args=(1, "x"), kwargs={"loud": True}, countdown=3600)
    header, row = site.text("list", "--state", "scheduled").splitlines()
    assert header.split() == ["DUE", "ID", "QUEUE", "TASK"]
    assert task_id in row
    assert row.endswith("shop.remind(1, 'x', loud=True)")


@pytest.mark.parametrize(
    ("kwargs", "shown"),
    [
        ("{'n': 0, 'to': ['a', None]}", "n=0, to=['a', None]"),
        ("{'a b': 1}", "**{'a b': 1}"),
        ("{'n': <object>}", "**{'n': <object>}"),
        ("{'n': 'abc...}", "**{'n': 'abc...}"),
        ("{1, 2}", "**{1, 2}"),
        ("__import__('os')", "**__import__('os')"),
        (f"{{'n': {'(' * 200}}}", f"**{{'n': {'(' * 200}}}"),
        (f"{{'n': {'1' * 1100}}}", f"**{{'n': {'1' * 1100}}}"),
    ],
)
def test_keyword_arguments_are_shown_as_in_a_call_if_they_can_be_read(
    site: Site, kwargs: str, shown: str
) -> None:
    site.send(kwargs={"n": 0}, kwargsrepr=kwargs, countdown=3600)
    assert site.text("list").splitlines()[1].endswith(f"shop.close_order({shown})")


def test_list_of_each_state(site: Site, in_each_state: dict[str, str]) -> None:
    for state, id in in_each_state.items():
        [row] = site.rows("list", "--state", state)
        assert row["id"] == id
    every = site.rows("list")
    assert {row["state"]: row["id"] for row in every} == in_each_state
    assert len(every) == len(OF_MESSAGES)
    assert len(site.rows("list", "--limit", "3")) == 3
    two = site.rows("list", "--state", "dead", "--state", "ready")
    assert [row["state"] for row in two] == ["ready", "dead"]


def test_the_json_of_all_states_has_the_same_fields(site: Site, in_each_state: dict[str, str]) -> None:
    fields = set(MessageInfo.__dataclass_fields__) - {"payload"}
    for row in site.rows("list"):
        assert set(row) == fields
        [shown] = site.rows("show", row["id"])
        assert json.loads(shown.pop("payload"))["headers"] == row["headers"]
        assert shown.pop("arguments") in ({"args": [], "kwargs": {}}, None)
        assert shown.pop("life")
        assert shown == row
        assert site.rows("list", "--state", row["state"]) == [row]


def test_why_a_scheduled_message_waits_for_something_else(site: Site) -> None:
    site.send(countdown=3600)
    assert site.text("list", "--state", "scheduled").splitlines()[0].split() == ["DUE", "ID", "QUEUE", "TASK"]
    unknown, failed = site.leave_unknown("shop.new", 60), site.send(countdown=60)
    key = site.store.keys(QUEUE).messages
    counted = site.redis.hget(key, failed).replace("{", '{"redisdelay-deliveries": 3, ', 1)
    site.redis.hset(key, failed, counted)
    header, *rows = site.text("list", "--state", "scheduled").splitlines()
    assert header.split() == ["DUE", "ID", "QUEUE", "FAILURES", "REASON", "TASK"]
    [row] = [row for row in rows if failed in row]
    assert f"{QUEUE} 3 " in " ".join(row.split())
    [row] = [row for row in rows if unknown in row]
    assert "unknown task" in row
    assert site.rows("list", "--reason", "unknown task")[0]["id"] == unknown


def test_the_priority_is_shown_where_one_is_not_0(site: Site) -> None:
    site.send()
    assert "PRIORITY" not in site.text("list", "--state", "ready")
    site.send(priority=6)
    header, first, second = site.text("list", "--state", "ready").splitlines()
    assert header.split() == ["POSITION", "SINCE", "PRIORITY", "ID", "QUEUE", "TASK"]
    assert [line.split()[2] for line in (first, second)] == ["0", "6"]


@pytest.mark.parametrize(
    ("state", "headers", "begins"),
    [
        ("ready", ["POSITION", "SINCE", "ID", "QUEUE", "TASK"], r" +0 +[\d.]+m?s  {id}  celery +"),
        ("unacked", ["SINCE", "ID", "WORKER", "QUEUE", "TASK"], r" *[\d.]+m?s  {id}  {worker}  celery +"),
        (
            "dead",
            ["SINCE", "ID", "QUEUE", "FAILURES", "REASON", "TASK"],
            r" *[\d.]+m?s +{id} +celery +1 +rejected +",
        ),
    ],
)
def test_list_shows_what_there_is_to_say_of_a_state(
    site: Site, in_each_state: dict[str, str], state: str, headers: list[str], begins: str
) -> None:
    header, row = site.text("list", "--state", state).splitlines()
    assert header.split() == headers
    worker = re.escape(f"{socket.gethostname()}:{os.getpid()}")
    expected = begins.format(id=in_each_state[state], worker=worker) + r"shop\.close_order\(\)"
    assert re.fullmatch(expected, row), row


def test_list_of_all_says_the_state_and_since_when(site: Site, in_each_state: dict[str, str]) -> None:
    header, *rows = site.text("list").splitlines()
    assert header.split() == ["STATE", "WHEN", "ID", "QUEUE", "TASK"]
    assert [row.split()[0] for row in rows] == OF_MESSAGES
    assert rows[0].split()[1] == "in"
    assert all(row.split()[2] == "ago" for row in rows[1:])


def test_list_of_ready_ones_is_in_the_order_in_which_they_are_taken(site: Site) -> None:
    ids = [site.send(priority=priority) for priority in (9, 0, 9)]
    rows = site.rows("list", "--state", "ready")
    assert [(row["position"], row["id"]) for row in rows] == [(0, ids[1]), (1, ids[0]), (2, ids[2])]


def test_a_message_of_another_transport_does_not_say_how_long_it_waits(site: Site) -> None:
    site.redis.lpush(QUEUE, payload("stock"))
    _, row = site.text("list", "--state", "ready", "-Q", QUEUE).splitlines()
    assert row.split()[:3] == ["0", "?", "stock"]


def test_a_worker_elsewhere(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    id = str(uuid4())
    site.store.remember(QUEUE)
    site.add_consumer(ELSEWHERE, -1000)
    site.redis.hset(site.store.keys(QUEUE).unacked(ELSEWHERE), "1", f"0:{payload(id)}")
    _, row = site.text("list", "--state", "unacked").splitlines()
    assert row.split()[2] == "3f2a1c58-5a0c-4c2e-9d1b-6f0e8a7b1c2d:4321"
    fields = _fields(site.text("show", id))
    assert fields["host"] == "3f2a1c58-5a0c-4c2e-9d1b-6f0e8a7b1c2d"
    assert fields["worker"].startswith("3f2a1c58-5a0c-4c2e-9d1b-6f0e8a7b1c2d:4321 (lease ended)")
    assert fields["lost"].startswith("lease ended")
    # Where there is no room for all, each message has two lines.
    _, _, first, second = _on_a_terminal(site, monkeypatch, "list", "--state", "unacked")
    assert first.split()[1] == id
    worker = ["3f2a1c58-5a0c-4c2e-9d1b-6f0e8a7b1c2d:4321", "(lease", "ended)"]
    assert second.split()[:3] == worker


@pytest.mark.parametrize("state", [*OF_MESSAGES, "all"])
def test_list_fits_into_80_columns(
    site: Site, in_each_state: dict[str, str], state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = () if state == "all" else ("--state", state)
    header, *rows = _on_a_terminal(site, monkeypatch, "list", *words)
    ids = in_each_state.values() if state == "all" else [in_each_state[state]]
    assert len(rows) == len(ids)
    assert "TASK" in header
    for id, row in zip(ids, rows, strict=True):
        assert id in row
        assert "shop." in row
        assert len(row) <= 80


def test_finished_tasks_fit_into_80_columns(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    id = "5ab0c1de-93b5-4a0e-8f37-0d2c9a6b7e10"
    keep_finished(site.store, QUEUE, id, error="ConnectionError", outcome="terminated", tries=3)
    *_, first, second = lines = _on_a_terminal(site, monkeypatch, "list", "--state", "finished")
    assert id in first
    assert {"ConnectionError", "celery@w", "shop.close"} <= set(second.split())
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize("option", ["--before", "--after"])
@pytest.mark.parametrize("value", ["0", "1h", "2026-01-01"])
def test_all_states_have_no_time_in_common(site: Site, option: str, value: str) -> None:
    result = site.run("list", option, value)
    assert result.exit_code == 2
    assert result.stderr.splitlines()[-1] == (
        "Error: After and before need one state: each state has a time of its own. Choose one with --state."
    )


@pytest.mark.parametrize("options", [{}, {"countdown": 60}])
def test_a_task_may_be_given_with_wildcards(site: Site, options: dict[str, Any]) -> None:
    ids = [site.send(task, **options) for task in ("shop.remind", "shop.close_order", "mail.send")]
    state = "scheduled" if options else "ready"
    for pattern, wanted in (("shop.*", ids[:2]), ("*.send", ids[2:]), ("shop.remind", ids[:1]), ("shop", [])):
        assert [row["id"] for row in site.rows("list", "--state", state, "--task", pattern)] == wanted


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("list",), "No messages found.\n"),
        (("list", "--state", "scheduled"), "No scheduled messages found.\n"),
        (("list", "--state", "ready"), "No ready messages found.\n"),
        (("list", "--state", "dead"), "No dead letters found.\n"),
        (("timeline", "--by", "task"), "No scheduled messages found.\n"),
    ],
)
def test_a_list_of_nothing_says_so(site: Site, words: tuple[str, ...], told: str) -> None:
    result = site.run(*words)
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", told)
    result = site.run(*words, "--json")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", told)


def test_show(site: Site) -> None:
    task_id = site.send("shop.remind", args=(1,), countdown=3600, priority=3)
    [row] = site.rows("show", task_id)
    assert (row["id"], row["queue"], row["task"], row["priority"]) == (task_id, QUEUE, "shop.remind", 3)
    assert row["headers"]["task"] == "shop.remind"
    fields = dict(line.split(maxsplit=1) for line in site.text("show", task_id).splitlines())
    assert (fields["id"], fields["task"], fields["args"]) == (task_id, "shop.remind", "[1]")


def test_show_leaves_out_empty_headers(site: Site) -> None:
    id = site.send(countdown=3600, headers={"mine": "", "zero": 0, "off": False, "none": [None, None]})
    [row] = site.rows("show", id)
    assert {"mine", "expires", "timelimit", "none"} <= row["headers"].keys()
    names = re.findall(r"^header (\S+)", site.text("show", id), re.MULTILINE)
    assert {"task", "retries", "zero", "off"} <= set(names)
    assert {"mine", "none", "expires", "timelimit", "shadow", "stamps", "group"} & set(names) == set()


def test_show_has_all_of_the_arguments(site: Site) -> None:
    long = "x" * 3000
    id = site.send(args=(long,), kwargs={"order": long})
    shown = site.text("show", id)
    assert f"'{long}'" in re.search("^args .*$", shown, re.MULTILINE)[0]  # type: ignore[index]
    assert f"'order': '{long}'" in re.search("^kwargs .*$", shown, re.MULTILINE)[0]  # type: ignore[index]


def test_what_is_shown_of_arguments(site: Site) -> None:
    long = "x" * 3000
    id = site.send("shop.remind", args=(long,), kwargs={"order": "secret"})

    def shown(*words: str, json: bool = False) -> str:
        text = site.text(*words, "--json") if json else site.text(*words)
        return ("all " if long in text else "") + ("shortened" if "secret" in text else "none")

    for as_json in (False, True):
        assert shown("list", json=as_json) == "shortened"
        assert shown("show", id, json=as_json) == "all shortened"
        for command in (("list",), ("show", id)):
            assert shown(*command, "--show-arguments", "all", json=as_json) == "all shortened"
            assert shown(*command, "--show-arguments", "shortened", json=as_json) == "shortened"
            assert shown(*command, "--show-arguments", "none", json=as_json) == "none"
    assert "shop.remind(…)" in site.text("list", "--show-arguments", "none")
    [row] = site.rows("show", id)
    assert row["arguments"] == {"args": [long], "kwargs": {"order": "secret"}}


def test_by_an_argument(site: Site) -> None:
    id = site.send(kwargs={"order": 42})
    site.send(args=(43,))
    assert [row["id"] for row in site.rows("list", "--args", "order=42")] == [id]
    assert site.text("cancel", "--args", "42", "--yes") == "Cancelled 1 message.\n"
    site.send(args=("Zoë",), kwargs={"place": {"city": "Köln", "n": [1, None]}})
    for wanted in (
        "Zoë",
        '"Zoë"',
        '{"city": "Köln", "n": [[]1, null]}',
        "{'city': 'Köln', 'n': [[]1, None]}",
    ):
        assert len(site.rows("list", "--args", wanted)) == 1


def test_show_says_where_a_message_is(site: Site, in_each_state: dict[str, str]) -> None:
    shown = {state: _fields(site.text("show", id)) for state, id in in_each_state.items()}
    for state, id in in_each_state.items():
        assert (shown[state]["id"], shown[state]["state"]) == (id, state)
    assert re.fullmatch(r".*\+00:00 \(in .*\)", shown["scheduled"]["due"])
    assert shown["ready"]["position"] == "0 before it"
    assert shown["unacked"]["host"] == socket.gethostname()
    assert shown["unacked"]["worker"] == f"{socket.gethostname()}:{os.getpid()}"
    assert "lost" not in shown["unacked"]
    assert shown["dead"]["reason"] == "rejected"
    assert all(shown[state]["since"].endswith(" ago)") for state in ("ready", "unacked", "dead"))


def test_show_has_the_times_of_the_apps_time_zone(site: Site, in_each_state: dict[str, str]) -> None:
    app = Celery("shop", broker=site.app.conf.broker_url, timezone="Asia/Kolkata", set_as_current=False)
    for state in OF_MESSAGES:
        name = "due" if state == "scheduled" else "since"
        shown = _fields(site.run("show", in_each_state[state], app=app).stdout)[name]
        at = re.fullmatch(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\+05:30) \(.*\)", shown)
        assert at, shown
        assert abs((datetime.fromisoformat(at[1]) - datetime.now(timezone.utc)).total_seconds()) < 4000
    row = json.loads(site.run("show", in_each_state["dead"], "--json", app=app).stdout)
    assert row["since"].endswith("+00:00")


def test_show_of_several_says_how_many(site: Site) -> None:
    for countdown in (3600, 7200, None):
        site.send(task_id="twice", countdown=countdown, queue="b" if countdown else QUEUE)
    first, *blocks = site.text("show", "twice").split("\n\n")
    assert first == "3 messages have the id twice."
    assert [_fields(block)["state"] for block in blocks] == ["scheduled", "scheduled", "ready"]
    assert [row["state"] for row in site.rows("show", "twice")] == ["scheduled", "scheduled", "ready"]


def test_show_of_an_unknown_id_fails(site: Site) -> None:
    result = site.run("show", "nothing")
    assert (result.exit_code, result.stdout, result.stderr) == (
        1,
        "",
        f"Error: No message has the id nothing.\n{ACKED_EARLY}\n",
    )


def test_bytes_that_are_no_message(site: Site) -> None:
    site.store.remember(QUEUE)
    site.redis.lpush(site.store.keys(QUEUE).dead, b"1700000000000 3 0 not JSON\n\xff\x00garbage")
    [row] = site.rows("list", "--state", "dead")
    shown = site.text("show", row["id"])
    assert "\\xff\\x00garbage" in shown
    assert "not JSON" in shown
    [found] = site.rows("show", row["id"])
    assert found.pop("payload") == "\\xff\x00garbage"
    assert found.pop("arguments") is None
    assert [event["event"] for event in found.pop("life")] == [
        *("published", "came back from a worker", "given up"),
    ]
    assert found == row


@pytest.mark.parametrize(
    "finger", ["purge", "dead", "retry", "kill", "rm", "run", "inspect", "ls", "unpause"]
)
def test_what_is_called_otherwise_elsewhere(site: Site, finger: str) -> None:
    result = site.run(finger)
    assert result.exit_code == 2
    assert re.search(rf"No such command '{finger}'\. Use `[a-z-]+", " ".join(result.stderr.split()))


@pytest.mark.parametrize("value", ["tomorrow", "10x", "-5m", "1e400d", "99999999999d"])
def test_a_time_that_is_none_is_a_usage_error(site: Site, value: str) -> None:
    result = site.run("list", "--state", "scheduled", f"--before={value}")
    assert result.exit_code == 2
    assert repr(value) in result.stderr.replace("\n", " ")


def test_what_a_process_holds_that_is_gone(site: Site) -> None:
    dead = consumer_that_is_gone()
    site.store.remember(QUEUE)
    site.add_consumer(dead, -1000, holds=1)
    [row] = site.rows("list", "--state", "unacked")
    assert row["lost"] == "process gone"
    assert f"{row['pid']} (process gone)" in site.text("list", "--state", "unacked")
    shown = site.text("show", row["id"])
    assert f"{row['pid']} (process gone)" in shown
    assert "comes back when another worker of this queue runs" in shown
    found = [finding["found"] for finding in site.rows("doctor", status=1)]
    assert "messages are still held by 1 consumer whose lease ended" in found
    site.redis.zincrby(site.store.keys(QUEUE).consumers, 60_000, dead)
    found = [finding["found"] for finding in site.rows("doctor", status=1)]
    assert f"1 message held by a process that is gone (process {row['pid']})" in found


def test_a_missing_id(site: Site) -> None:
    result = site.run("show")
    assert result.exit_code == 2
    assert result.stderr.splitlines()[-1] == "Error: Missing argument 'ID...'."


def test_a_declared_queue_that_redis_does_not_know(site: Site) -> None:
    """A producer has noted the queue, and then Redis was emptied."""
    id = site.send(countdown=3600)
    site.redis.delete(known_queues(""))
    assert site.text("deliver-now", id) == f"{id} delivered\n"


def test_a_long_id_does_not_widen_the_list(site: Site) -> None:
    long = "x" * 100_000
    site.send(task_id=long)
    site.bury(payload(long), "why")
    site.send(task_id="short")
    lines = site.text("list").splitlines()
    assert max(map(len, lines)) < 400
    assert [line.count("x") for line in lines] == [0, LONGEST, 0, LONGEST]
    assert {row["id"] for row in site.rows("list")} == {long, "short"}


def test_numbers_that_json_does_not_have_are_texts(site: Site) -> None:
    numbers = [float("nan"), float("inf"), float("-inf")]
    id = site.send(args=numbers, countdown=3600, headers={"ratio": float("nan")})
    keys = site.store.keys(QUEUE)
    # Another program may write it so.
    site.redis.hset(keys.messages, id, site.redis.hget(keys.messages, id).replace("NaN", "1e999"))

    def refused(text: str) -> None:
        raise ValueError(text)

    for words in (("show", id), ("list", "--show-arguments", "all")):
        [line] = site.text(*words, "--json").splitlines()
        row = json.loads(line, parse_constant=refused)
        assert row["arguments"]["args"] == ["NaN", "Infinity", "-Infinity"]
        assert row["headers"]["ratio"] == "Infinity"
