"""The commands that change messages: cancel, reschedule, deliver-now, requeue, remove, revoke."""

from __future__ import annotations

import os
import re
import shlex
import socket
from datetime import datetime, timedelta, timezone
from itertools import pairwise
from pathlib import Path

import pytest
from celery import Celery

from kombu_redisdelay.words import ACKED_EARLY
from tests.cli.site import QUEUE, Site, bury_long_ago, count_of, states
from tests.finished import OF_MESSAGES
from tools.harness.redis_server import RedisServer


def _scheduled(site: Site) -> list[str]:
    return list(site.redis.zrange(site.store.keys(QUEUE).schedule, 0, -1))


def test_the_examples_say_which_messages(site: Site) -> None:
    docs = Path(__file__).parents[2] / "docs"
    shown = {line.strip() for page in docs.glob("*.rst") for line in page.read_text().splitlines()}
    commands = [shlex.split(line, comments=True)[4:] for line in shown if _CHANGES.match(line)]
    assert len(commands) > 10
    app = Celery(
        "shop", broker=site.access.app.conf.broker_url, backend="cache+memory://", set_as_current=False
    )
    for words in commands:
        for option, value in pairwise(words):
            if option == "-Q":
                site.store.remember(value)
        result = site.run(*words, "--dry-run", app=app)
        assert "Usage:" not in result.stderr, words


#: An example of a command that changes messages.
_CHANGES = re.compile(r"celery -A shop delayed (cancel|reschedule|deliver-now|requeue|remove) [^\[]+$")


def test_cancel_says_what_became_of_each_id(site: Site) -> None:
    ids = [site.send(countdown=3600) for _ in range(3)]
    assert site.rows("cancel", *ids[:2]) == [
        {"verb": "cancel", "dry_run": False, "id": task_id, "messages": 1} for task_id in ids[:2]
    ]
    assert _scheduled(site) == [ids[2]]
    result = site.run("cancel", ids[0], ids[2])
    assert result.exit_code == 1
    assert result.stdout == f"{ids[2]} cancelled\n"
    assert result.stderr == f"{ids[0]} not found\n"
    assert _scheduled(site) == []


def test_cancel_of_what_is_ready_but_not_of_what_a_worker_has(
    site: Site, in_each_state: dict[str, str]
) -> None:
    result = site.run("cancel", *in_each_state.values())
    assert result.exit_code == 1
    assert result.stdout == "".join(f"{in_each_state[state]} cancelled\n" for state in ("scheduled", "ready"))
    held, dead = in_each_state["unacked"], in_each_state["dead"]
    worker = f"{socket.gethostname()}:{os.getpid()}"
    told = result.stderr.splitlines()
    assert told[:3] == [
        f"{held} is unacked, at {worker}",
        f"{in_each_state['failed']} is a failed task in the queue 'celery'",
        f"{dead} is a dead letter in the queue 'celery'",
    ]
    assert len(told) == len(OF_MESSAGES) - 2
    rows = site.rows("cancel", held, dead, "nothing", status=1)
    assert [row.get("state") for row in rows] == ["unacked", "dead", None]
    result = site.run("cancel", held, "nothing", "--dry-run")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == f"{held} is unacked, at {worker}\nnothing not found\n"
    assert {row["state"] for row in site.rows("list")} == set(OF_MESSAGES) - {"scheduled", "ready"}


@pytest.mark.parametrize(
    ("option", "value", "seconds"),
    [("--countdown", "7200", 7200), ("--eta", "2099-01-01T00:00:00Z", None), ("--eta", "2099-01-01", None)],
)
def test_reschedule(site: Site, option: str, value: str, seconds: int | None) -> None:
    task_id = site.send(countdown=3600)
    [row] = site.rows("reschedule", task_id, option, value)
    told = datetime.fromisoformat(row.pop("due"))
    assert row == {"verb": "reschedule", "dry_run": False, "id": task_id, "messages": 1}
    due_ms = site.redis.zscore(site.store.keys(QUEUE).schedule, task_id)
    if seconds is None:
        assert due_ms == datetime(2099, 1, 1, tzinfo=timezone.utc).timestamp() * 1000
    else:
        assert 0 <= site.store.now_ms() + seconds * 1000 - due_ms < 60_000
    assert told.timestamp() * 1000 == pytest.approx(due_ms, abs=1)


@pytest.mark.parametrize(
    "options",
    [
        (),
        ("--countdown", "1", "--eta", "2099-01-01"),
        ("--countdown", "-1"),
        ("--eta", "2001-01-01"),
        ("--eta", "soon"),
    ],
)
def test_a_time_that_makes_no_sense_is_a_usage_error(site: Site, options: tuple[str, ...]) -> None:
    task_id = site.send(countdown=3600)
    result = site.run("reschedule", task_id, *options)
    assert result.exit_code == 2
    assert result.stderr.splitlines()[-1].startswith("Error: ")
    assert _scheduled(site) == [task_id]


def test_deliver_now(site: Site) -> None:
    task_id = site.send(countdown=3600)
    [row] = site.rows("deliver-now", task_id)
    assert (row["verb"], row["id"], row["messages"]) == ("deliver_now", task_id, 1)
    assert _scheduled(site) == []
    assert task_id in site.redis.lindex(QUEUE, 0)
    missing = {"dry_run": False, "id": task_id, "messages": 0, "state": "ready"}
    assert site.rows("deliver-now", task_id, status=1) == [{**missing, "verb": "deliver_now"}]
    words = ("reschedule", task_id, "--countdown", "60")
    assert site.rows(*words, status=1) == [{**missing, "verb": "reschedule"}]
    assert site.run(*words).stderr == f"{task_id} is ready in the queue 'celery'\n"


def test_what_changes_many_asks_first(site: Site) -> None:
    site.send(countdown=3600)
    result = site.run("cancel", "--all", "--state", "scheduled", input="n\n")
    assert result.exit_code == 1
    assert "Cancel 1 scheduled message of all queues?" in result.stderr
    assert len(_scheduled(site)) == 1
    assert site.text("cancel", "--all", input="y\n").splitlines()[-1] == "Cancelled 1 message."
    assert _scheduled(site) == []


def test_cancel_of_a_part(site: Site) -> None:
    soon = site.send("shop.remind", countdown=60)
    later = site.send("shop.remind", countdown=7200)
    other = site.send(countdown=60)
    ready = site.send()
    words = ("cancel", "--yes", "--state", "scheduled")
    assert site.rows(*words, "--task", "shop.remind", "--before", "1h")[0]["messages"] == 1
    assert set(_scheduled(site)) == {later, other}
    assert site.rows(*words, "-Q", QUEUE)[0]["messages"] == 2
    assert ready in site.redis.lindex(QUEUE, 0)
    assert soon not in _scheduled(site)


class TestSeveralUnderOneId:
    def test_cancel(self, site: Site) -> None:
        for queue in ("a", "b"):
            site.send(task_id="twice", queue=queue, countdown=60)
        site.send(task_id="once")
        rows = site.rows("cancel", "twice", "once", "--dry-run")
        assert [(row["id"], row["messages"]) for row in rows] == [("twice", 2), ("once", 1)]
        assert site.text("cancel", "twice", "once") == "twice cancelled (2 messages)\nonce cancelled\n"

    def test_reschedule_each(self, site: Site) -> None:
        for id, countdown in (("a", 3600), ("b", 7200)):
            site.send(task_id=id, countdown=countdown)
        assert site.text("reschedule", "--all", "--yes", "--by", "-30m") == "Rescheduled 2 messages.\n"
        assert site.text("reschedule", "a", "--by", "+1h") == "a rescheduled\n"
        [a, b] = site.rows("list")
        assert (a["id"], b["id"]) == ("a", "b")
        assert (datetime.fromisoformat(b["due"]) - datetime.fromisoformat(a["due"])).seconds in (0, 1)
        site.text("reschedule", "--all", "--yes", "--countdown", "1h", "--over", "2h")
        [a, b] = site.rows("list")
        assert datetime.fromisoformat(b["due"]) - datetime.fromisoformat(a["due"]) == timedelta(hours=1)

    @pytest.mark.parametrize(
        ("words", "said"),
        [
            (("--by", "soon"), "'soon' is not a length of time"),
            (("--by", "1h", "--over", "1h"), "--by goes without --countdown, --eta and --over"),
            (("--over", "0s"), "over must be longer than 0"),
            ((), "give one of --countdown, --eta, --over and --by"),
        ],
    )
    def test_times_that_make_no_sense(self, site: Site, words: tuple[str, ...], said: str) -> None:
        result = site.run("reschedule", "--all", "--yes", *words)
        assert (result.exit_code, result.stdout) == (2, "")
        assert said.lower() in result.stderr.lower()

    def test_reschedule_and_deliver_now(self, site: Site) -> None:
        for _ in range(2):
            site.send(task_id="twice", countdown=60)
        told = site.text("reschedule", "twice", "--countdown", "1h")
        assert re.fullmatch(
            r"twice rescheduled \(2 messages\), due \d{4}-\d\d-\d\d \d\d:\d\d:\d\d\+00:00 \(in 1h\)\n", told
        )
        assert site.text("deliver-now", "twice") == "twice delivered (2 messages)\n"

    def test_dead_ones(self, site: Site) -> None:
        for _ in range(2):
            bury_long_ago(site, "twice", "t", 1, QUEUE)
        assert len(site.rows("show", "twice")) == 2
        assert site.text("requeue", "twice") == "twice requeued (2 messages)\n"


class TestCancelByState:
    def test_ready_ones(self, full: Site) -> None:
        full.send("mail.send", queue="a", task_id="ready")
        assert count_of(full.rows("cancel", "-Q", "a", "--dry-run")) == 3
        assert count_of(full.rows("cancel", "--task", "mail.*", "--dry-run")) == 4
        ready = ("cancel", "--state", "ready", "--task", "mail.*")
        assert count_of(full.rows(*ready, "--before", "1h", "--dry-run")) == 0
        assert (
            "Cancel 1 ready message of all queues, of the task mail.*?"
            in full.run(*ready, input="n\n").stderr
        )
        assert count_of(full.rows(*ready, "--after", "1h", "--yes")) == 1
        assert (
            "Cancel 2 scheduled or ready messages of the queue 'a'?" in full.run("cancel", "-Q", "a").stderr
        )
        assert count_of(full.rows("cancel", "--all", "--yes")) == 6
        assert {row["state"] for row in full.rows("list")} == {"dead"}

    def test_a_group(self, site: Site) -> None:
        ids = [site.send(group_id="g", countdown=60), site.send(group_id="g")]
        other = site.send(group_id="other")
        assert [row["id"] for row in site.rows("list", "--related", "g")] == ids
        assert count_of(site.rows("cancel", "--related", "g", "--dry-run")) == 2
        assert site.run("cancel", "--related", "g", input="n\n").exit_code == 1
        assert site.text("cancel", "--related", "g", "--yes") == "Cancelled 2 messages.\n"
        assert site.rows("show", other)[0]["state"] == "ready"
        assert site.text("cancel", "--related", "g") == "No message matches.\n"

    def test_mark_revoked(self, full: Site, server: RedisServer) -> None:
        app = Celery("shop", broker=server.url(), backend="cache+memory://", set_as_current=False)
        words = ("cancel", "-Q", "a", "--mark-revoked", "--yes")
        said = "Cancelled 2 messages, which are REVOKED in the result backend.\n"
        assert full.run(*words, app=app).stdout == said
        assert app.AsyncResult("a mail.send").state == "REVOKED"
        app.close()

    @pytest.mark.parametrize(
        "words",
        [
            ("--before", "1h"),
            ("--after", "1h", "-Q", "a"),
            ("--state", "ready"),
            ("id", "--related", "g"),
            ("--all", "--state", "dead"),
        ],
    )
    def test_a_choice_that_makes_no_sense_is_a_usage_error(self, full: Site, words: tuple[str, ...]) -> None:
        before = states(full)
        assert full.run("cancel", *words, "--yes").exit_code == 2
        assert states(full) == before


def test_a_backend_that_cannot_be_told(site: Site, server: RedisServer) -> None:
    # Nothing listens there.
    app = Celery("shop", broker=server.url(), backend="redis://127.0.0.1:1/0", set_as_current=False)
    ids = [site.send(countdown=60), site.send()]
    result = site.run("cancel", *ids, "--mark-revoked", app=app)
    assert result.exit_code == 1
    assert result.stdout == "".join(f"{id} cancelled\n" for id in ids)
    *unmarked, line = result.stderr.splitlines()
    assert unmarked == [f"{id} not marked" for id in ids]
    assert line.startswith("Error: Cancelled, but not marked as revoked in the result backend: ")
    assert site.rows("list") == []
    app.close()


class TestRevoke:
    @pytest.fixture
    def taken(self, site: Site) -> Site:
        site.send(task_id="a")
        site.send(task_id="b")
        site.add_consumer("w", 60_000)
        payload = site.redis.rpop(QUEUE)
        site.redis.hset(site.store.keys(QUEUE).unacked("w"), "1", f"0:{payload}")
        return site

    def test_is_about_what_workers_have(self, taken: Site) -> None:
        assert taken.text("revoke", "--all", "--dry-run") == "Would revoke 1 message.\n"
        assert taken.text("revoke", "a", "--yes") == "a revoked\n"
        result = taken.run("revoke", "b")
        assert (result.exit_code, result.stderr) == (1, "b is ready in the queue 'celery'\n")
        result = taken.run("revoke", "c")
        assert (result.exit_code, result.stderr) == (1, f"c not found\n{ACKED_EARLY}\n")
        assert taken.run("revoke", "--worker", "nobody", "--yes").stderr == f"{ACKED_EARLY}\n"
        assert "Revoke 1 unacked message of all queues?" in taken.run("revoke", "--all", input="n\n").stderr

    def test_terminate_asks_once_more(self, taken: Site) -> None:
        words = ("revoke", "--all", "--terminate")
        result = taken.run(*words, input="y\nn\n")
        assert (result.exit_code, result.stdout) == (1, "")
        assert "Some of them may run. End these in the middle of what they do?" in result.stderr
        assert taken.run("revoke", "a", "--terminate", input="n\n").exit_code == 1
        result = taken.run(*words, input="y\ny\n")
        assert result.stdout == "Revoked 1 message.\n"
        assert "Tasks that run go on" not in result.stderr
        assert taken.text(*words, "--yes") == "Revoked 1 message.\n"
