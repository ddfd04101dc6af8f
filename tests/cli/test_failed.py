"""Failed tasks on the command line."""

from __future__ import annotations

import json
import os
import signal
from threading import Event, Thread

import pytest

from kombu_redisdelay.broker.archive import Archive
from kombu_redisdelay.broker.failure import CONTINUATION, RESULT
from kombu_redisdelay.broker.keys import FAILED
from kombu_redisdelay.cli import stopping
from kombu_redisdelay.operations import pace
from kombu_redisdelay.operations.verbs import VERBS
from tests.cli.site import QUEUE, Site, payload
from tests.failed import SECRET, keep_failed
from tools.harness.process import wait_until

#: What is said before.
UNATTENDED = f"No worker consumes from the queue {QUEUE!r}: what is requeued waits there.\n"


def fail(site: Site, *ids: str, task: str = "shop.close_order", **noted: object) -> None:
    for id in ids:
        keep_failed(site.store, QUEUE, id, payload(id), task, **noted)


def test_the_list(site: Site) -> None:
    fail(site, "f1")
    fail(site, "f2", error="ValueError", tries=1)
    header, one, other = site.text("list", "--state", "failed").splitlines()
    assert header.split() == ["SINCE", "ID", "QUEUE", "TRIES", "ERROR", "TASK"]
    assert one.split()[1:] == ["f1", QUEUE, "2", "KeyError", "shop.close_order()"]
    assert other.split()[1:] == ["f2", QUEUE, "1", "ValueError", "shop.close_order()"]
    for option in ("KeyError", "Key*"):
        assert [row["id"] for row in site.rows("list", "--error", option)] == ["f1"]
    assert [row["id"] for row in site.rows("list", "--state", "failed", "--newest-first")] == ["f2", "f1"]
    result = site.run("list", "--newest-first")
    assert (result.exit_code, "needs --state scheduled, failed" in result.stderr) == (2, True)
    # Both are listed.
    site.bury(payload("d1"), "why")
    assert {row["id"]: row["state"] for row in site.rows("list")} == {
        "f1": "failed",
        "f2": "failed",
        "d1": "dead",
    }


def test_by_task_and_error(site: Site) -> None:
    words = ("count", "--state", "failed", "--by", "error", "--by", "task")
    assert site.run(*words).stderr == "No failed tasks found.\n"
    fail(site, "f1")
    fail(site, "f2", "f3", error="ValueError\x1b")
    for more in ((), ("--after", "1h"), ("-Q", QUEUE)):
        rows = site.rows(*words, *more)
        assert [(row["error"], row["task"], row["messages"]) for row in rows] == [
            ("ValueError\x1b", "shop.close_order", 2),
            ("KeyError", "shop.close_order", 1),
        ]
        assert all(row["first"] <= row["last"] for row in rows)
    header, one, _ = site.text(*words).splitlines()
    assert header.split() == ["MESSAGES", "ERROR", "TASK", "FIRST", "LAST"]
    assert one.split()[:3] == ["2", r"ValueError\x1b", "shop.close_order"]


def test_what_is_shown_and_hidden(site: Site) -> None:
    fail(site, "f1", text="\x1b[31m" + SECRET)
    shown = site.text("show", "f1")
    lines = [line.split(maxsplit=1) for line in shown.splitlines()]
    fields = {words[0]: words[1] for words in lines if len(words) > 1}
    assert (fields["error"], fields["tries"], fields["worker"]) == ("KeyError", "2", "celery@w")
    assert fields["text"] == rf"\x1b[31m{SECRET}"
    assert shown.endswith(f"Traceback:\n  File\nKeyError: {SECRET}\n")
    [row] = site.rows("show", "f1")
    assert (row["text"], row["state"]) == ("\x1b[31m" + SECRET, "failed")
    for words in (("show", "f1"), ("list", "--state", "failed")):
        for as_json in ((), ("--json",)):
            assert "hunter2" not in site.text(*words, "--show-arguments", "none", *as_json)


def test_which_state_is_meant(site: Site) -> None:
    fail(site, "same", "f1")
    site.bury(payload("same"), "why")
    for words in (("requeue", "--all"), ("remove", "-Q", QUEUE), ("requeue", "--task", "*")):
        result = site.run(*words, "--yes")
        assert result.exit_code == 2
        which = " or ".join(f"--state {state}" for state in VERBS["requeue"].states)
        assert f"Say which: {which}." in result.stderr
    assert (
        site.text("requeue", "--state", "failed", "--all", "--dry-run") == "Would requeue 2 failed tasks.\n"
    )
    assert site.text("requeue", "same", "--state", "dead") == "same requeued\n"
    assert site.text("remove", "same") == "same removed\n"
    result = site.run("cancel", "f1")
    assert result.stderr == f"f1 is a failed task in the queue {QUEUE!r}\n"
    result = site.run("remove", "--state", "failed", "--error", "Key*", input="y\n")
    assert "Remove 1 failed task of all queues, with the error Key*?" in result.stderr
    assert result.stdout == "Removed 1 failed task.\n"
    assert Archive(site.store, FAILED).counts([QUEUE]) == [0]


def test_they_are_counted(site: Site) -> None:
    fail(site, "f1", "f2")
    header, line = site.text("stats").splitlines()
    assert dict(zip(header.split(), line.split(), strict=False))["FAILED"] == "2"
    [row] = site.rows("stats")
    assert row["failed"] == 2
    site.text("remove", "f1", "f2")
    assert "FAILED" not in site.text("stats")


def test_those_that_have_returned_are_told_apart(site: Site) -> None:
    fail(site, "f1", tries=1)
    assert "RETURNED" not in site.text("list", "--state", "failed") + site.text("stats")
    fail(site, "r1", "r2", error="ConnectionError", returned=RESULT)
    header, _, line, _ = site.text("list", "--state", "failed").splitlines()
    assert header.split() == ["SINCE", "ID", "QUEUE", "TRIES", "ERROR", "RETURNED", "TASK"]
    assert line.split()[1:] == ["r1", QUEUE, "2", "ConnectionError", "result", "shop.close_order()"]
    assert [row["id"] for row in site.rows("list", "--returned", "result")] == ["r1", "r2"]
    # Beside others, too.
    site.send()
    header, *lines = site.text("list").splitlines()
    assert "RETURNED" in header
    assert [line.split()[-3:-1] for line in lines if "result" in line] == [[QUEUE, "result"]] * 2
    site.text("cancel", "--all", "--yes")
    header, line = site.text("stats").splitlines()[:2]
    assert dict(zip(header.split(), line.split(), strict=False))["FAILED"] == "1"
    [row] = site.rows("stats")
    assert (row["failed"], row["returned"]) == (1, 2)
    words = ("count", "--state", "failed", "--by", "task", "--by", "error")
    assert {(row["error"], row["returned"]): row["messages"] for row in site.rows(*words)} == {
        ("KeyError", ""): 1,
        ("ConnectionError", "result"): 2,
    }
    assert [row["returned"] for row in site.rows(*words, "--by", "returned")] == ["result", ""]
    assert site.text(*words).splitlines()[0].split() == [
        "MESSAGES",
        "TASK",
        "ERROR",
        "RETURNED",
        "FIRST",
        "LAST",
    ]
    shown = site.text("show", "r1")
    assert (
        "returned           its work is done: its result was lost. Celery may have stored FAILURE, and "
        "called link_error\n"
    ) in shown
    assert "and its result was lost, with ConnectionError, try 2" in shown


def test_those_that_have_returned_stay(site: Site) -> None:
    fail(site, "f1")
    fail(site, "r1", "r2", returned=RESULT)
    fail(site, "c1", returned=CONTINUATION)
    stay = "3 tasks that returned stay: their work is done. --returned '*' picks these.\n"
    result = site.run("requeue", "--state", "failed", "--all", "--yes")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "Requeued 1 failed task.\n", stay)
    result = site.run("remove", "--state", "failed", "--all", "--yes")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", stay)
    # Nobody has misspelt the error.
    result = site.run("requeue", "--state", "failed", "--error", "KeyError", "--dry-run")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", stay)
    [row] = site.rows("remove", "--state", "failed", "--all", "--dry-run")
    assert (row["messages"], row["returned"]) == (0, 3)
    result = site.run("requeue", "--state", "failed", "--returned", "result", input="y\n")
    again = (
        "2 have returned before, and do their work once more. What follows them, such as the rest of a "
        "chain, is sent again.\n"
    )
    # Before it is done, too.
    assert result.stderr.startswith(f"{again}Requeue 2 failed tasks of all queues, returned: result?")
    assert result.stderr.endswith(again)
    result = site.run("requeue", "c1")
    assert (result.stdout, result.stderr) == (
        "c1 requeued\n",
        "1 has returned before, and does its work once more. What follows it, such as the rest of a chain, "
        "is sent again.\n",
    )
    result = site.run("list", "--returned", "lost")
    assert (result.exit_code, "eturned must be one of continuation, result, hook" in result.stderr) == (
        2,
        True,
    )


def test_control_c_stops_a_slow_requeue(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if somebody presses it again and again."""
    fail(site, "f1", "f2", "f3")
    # The machine may be slow.
    monkeypatch.setattr(stopping, "AGAIN", 600)
    is_over = Event()

    def press() -> None:
        wait_until(lambda: site.redis.llen(QUEUE) == 1, 60, "one is ready")
        while not is_over.wait(0.001):
            os.kill(os.getpid(), signal.SIGINT)

    # Where the tests are run in the background, it is ignored, and the command leaves it so.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    pressing = Thread(target=press)
    pressing.start()
    try:
        result = site.run("requeue", "--state", "failed", "--all", "--rate", "1/m", "--yes")
    finally:
        is_over.set()
        pressing.join()
        signal.signal(signal.SIGINT, before)
    assert result.exit_code == 130
    assert result.stdout == "Requeued 1 failed task.\n"
    assert result.stderr == (
        f"{UNATTENDED}Stopped. 1 failed task waits in a queue that no worker consumes from. "
        "None have failed again so far, and 2 failed tasks are left.\n"
    )


def test_a_slow_requeue_stops_when_too_many_fail_again(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ("requeue", "--state", "failed", "--all", "--yes", "--rate")
    fail(site, "f1", "f2")
    [row] = site.rows(*words, "100/s")
    assert row == {
        **{"verb": "requeue", "dry_run": False, "messages": 2},
        **{"left": 0, "failed_again": 0, "waiting": 2, "unknown": 0, "stopped": None},
    }
    fail(site, "f1", "f2")
    monkeypatch.setattr(pace, "are_failing", lambda have_failed: True)
    result = site.run(*words, "100/s")
    assert (result.exit_code, result.stdout) == (1, "Requeued 0 failed tasks.\n")
    assert result.stderr == (
        f"{UNATTENDED}Stopped, because too many fail again. None have failed again so far, and "
        "2 failed tasks are left.\n"
    )
    assert site.run(*words, "fast").exit_code == 2


def test_what_is_said_of_a_slow_requeue(site: Site) -> None:
    fail(site, "f1", "f2", "f3")
    words = ("requeue", "--state", "failed", "--rate", "100/s")
    result = site.run(*words, "--task", "*", input="n\n")
    assert "Requeue 3 failed tasks of all queues, of the task *, at 100/s?" in result.stderr
    result = site.run(*words, "--all", "--limit", "1", "--yes")
    assert (result.exit_code, result.stdout) == (0, "Requeued 1 failed task.\n")
    assert result.stderr == (
        f"{UNATTENDED}1 failed task waits in a queue that no worker consumes from. "
        "None have failed again so far, and 2 failed tasks are left.\n"
    )
    result = site.run(*words, "--error", "Nope", "--yes")
    assert (result.stdout, result.stderr) == (
        "No failed task matches.\n",
        "There are the errors KeyError. Case counts.\n",
    )
    assert site.run("requeue", "nope", "--rate", "100/s").stderr == "nope not found\n"
    result = site.run("requeue", "--state", "dead", "--all", "--rate", "1/s", "--yes")
    assert (result.exit_code, "--rate" in result.stderr, "'dead'" in result.stderr) == (2, True, True)
    result = site.run(*words, "--all", "--yes")
    assert result.stderr == (
        f"{UNATTENDED}2 failed tasks wait in queues that no worker consumes from. "
        "None have failed again so far. All that it began with were sent.\n"
    )


def test_one_that_was_kept_without_its_message_stays(site: Site) -> None:
    keep_failed(site.store, QUEUE, "big", "x" * (1024 * 1024 + 1))
    fail(site, "f1")
    assert "KeyError, no message" in site.text("list", "--state", "failed")
    words = ("requeue", "--state", "failed", "--all")
    stays = "1 failed task stays: it was kept without its message, which is too large, or lost.\n"
    assert site.run(*words, "--dry-run").stdout == f"Would requeue 1 failed task, and {stays}"
    result = site.run(*words, "--yes")
    assert (result.exit_code, result.output) == (1, f"Requeued 1 failed task, and {stays}")
    assert site.run(*words, "--yes").output == stays
    result = site.run("requeue", "big")
    assert result.exit_code == 1
    assert result.stderr == (
        f"big is a failed task in the queue {QUEUE!r}, kept without its message, which is too large, "
        "or lost\n"
    )


def test_its_life(site: Site) -> None:
    fail(site, "f1")
    [since] = [row["since"] for row in site.rows("list")]
    lines = site.text("show", "f1").splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith("life "))
    told = (line.removeprefix("life").strip() for line in lines[first : first + 3])
    published, started, failed = told
    assert published == "published"
    assert started.startswith("started 1970-01-01 00:00:01+00:00 (")
    assert started.endswith(" ago), at celery@w")
    assert failed.startswith("failed 20")
    assert failed.endswith(" ago), with KeyError, try 2")
    [row] = site.rows("show", "f1")
    assert row["life"] == [
        {"event": "published", "at": None, "said": ""},
        {"event": "started", "at": "1970-01-01T00:00:01.500000+00:00", "said": "at celery@w"},
        {"event": "failed", "at": since, "said": "with KeyError, try 2"},
    ]


def _part_of_a_chord(id: str, embedded: object) -> str:
    message = json.loads(payload(id))
    message["headers"]["group"] = "g"
    return json.dumps({**message, "body": json.dumps([[], {}, embedded])})


def test_parts_of_chords(site: Site) -> None:
    chord = {"chord": {"task": "shop.sum"}}
    for id, embedded in (("c1", chord), ("c2", chord), ("of a group", {})):
        keep_failed(site.store, QUEUE, id, _part_of_a_chord(id, embedded))
    fail(site, "f1")
    told = "2 are parts of chords, or may be: the bodies of these chords will not run because of them.\n"
    words = ("requeue", "--state", "failed", "--all")
    assert site.run(*words, "--dry-run").stderr == told
    assert [row["chord_parts"] for row in site.rows(*words, "--dry-run")] == [2]
    assert "chord   " in site.text("show", "c1")
    assert [site.rows("show", id)[0].get("chord_part") for id in ("c2", "of a group")] == [True, None]
    assert site.run("requeue", "c1").stderr.startswith("1 is a part of a chord, or may be: the body of this")
    [row] = site.rows(*words, "--yes")
    assert (row["messages"], row["chord_parts"]) == (3, 1)


def test_errors_are_named_if_none_matches(site: Site) -> None:
    words = ("requeue", "--state", "failed", "--error", "keyerror", "--yes")
    assert site.run(*words).output == "No failed task matches.\n"
    fail(site, "f1")
    fail(site, *(f"e{number}" for number in range(11)), error="Key\x1bError")
    result = site.run(*words)
    assert (result.exit_code, result.stdout) == (0, "No failed task matches.\n")
    assert result.stderr == "There are the errors Key\\x1bError, KeyError. Case counts.\n"


def test_the_last_ones_may_still_run(site: Site) -> None:
    fail(site, "f1", "f2", "f3")
    site.add_consumer("consumer", 60_000)
    words = ("requeue", "--state", "failed", "--all", "--yes", "--rate", "100/s")
    said = (
        "None have failed again so far, and 1 failed task is left. The last 2 failed tasks may still run.\n"
    )
    assert site.run(*words, "--limit", "2").stderr == said
    [row] = site.rows(*words)
    assert (row["waiting"], row["unknown"]) == (0, 1)


@pytest.mark.parametrize("more", [("--all",), ("--all", "--rate", "100/s"), ("--error", "KeyError")])
def test_a_requeue_says_that_nothing_is_kept_of_what_fails_again(site: Site, more: tuple[str, ...]) -> None:
    fail(site, "f1")
    words = ("requeue", "--state", "failed", *more)
    assert "fails again is lost" not in site.run(*words, "--limit", "1", "--yes").stderr
    fail(site, "f2")
    site.app.conf.broker_transport_options = {"keep_failed": None}
    said = "a task that fails again is lost, with its message."
    assert said not in site.run(*words, "--dry-run").stderr
    assert site.run(*words, input="n\n").stderr.count(said) == 1
    assert site.run(*words, "--yes").stderr.count(said) == 1
    assert said not in site.run("requeue", "--state", "dead", "--all", "--yes").stderr
    assert said not in site.run("remove", "--state", "failed", "--all", "--yes").stderr


def test_how_finished_ones_are_removed(site: Site) -> None:
    result = site.run("remove", "--state", "finished", "--all")
    assert (result.exit_code, "delete the key redisdelay:{QUEUE}:finished" in result.stderr) == (2, True)
