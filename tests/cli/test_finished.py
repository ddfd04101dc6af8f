"""Finished tasks on the command line."""

from __future__ import annotations

from tests.cli.site import QUEUE, Site
from tests.finished import keep_finished


def test_the_list(site: Site) -> None:
    keep_finished(site.store, QUEUE, "a")
    keep_finished(site.store, QUEUE, "b", ran=90.0, outcome="failed", error="KeyError", tries=3)
    header, one, other = site.text("list", "--state", "finished").splitlines()
    assert header.split() == [
        *("SINCE", "OUTCOME", "WAITED", "RAN", "ID", "QUEUE", "TRIES", "ERROR", "WORKER", "TASK")
    ]
    assert one.split()[1:] == ["succeeded", "250ms", "1.5s", "a", QUEUE, "1", "celery@w", "shop.close"]
    assert other.split()[1:5] == ["failed", "250ms", "1m30s", "b"]
    for options, found in (
        (("--slower", "10s"), ["b"]),
        (("--outcome", "succ*", "--after", "1h"), ["a"]),
        (("--task", "shop.*", "--worker", "*@w"), ["a", "b"]),
    ):
        assert [row["id"] for row in site.rows("list", "--state", "finished", *options)] == found
    assert site.rows("list") == []
    result = site.run("list", "--state", "finished", "--slower", "soon")
    assert (result.exit_code, "not a length of time" in result.stderr) == (2, True)


def test_one_and_how_many(site: Site) -> None:
    keep_finished(site.store, QUEUE, "a", "b", task="shop\x1b[31m", worker="w\x07")
    shown = site.text("show", "a")
    fields = dict(line.split(maxsplit=1) for line in shown.splitlines() if len(line.split()) > 1)
    assert (fields["state"], fields["outcome"], fields["ran"]) == ("finished", "succeeded", "1.5s")
    assert "\x1b" not in shown + site.text("list", "--state", "finished")
    [row] = site.rows("show", "a")
    assert (row["waited"], row["ran"], row["outcome"], row["worker"]) == (0.25, 1.5, "succeeded", "w\x07")
    [row] = site.rows("count", "--state", "finished", "--by", "outcome")
    assert row == {"outcome": "succeeded", "messages": 2}
    header, line = site.text("stats").splitlines()
    assert dict(zip(header.split(), line.split(), strict=False))["FINISHED"] == "2"
    [row] = site.rows("stats")
    assert row["finished"] == 2


def test_filters_that_only_finished_tasks_match(site: Site) -> None:
    keep_finished(site.store, QUEUE, "a")
    keep_finished(site.store, QUEUE, "b", ran=90.0, outcome="failed", error="KeyError")
    site.send(countdown=3600)
    for words, found in ((("--outcome", "failed"), ["b"]), (("--slower", "1s", "--after", "1h"), ["a", "b"])):
        assert [row["id"] for row in site.rows("list", *words)] == found
        assert site.text("count", *words) == f"{len(found)}\n"
    assert site.run("list", "--slower", "1h").stderr == "No finished tasks found.\n"
    for words, told in (
        (("--state", "failed", "--slower", "1s"), "--slower needs --state finished."),
        (("--state", "scheduled", "--error", "KeyError"), "--error needs --state failed or finished."),
        (("--outcome", "nosuch"), "utcome must be one of succeeded, failed, retried, "),
    ):
        result = site.run("list", *words)
        assert (result.exit_code, told in result.stderr) == (2, True)


def test_a_finished_task_is_no_message(site: Site) -> None:
    id = site.send(countdown=3600)
    keep_finished(site.store, QUEUE, id, id)
    assert site.text("show", id).startswith(f"1 message and 2 finished tasks have the id {id}.\n")
