"""The commands on scheduled messages: list, show, cancel, reschedule, deliver-now, purge."""

from __future__ import annotations

from datetime import datetime, timezone

import pytest

from tests.cli.site import QUEUE, Site


def _scheduled(site: Site) -> list[str]:
    return list(site.redis.zrange(site.store.keys(QUEUE).schedule, 0, -1))


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
    assert [row["id"] for row in site.rows("list", "--task", "shop.remind", "--before", "10m")] == [soon]
    assert len(site.rows("list", "--limit", "2")) == 2


def test_list_shows_what_will_be_called(site: Site) -> None:
    task_id = site.send("shop.remind", args=(1, "x"), kwargs={"loud": True}, countdown=3600)
    header, row = site.text("list").splitlines()
    assert header.split() == ["DUE", "ID", "QUEUE", "TASK"]
    assert task_id in row
    assert row.endswith("shop.remind(1, 'x', **{'loud': True})")


@pytest.mark.parametrize(
    ("words", "told"),
    [(("list",), "No scheduled messages found.\n"), (("dead", "list"), "No dead letters found.\n")],
)
def test_a_list_of_nothing_says_so_to_a_person_only(site: Site, words: tuple[str, ...], told: str) -> None:
    result = site.run(*words)
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", told)
    result = site.run(*words, "--json")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", "")


def test_show(site: Site) -> None:
    task_id = site.send("shop.remind", args=(1,), countdown=3600, priority=3)
    [row] = site.rows("show", task_id)
    assert (row["id"], row["queue"], row["task"], row["priority"]) == (task_id, QUEUE, "shop.remind", 3)
    assert row["headers"]["task"] == "shop.remind"
    fields = dict(line.split(maxsplit=1) for line in site.text("show", task_id).splitlines())
    assert (fields["id"], fields["task"], fields["args"]) == (task_id, "shop.remind", "(1,)")


def test_show_of_an_unknown_id_fails(site: Site) -> None:
    result = site.run("show", "nothing")
    assert (result.exit_code, result.stderr) == (1, "Error: no scheduled message has the id nothing\n")


def test_cancel_says_what_became_of_each_id(site: Site) -> None:
    ids = [site.send(countdown=3600) for _ in range(3)]
    assert site.rows("cancel", *ids[:2]) == [{"id": task_id, "cancelled": True} for task_id in ids[:2]]
    assert _scheduled(site) == [ids[2]]
    result = site.run("cancel", ids[0], ids[2])
    assert result.exit_code == 1
    assert result.stdout == f"{ids[2]} cancelled\n"
    assert result.stderr == f"{ids[0]} not found\n"
    assert _scheduled(site) == []


@pytest.mark.parametrize(
    ("option", "value", "seconds"),
    [("--countdown", "7200", 7200), ("--eta", "2099-01-01T00:00:00Z", None), ("--eta", "2099-01-01", None)],
)
def test_reschedule(site: Site, option: str, value: str, seconds: int | None) -> None:
    task_id = site.send(countdown=3600)
    assert site.rows("reschedule", task_id, option, value) == [{"id": task_id, "rescheduled": True}]
    due_ms = site.redis.zscore(site.store.keys(QUEUE).schedule, task_id)
    if seconds is None:
        assert due_ms == datetime(2099, 1, 1, tzinfo=timezone.utc).timestamp() * 1000
    else:
        assert 0 <= site.store.now_ms() + seconds * 1000 - due_ms < 60_000


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
    assert site.rows("deliver-now", task_id) == [{"id": task_id, "delivered": True}]
    assert _scheduled(site) == []
    assert task_id in site.redis.lindex(QUEUE, 0)
    assert site.rows("deliver-now", task_id, status=1) == [{"id": task_id, "delivered": False}]


def test_purge_asks_first(site: Site) -> None:
    site.send(countdown=3600)
    result = site.run("purge", input="n\n")
    assert result.exit_code == 1
    assert "Remove 1 scheduled message(s) from all queues?" in result.stderr
    assert len(_scheduled(site)) == 1
    assert site.text("purge", input="y\n").splitlines()[-1] == "Removed 1 message(s)."
    assert _scheduled(site) == []


def test_purge_of_a_part(site: Site) -> None:
    soon = site.send("shop.remind", countdown=60)
    later = site.send("shop.remind", countdown=7200)
    other = site.send(countdown=60)
    ready = site.send()
    assert site.rows("purge", "--yes", "--task", "shop.remind", "--before", "1h") == [{"removed": 1}]
    assert set(_scheduled(site)) == {later, other}
    assert site.rows("purge", "--yes", "-Q", QUEUE) == [{"removed": 2}]
    assert ready in site.redis.lindex(QUEUE, 0)
    assert soon not in _scheduled(site)


@pytest.mark.parametrize("value", ["tomorrow", "10x", "-5m", "1e400d", "99999999999d"])
def test_a_time_that_is_none_is_a_usage_error(site: Site, value: str) -> None:
    result = site.run("list", f"--before={value}")
    assert result.exit_code == 2
    assert repr(value) in result.stderr.replace("\n", " ")
