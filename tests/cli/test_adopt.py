"""`celery delayed adopt`. What it does is tested in tests/operations, with workers in tests/end_to_end."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime, timedelta, timezone

import pytest
from kombu.connection import Connection

from kombu_redisdelay.operations.adoption import IDLE, Adopted, Adoption
from tests.cli.site import QUEUE, Site, sort_by_key
from tools.harness.process import wait_until

NOTHING = "0 messages: 0 due later and 0 due now that redis:// workers held, 0 due later on ready lists"


def take(site: Site, tag: str, eta_in: float | None = None, exchange: str = "", **headers: str) -> None:
    """As a worker of redis:// does."""
    eta = None if eta_in is None else (datetime.now(timezone.utc) + timedelta(seconds=eta_in)).isoformat()
    message = {
        "body": "",
        "headers": {"task": "shop.close_order", "id": tag, "eta": eta, **headers},
        "properties": {"delivery_tag": tag},
    }
    site.redis.hset("unacked", tag, json.dumps([message, exchange, QUEUE]))


def test_there_is_nothing_to_do(site: Site) -> None:
    # Nothing is asked.
    assert site.text("adopt") == f"Adopted {NOTHING}.\n"
    assert site.text("adopt", "--dry-run") == f"Would adopt {NOTHING}.\n"
    assert site.text("adopt", "--reverse") == "Gave back 0 messages: 0 scheduled, 0 of lost workers.\n"


def test_it_says_how_many_asks_and_moves(site: Site) -> None:
    take(site, "later", 3600)
    take(site, "now")
    held = "1 due later and 1 due now that redis:// workers held"
    counts = f"2 messages: {held}, 0 due later on ready lists"
    assert site.text("adopt", "--dry-run") == f"Would adopt {counts}.\n"
    refused = site.run("adopt", input="n\n")
    assert (refused.exit_code, site.redis.hlen("unacked")) == (1, 2)
    assert f"Adopt {counts}?" in refused.stderr
    assert site.text("adopt", input="y\n") == f"Adopted {counts}.\n"
    [row] = [row for row in site.rows("stats") if row["queue"] == QUEUE]
    assert (row["scheduled"], row["ready"]) == (1, 1)


def test_it_names_the_lists_where_no_worker_looks(site: Site) -> None:
    message = {"body": "", "headers": {"id": "1"}, "properties": {"priority": 5, "delivery_tag": "1"}}
    site.redis.lpush(f"{QUEUE}:4", json.dumps(message))
    where = f"0 due later on ready lists, 1 where no worker looks ('{QUEUE}:4')"
    assert site.text("adopt", "--dry-run").endswith(f"{where}.\n")
    assert site.text("adopt", "--yes").endswith(f"{where}.\n")
    assert site.redis.llen(QUEUE) == 1


def test_it_names_the_broker(site: Site) -> None:
    """In another database there is nothing to do, either."""
    assert site.run("adopt", "--dry-run").stderr == f"The broker is {site.access.address}\n"


@pytest.mark.parametrize(
    ("error", "said"), [(KeyboardInterrupt(), "\nAborted!"), (ConnectionError("gone"), "Error: Redis: gone.")]
)
def test_what_ends_early_says_how_far_it_came(
    site: Site, monkeypatch: pytest.MonkeyPatch, error: BaseException, said: str
) -> None:
    take(site, "a")
    adopt = Adoption.adopt

    def interrupted(adoption: Adoption) -> Iterator[Adopted]:
        yield from adopt(adoption)
        raise error

    monkeypatch.setattr(Adoption, "adopt", interrupted)
    result = site.run("adopt", "--yes")
    assert result.exit_code == 1
    stopped = "Stopped: 1 are done, or a few more. Run it again for the rest.\n"
    assert result.stderr.endswith(f"{stopped}{said}\n")


def test_what_is_sorted_in_by_key_goes_back(site: Site) -> None:
    site.text("fair", "-Q", QUEUE)
    sort_by_key(site, *"ab")
    site.text("pause", "-Q", QUEUE, "--key", "b")
    said = "2 messages: 0 scheduled, 0 of lost workers, 2 of fair queues.\n"
    assert site.text("adopt", "--reverse", "--dry-run") == f"Would give back {said}"
    assert site.redis.llen(QUEUE) == 0
    assert site.text("adopt", "--reverse", "--yes") == f"Gave back {said}"
    assert site.redis.llen(QUEUE) == 2
    assert "fair" not in site.text("stats")


def test_what_is_adopted_keeps_its_key(site: Site) -> None:
    site.text("fair", "-Q", QUEUE, "--force")
    for tag, eta_in in (("later", 3600), ("now", None)):
        take(site, tag, eta_in, **{"x-key": "tenant"})
    site.text("adopt", "--yes")
    sort_by_key(site, "other")
    found = {row["key"]: (row["ready"], row["scheduled"]) for row in site.rows("keys", "-Q", QUEUE)}
    assert found == {"tenant": (1, 1), "other": (1, 0)}
    assert site.redis.hget(site.store.keys(QUEUE).fair, "n:0") == "2"


def test_as_json(site: Site) -> None:
    take(site, "later", 3600)
    counts = {"scheduled": 1, "to_run": 0, "ready_early": 0, "stranded": 0, "copies": 0, "stay": 0}
    rest = {**counts, "why": {}, "passed_over": []}
    assert site.rows("adopt", "--dry-run") == [{"would_adopt": 1, **rest}]
    assert site.rows("adopt", "--yes") == [{"adopted": 1, **rest}]
    rest = {"scheduled": 1, "unacked": 0, "sorted_in": 0, "at_once": 0, "unknown": 0, "dead": 0}
    assert site.rows("adopt", "--reverse", "--dry-run") == [{"would_give_back": 1, **rest}]
    assert site.rows("adopt", "--reverse", "--yes") == [{"given_back": 1, **rest}]
    assert site.redis.llen(QUEUE) == 1


def test_what_stays_is_named_and_the_exit_status_says_so(site: Site) -> None:
    for number in range(12):
        site.redis.hset("unacked", f"broken {number:02}", "[]")
    for words in (("--yes",), ("--dry-run",)):
        result = site.run("adopt", *words)
        assert result.exit_code == 1
        assert "12 messages cannot be moved, and stay:\n" in result.stderr
        assert result.stderr.count(": not a message that redis:// has taken: ") == 10
        assert result.stderr.endswith("\n  and 2 more\n")
    [row] = site.rows("adopt", "--yes", status=1)
    assert (row["adopted"], row["stay"], len(row["why"])) == (0, 12, 10)


def test_it_refuses_while_stock_workers_are_connected(site: Site) -> None:
    take(site, "later", 3600)
    with Connection(site.app.conf.broker_url.replace("redisdelay", "redis")) as connection:
        channel = connection.channel()
        channel.basic_consume("other", False, lambda message: None, "tag")
        with suppress(TimeoutError):
            connection.drain_events(timeout=0.1)
        for words in (("--yes",), ("--dry-run",)):
            result = site.run("adopt", *words)
            assert result.exit_code == 1
            assert "onsumers of redis:// are connected: 127.0.0.1:" in result.stderr
            assert "use --force: what they hold runs twice." in result.stderr
        assert site.redis.hlen("unacked") == 1
        assert site.text("adopt", "--force", "--yes").startswith("Adopted 1 message: ")


def test_an_idle_client_is_named_and_does_not_hold_it_up(site: Site) -> None:
    with site.redis.client() as flower:
        flower.client_setname("flower")
        flower.execute_command("BRPOP", "answers", 0.01)
        address = flower.client_info()["addr"]
        flower.execute_command("BRPOP", "answers", 0.01)
        # It was there a moment ago.
        refused = site.run("adopt", "--dry-run").stderr
        assert re.search(
            rf"connected: {address} \(name flower, age [\d.]+m?s, idle [\d.]+m?s, not blocked\)\. "
            r"Stop the workers among them, and say by --ignore ADDRESS of each other one that it is no "
            r"worker\. Or use --force: ",
            refused,
        )
        wait_until(lambda: flower_is_idle(site), 30, "the client to be idle")
        for words in (("--dry-run",), ("--yes",)):
            [row] = site.rows("adopt", *words)
            assert row["passed_over"] == [address]
            said = site.run("adopt", *words).stderr
            assert "leaves 'unacked' alone" in said
            assert address in said
        # A worker that is full looks the same.
        take(site, "later", 3600)
        assert f"are connected: {address} (name flower, " in site.run("adopt", "--yes").stderr
        done = site.run("adopt", "--yes", "--ignore", "127.0.0.1:1", "--ignore", address)
        assert done.stdout.startswith("Adopted 1 message: 1 due later")
        assert "alone" not in done.stderr
        assert "without --reverse" in site.run("adopt", "--reverse", "--ignore", address).stderr


def flower_is_idle(site: Site) -> bool:
    [client] = [each for each in site.redis.client_list() if each["name"] == "flower"]
    return int(client["idle"]) >= IDLE


def test_the_way_back_refuses_while_workers_of_ours_are_there(site: Site) -> None:
    site.send(countdown=60)
    site.add_consumer("alive", 60_000)
    result = site.run("adopt", "--reverse", "--yes")
    assert result.exit_code == 1
    assert "orkers of redisdelay:// consume from these queues: alive. Stop them first" in result.stderr
    assert site.text("adopt", "--reverse", "--yes", "--force").startswith("Gave back 1 message: 1 scheduled")


def test_the_way_back_warns_of_tasks_that_nobody_knew(site: Site) -> None:
    site.leave_unknown("shop.new", 60)
    warning = (
        "1 message waits for a worker that knows its task, and redis:// discards what a worker does not "
        "know. Cancel what must not be lost so, and publish it again later.\n"
    )
    for words in (("--dry-run",), ("--yes",)):
        assert warning in site.run("adopt", "--reverse", *words).stderr
    # It is due: whoever knows the task runs it at once.
    [payload] = site.redis.lrange(QUEUE, 0, -1)
    assert not json.loads(payload[payload.index("{") :])["headers"].get("eta")


def test_the_way_back_says_what_stays_and_what_comes_early(site: Site) -> None:
    site.bury("{}", "why")
    with site.app.connection_for_write() as connection:
        connection.Producer().publish("", routing_key=QUEUE, headers={"x-delay": 60_000})
    for words in (("--dry-run",), ("--yes",)):
        result = site.run("adopt", "--reverse", *words)
        assert result.exit_code == 0
        assert "1 message without an eta, which redis:// delivers at once.\n" in result.stderr
        assert "1 dead letter left: see `celery delayed list --state dead`.\n" in result.stderr
