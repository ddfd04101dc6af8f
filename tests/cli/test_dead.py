"""`celery delayed dead`."""

from __future__ import annotations

import json

from tests.cli.site import QUEUE, Site


def _payload(task_id: str, task: str = "shop.close_order") -> str:
    headers = {"id": task_id, "task": task, "argsrepr": "(1,)", "kwargsrepr": "{}"}
    return json.dumps({"body": "", "headers": headers, "properties": {"delivery_tag": task_id}})


def test_list(site: Site) -> None:
    site.bury(_payload("a"), "delivery limit of 9 reached")
    site.bury(_payload("b", "shop.remind"), "rejected", queue="other")
    assert [(row["id"], row["queue"], row["reason"]) for row in site.rows("dead", "list")] == [
        ("a", QUEUE, "delivery limit of 9 reached"),
        ("b", "other", "rejected"),
    ]
    assert [row["id"] for row in site.rows("dead", "list", "--task", "shop.remind")] == ["b"]
    assert [row["id"] for row in site.rows("dead", "list", "-Q", QUEUE)] == ["a"]
    header, line, _ = site.text("dead", "list").splitlines()
    assert header.split() == ["DIED", "ID", "QUEUE", "TIMES", "REASON", "TASK"]
    assert line.endswith("delivery limit of 9 reached  shop.close_order(1)")


def test_show_shows_bytes_that_are_no_message(site: Site) -> None:
    site.store.remember(QUEUE)
    site.redis.lpush(site.store.keys(QUEUE).dead, b"1700000000000 3 0 not JSON\n\xff\x00garbage")
    [row] = site.rows("dead", "list")
    shown = site.text("dead", "show", row["id"])
    assert "\\xff\\x00garbage" in shown
    assert "not JSON" in shown
    [found] = site.rows("dead", "show", row["id"])
    assert found.pop("payload") == "\\xff\x00garbage"
    assert found == row


def test_show_of_an_unknown_id_fails(site: Site) -> None:
    result = site.run("dead", "show", "nothing")
    assert (result.exit_code, result.stderr) == (1, "Error: No dead letter has the id nothing.\n")


def test_requeue_by_id(site: Site) -> None:
    site.bury(_payload("a"), "rejected")
    site.bury(_payload("b"), "rejected")
    assert site.rows("dead", "requeue", "a", "c", status=1) == [
        {"id": "a", "requeued": True, "messages": 1},
        {"id": "c", "requeued": False, "messages": 0},
    ]
    assert json.loads(site.redis.lindex(QUEUE, 0))["headers"]["id"] == "a"
    assert site.redis.llen(site.store.keys(QUEUE).dead) == 1


def test_requeue_of_many(site: Site) -> None:
    for task_id, task in (("a", "shop.remind"), ("b", "shop.close_order"), ("c", "shop.remind")):
        site.bury(_payload(task_id, task), "rejected")
    assert site.rows("dead", "requeue", "--all", "--yes", "--task", "shop.rem*") == [{"requeued": 2}]
    assert site.text("dead", "requeue", "--yes", "-Q", QUEUE) == "Requeued 1 dead letter.\n"
    assert site.redis.llen(QUEUE) == 3


def test_requeue_of_nothing_in_particular_is_a_usage_error(site: Site) -> None:
    for words in (
        (),
        ("a", "--all"),
        ("a", "--task", "shop.remind"),
        ("a", "-Q", QUEUE),
        ("a", "--before", "0"),
    ):
        assert site.run("dead", "requeue", *words).exit_code == 2


def test_purge_asks_first(site: Site) -> None:
    site.bury(_payload("a"), "rejected")
    site.bury(_payload("b", "shop.remind"), "rejected")
    assert site.run("dead", "purge", "--all", input="n\n").exit_code == 1
    assert site.redis.llen(site.store.keys(QUEUE).dead) == 2
    assert site.rows("dead", "purge", "--yes", "--task", "shop.remind") == [{"removed": 1}]
    assert site.text("dead", "purge", "--all", input="y\n").splitlines()[-1] == "Removed 1 dead letter."
    assert site.redis.exists(site.store.keys(QUEUE).dead) == 0
