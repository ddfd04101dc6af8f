"""`celery delayed count`."""

from __future__ import annotations

import pytest

from tests.cli.site import QUEUE, Site, payload
from tests.failed import keep_failed
from tests.finished import OF_MESSAGES


@pytest.fixture
def full(site: Site) -> Site:
    for task in ("shop.close", "shop.close", "mail.send"):
        site.send(task)
        site.send(task, countdown=3600, queue="later")
    site.bury("{}", "because")
    return site


def test_all_and_some(full: Site) -> None:
    assert full.text("count") == "7\n"
    assert full.text("count", "-Q", QUEUE, "--state", "ready", "--task", "shop.*") == "2\n"
    assert full.text("count", "--state", "scheduled", "--before", "10m") == "0\n"
    assert full.rows("count", "--state", "dead") == [{"messages": 1}]


def test_by_kinds(full: Site) -> None:
    counts = {**dict.fromkeys(OF_MESSAGES, 0), "scheduled": 3, "ready": 3, "dead": 1}
    assert full.rows("count", "--by", "state") == [
        {"state": state, "messages": count} for state, count in counts.items()
    ]
    [header, *_] = full.text("count", "--by", "task", "--by", "queue").splitlines()
    assert header.split() == ["MESSAGES", "TASK", "QUEUE"]
    found = {
        (row["task"], row["queue"]): row["messages"]
        for row in full.rows("count", "--by", "task", "--by", "queue")
    }
    assert found == {
        ("shop.close", QUEUE): 2,
        ("shop.close", "later"): 2,
        ("mail.send", QUEUE): 1,
        ("mail.send", "later"): 1,
        (None, QUEUE): 1,
    }
    assert full.run("count", "--by", "task", "--task", "none").stderr == "No messages found.\n"
    assert full.rows("count", "--by", "reason", "--state", "dead") == [{"reason": "because", "messages": 1}]
    kinds = ("count", "--state", "dead", "--by", "task", "--by", "error")
    [group] = full.rows(*kinds)
    assert (group["task"], group["error"], group["messages"]) == ("-", "unreadable", 1)
    assert full.text(*kinds).split()[:5] == ["MESSAGES", "TASK", "ERROR", "FIRST", "LAST"]
    assert full.run(*kinds, "--task", "none").stderr == "No dead letters found.\n"


def test_a_time_needs_a_state(full: Site) -> None:
    result = full.run("count", "--before", "1h")
    assert result.exit_code == 2
    assert "Choose one with --state." in result.stderr


def test_what_only_failed_tasks_have_counts_those(full: Site) -> None:
    assert full.rows("count", "--by", "error") == []
    for id in "ab":
        keep_failed(full.store, QUEUE, id, payload(id), error="KeyError")
    assert full.rows("count", "--by", "error") == [{"error": "KeyError", "messages": 2}]
    assert full.rows("count", "--error", "KeyError", "--by", "tries") == [{"tries": 2, "messages": 2}]
    [group] = full.rows("count", "--by", "task", "--by", "error")
    assert (group["error"], group["messages"], "first" in group) == ("KeyError", 2, True)
    assert full.rows("count", "--by", "outcome") == []
    assert full.rows("count", "--by", "error", "--outcome", "failed") == []
    assert [row["id"] for row in full.rows("list", "--error", "KeyError", "--after", "1h")] == ["a", "b"]
