"""The options by which commands choose messages, and what they do to many."""

from __future__ import annotations

import os
import pty
import re
import sys
from collections.abc import Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path
from subprocess import PIPE, Popen
from zoneinfo import ZoneInfo

import pytest

from kombu_redisdelay.words import ACKED_EARLY
from tests.cli.site import QUEUE, Site, bury_long_ago, count_of, states
from tools.harness.redis_server import RedisServer

PICKING: dict[str, tuple[str, ...]] = {
    "cancel": ("cancel", "--state", "scheduled"),
    "deliver-now": ("deliver-now",),
    "reschedule": ("reschedule", "--countdown", "1d"),
    "requeue": ("requeue", "--state", "dead"),
    "remove": ("remove", "--state", "dead"),
}
#: Command -> what it says of what it did.
DONE = {
    "cancel": "cancelled",
    "deliver-now": "delivered",
    "reschedule": "rescheduled",
    "requeue": "requeued",
    "remove": "removed",
}
OF_DEAD = ("requeue", "remove")


#: What picks messages -> how many of the six it picks.
CHOICES = [
    (("-Q", "a"), 2),
    (("-Q", "a", "-Q", "c"), 4),
    (("--task", "mail.*"), 3),
    (("--task", "mail.s?nd", "-Q", "b"), 1),
    (("--task", "mail"), 0),
]


@pytest.mark.parametrize("command", ["list", "count", "cancel"])
def test_a_filter_that_is_given_twice_is_a_usage_error(full: Site, command: str) -> None:
    for name in ("task", "args", "related", "reason"):
        result = full.run(command, f"--{name}", "a", f"--{name}", "b")
        assert (result.exit_code, result.stdout) == (2, "")
        assert "Give it once" in result.stderr or "give it once" in result.stderr


@pytest.mark.parametrize("words", [("--task", ""), ("--reason", ""), ("",)])
def test_of_a_script_whose_variable_is_empty(full: Site, words: tuple[str, ...]) -> None:
    result = full.run("cancel", "-Q", "a", *words, "--yes")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "is empty" in result.stderr


def test_a_timestamp_is_no_length_of_time(full: Site) -> None:
    result = full.run("cancel", "--state", "scheduled", "--before", "1798000000", "--yes")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "'1798000000' looks like a timestamp. Write it in ISO 8601: 2027-01-01T09:00." in result.stderr


def test_nobody_answers(full: Site) -> None:
    result = full.run("cancel", "--all", input="")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "Nobody has answered. Without a terminal, give --yes." in result.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("pause", "emails"), "Got unexpected extra argument (emails). Name queues with -Q."),
        (("list", "id"), "Got unexpected extra argument (id). Name queues with -Q. `show` takes ids."),
        (("pause", "-Q", "a,b"), "'a,b' yet, and the app does not declare it. For several, write -Q a -Q b."),
        (("list", "-Q", "celry"), "Nobody has used a queue 'celry' yet. Did you mean 'celery'?"),
        (("move", "id"), "Use `reschedule`."),
        (("queues",), "Use `stats`."),
    ],
)
def test_what_was_meant(full: Site, words: tuple[str, ...], said: str) -> None:
    full.send()
    assert said in full.run(*words).stderr


def test_an_id_of_another_queue(full: Site) -> None:
    result = full.run("cancel", "a shop.close", "-Q", "b")
    assert result.exit_code == 1
    assert result.stderr == "a shop.close is scheduled in the queue 'a'\n"


def _sentence(command: str, what: str) -> str:
    verb, *now = command.split("-")
    return " ".join((verb, what, *now))


@pytest.mark.parametrize("command", PICKING)
class TestMany:
    @pytest.mark.parametrize(("choice", "count"), CHOICES)
    def test_are_counted_asked_for_and_changed(
        self, full: Site, command: str, choice: tuple[str, ...], count: int
    ) -> None:
        words, done = (*PICKING[command], *choice), DONE[command]
        before = states(full)
        noun = "dead letter" if command in OF_DEAD else "message"
        number = f"{count} {noun}{'' if count == 1 else 's'}"
        said = re.sub(r", due .*?\)", "", full.text(*words, "--dry-run"))
        none = f"No {noun} matches.\n"
        assert said == (f"Would {_sentence(command, number)}.\n" if count else none)
        verb = command.replace("-", "_")
        [row] = full.rows(*words, "--dry-run", "--yes")
        row.pop("due", None)
        assert row == {"verb": verb, "dry_run": True, "messages": count}
        if count:
            result = full.run(*words, input="n\n")
            assert result.exit_code == 1
            asked = number.replace("message", "scheduled message")
            begins, _, ends = _sentence(command, f"{asked} of|").partition("|")
            assert re.search(rf"^{begins.capitalize()} .*{ends}\?", result.stderr)
        assert states(full) == before
        begin = f"{done.capitalize()} {number}" if count else none
        assert full.text(*words, input="y\n").startswith(begin)
        after = states(full)
        moved = sum(len(set(before[state]) - set(after[state])) for state in before)
        assert moved == count

    def test_a_limit(self, full: Site, command: str) -> None:
        words = (*PICKING[command], "--all", "--limit", "4")
        assert count_of(full.rows(*words, "--dry-run")) == 4
        assert f"{4} " in full.run(*words, input="n\n").stderr
        assert count_of(full.rows(*words, "--yes")) == 4

    def test_by_time(self, full: Site, command: str) -> None:
        words = PICKING[command]
        sign = -1 if command in OF_DEAD else 1
        moment = (datetime.now(timezone.utc) + sign * timedelta(hours=1.5)).isoformat()
        before, after = ("--after", "--before") if sign < 0 else ("--before", "--after")
        for time in ("1.5h", "90m", moment):
            assert count_of(full.rows(*words, before, time, "--dry-run")) == 2
            assert count_of(full.rows(*words, after, time, "--dry-run")) == 4
        both = (after, "90m", before, "150m", "--dry-run")
        assert count_of(full.rows(*words, *both)) == 2

    def test_all(self, full: Site, command: str) -> None:
        result = full.run(*PICKING[command], "--all", input="y\n")
        assert " 6 " in result.stderr
        assert result.stderr.partition("?")[0].removesuffix(" now").endswith("of all queues")
        again = full.rows(*PICKING[command], "--all", "--yes")
        # Only what was rescheduled is still there to be rescheduled again.
        assert count_of(again) == (6 if command == "reschedule" else 0)

    def test_what_to_change_must_be_said(self, full: Site, command: str) -> None:
        before = states(full)
        result = full.run(*PICKING[command], "--yes")
        assert result.exit_code == 2
        assert result.stderr.splitlines()[-1].endswith("--all.")
        assert states(full) == before

    def test_nothing_to_change_is_not_asked_for(self, site: Site, command: str) -> None:
        assert count_of(site.rows(*PICKING[command], "--all")) == 0

    @pytest.mark.parametrize(
        "choice", [("id", "--all"), ("id", "--task", "t"), ("id", "--before", "0"), ("id", "--after", "1h")]
    )
    def test_ids_and_options_do_not_go_together(
        self, full: Site, command: str, choice: tuple[str, ...]
    ) -> None:
        before = states(full)
        result = full.run(*PICKING[command], *choice, "--yes")
        assert result.exit_code == 2
        assert result.stderr.splitlines()[-1].startswith("Error: ")
        assert states(full) == before

    def test_an_unknown_queue_is_a_usage_error(self, full: Site, command: str) -> None:
        before = states(full)
        result = full.run(*PICKING[command], "-Q", "a", "-Q", "emial", "-Q", "typo", "--yes")
        assert result.exit_code == 2
        assert "obody has used a queue 'emial' or 'typo' yet" in result.stderr
        assert states(full) == before


@pytest.mark.parametrize("command", PICKING)
def test_nothing_chosen_is_a_usage_error(full: Site, command: str) -> None:
    before = states(full)
    result = full.run(*PICKING[command], "--yes")
    assert result.exit_code == 2
    assert states(full) == before
    assert "--all" in result.stderr.splitlines()[-1]


@pytest.mark.parametrize("command", PICKING)
def test_several_ids(full: Site, command: str) -> None:
    words, done = PICKING[command], DONE[command]
    ids = ["b mail.send", "nothing", "a shop.close", "a shop.close"]
    rows = full.rows(*words, *ids, "--dry-run", status=1)
    assert [(row["id"], row["messages"], row["dry_run"]) for row in rows] == [
        ("b mail.send", 1, True),
        ("nothing", 0, True),
        ("a shop.close", 1, True),
    ]
    result = full.run(*words, *ids, "--dry-run")
    assert (result.exit_code, result.stderr) == (1, "nothing not found\n")
    assert re.findall("^Would (.*?)(?:, due .*)?$", result.stdout, re.MULTILINE) == [
        _sentence(command, "b mail.send"),
        _sentence(command, "a shop.close"),
    ]
    rows = full.rows(*words, *ids[:2], status=1)
    assert [(row["verb"], row["id"], row["messages"]) for row in rows] == [
        (command.replace("-", "_"), "b mail.send", 1),
        (command.replace("-", "_"), "nothing", 0),
    ]
    assert [row.get("due") is not None for row in rows] == [command == "reschedule", False]
    result = full.run(*words, *ids[1:])
    assert (result.exit_code, result.stderr) == (1, "nothing not found\n")
    assert result.stdout.startswith(f"a shop.close {done}")


def test_ids_of_one_queue(full: Site) -> None:
    full.send(task_id="twice", queue="a", countdown=60)
    full.send(task_id="twice", queue="b", countdown=60)
    assert count_of(full.rows("cancel", "twice", "-Q", "b", "--state", "scheduled")) == 1
    assert count_of(full.rows("cancel", "twice", "--state", "ready", status=1)) == 0
    assert [row["queue"] for row in full.rows("show", "twice")] == ["a"]


def test_several_ids_are_shown(full: Site) -> None:
    bury_long_ago(full, "c dead", "t", 1, "c")
    result = full.run("show", "a mail.send", "nothing", "c dead")
    assert result.exit_code == 1
    assert re.findall("^id +(.*)$", result.stdout, re.MULTILINE)[-1] == "c dead"
    assert "\n\nid " in result.stdout
    assert result.stderr == f"Error: No message has the id nothing.\n{ACKED_EARLY}\n"
    rows = full.rows("show", "c dead", "a mail.send")
    assert [row["id"] for row in rows][:2] == ["c dead", "a mail.send"]


class TestTimes:
    def test_one_without_an_offset_is_in_the_timezone_of_the_app(self, site: Site) -> None:
        site.app.conf.timezone = "Asia/Tokyo"
        id = site.send(countdown=60)
        told = site.text("reschedule", id, "--eta", "2099-07-01T09:00")
        assert told.startswith(f"{id} rescheduled, due 2099-07-01 09:00:00+09:00 (in ")
        [row] = site.rows("list", "--state", "scheduled")
        assert row["due"] == "2099-07-01T00:00:00+00:00"
        for moment, count in (("2099-07-01T09:00", 0), ("2099-07-01T09:00:01", 1), ("2099-07-01T00:00Z", 0)):
            assert len(site.rows("list", "--state", "scheduled", "--before", moment)) == count
        assert len(site.rows("list", "--state", "scheduled", "--after", "2099-07-01T09:00")) == 1
        summer = datetime(2099, 7, 1, 9, tzinfo=ZoneInfo("Asia/Tokyo"))
        assert site.rows("reschedule", id, "--eta", summer.isoformat())[0]["due"] == row["due"]

    @pytest.mark.parametrize(
        ("option", "value"),
        [
            ("--countdown", "-1"),
            ("--countdown", "nan"),
            ("--countdown", "10y"),
            ("--countdown", "99999999999d"),
            ("--countdown", "9000000d"),
            ("--countdown", "2027-01-01"),
            ("--eta", "2020-01-01"),
            ("--eta", "10m"),
            ("--eta", "soon"),
            ("--before", "10y"),
            ("--after", "9000000d"),
        ],
    )
    def test_an_error_names_the_option(self, site: Site, option: str, value: str) -> None:
        time = () if option in ("--countdown", "--eta") else ("--countdown", "1")
        for dry_run in ((), ("--dry-run",)):
            result = site.run("reschedule", "--all", "--yes", f"{option}={value}", *time, *dry_run)
            assert result.exit_code == 2
            named = (f"Error: Invalid value for '{option}':", f"Error: {option} must be ")
            assert result.stderr.splitlines()[-1].startswith(named)

    def test_a_list_of_what_is_so_since(self, full: Site) -> None:
        for state in ("ready", "unacked", "dead"):
            assert full.rows("list", "--state", state, "--after", "0") == []
        assert len(full.rows("list", "--state", "dead", "--before", "90m")) == 4
        assert len(full.rows("list", "--state", "dead", "--after", "90m")) == 2
        full.send()
        assert len(full.rows("list", "--state", "ready", "--after", "1h")) == 1
        assert full.rows("list", "--state", "ready", "--before", "1h") == []


class TestHowMany:
    def test_more_are_told_of(self, full: Site) -> None:
        for words, told in (
            (("list",), "there are 12"),
            (("list", "-Q", "a", "-Q", "b"), "there are 8"),
            (("list", "--state", "scheduled", "--after", "90m"), "there are 4"),
            (("list", "--task", "*"), "there are more"),
            (("list", "--state", "dead"), "there are 6"),
            (("list", "--state", "dead", "--before", "0"), "there are 6"),
        ):
            result = full.run(*words, "--limit", "2")
            assert len(result.stdout.splitlines()) == 3
            assert result.stderr == f"Only the first 2: {told}. See all with --limit 0.\n"
            result = full.run(*words, "--limit", "0")
            assert (len(result.stdout.splitlines()) > 3, result.stderr) == (True, "")

    def test_exactly_as_many_as_there_are(self, full: Site) -> None:
        assert full.run("list", "--limit", "12").stderr == ""

    def test_one(self, full: Site) -> None:
        assert full.run("list", "--limit", "1").stderr.startswith("Only the first one: there are 12.")

    @pytest.mark.parametrize(
        "words",
        [
            ("list", "--state", "scheduled"),
            ("list", "--state", "scheduled", "--json"),
            pytest.param(("list", "--state", "scheduled", "--limit", "0"), marks=pytest.mark.thorough),
            pytest.param(("list", "--state", "dead"), marks=pytest.mark.thorough),
        ],
    )
    def test_a_terminal_gets_a_hundred(
        self, site: Site, server: RedisServer, tmp_path: Path, words: tuple[str, ...]
    ) -> None:
        for number in range(101):
            site.send(countdown=60 + number)
            bury_long_ago(site, f"{number}", "t", 1, QUEUE)
        lines, told = on_a_terminal(server, tmp_path, *words)
        has_all = "--json" in words or "--limit" in words
        found = [line for line in lines if "shop.close_order" in line or " rejected " in line]
        assert len(found) == (101 if has_all else 100)
        assert told == ("" if has_all else "Only the first 100: there are 101. See all with --limit 0.\n")


def on_a_terminal(server: RedisServer, folder: Path, *words: str) -> tuple[Sequence[str], str]:
    """What `celery delayed` prints where standard output is a terminal, and on standard error."""
    (folder / "shop.py").write_text(f"from celery import Celery\napp = Celery(broker={server.url()!r})\n")
    command = (sys.executable, "-m", "celery", "-A", "shop", "delayed", *words)
    ours, theirs = pty.openpty()
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), *sys.path]), "COLUMNS": "200"}
    with Popen(command, stdout=theirs, stderr=PIPE, env=environment) as process:
        os.close(theirs)
        text = b""
        try:
            while part := os.read(ours, 65536):
                text += part
        except OSError:
            # Linux says so when the other end of a terminal is closed.
            pass
        finally:
            os.close(ours)
        assert process.stderr is not None
        told = process.stderr.read().decode()
    assert process.returncode == 0, told
    return text.decode().splitlines(), told
