"""`celery delayed doctor`: fair queues."""

from __future__ import annotations

from itertools import count, islice

import pytest

from kombu_redisdelay.operations.access import Access
from kombu_redisdelay.operations.doctor import limits
from tests.cli.site import QUEUE, Site, sort_by_key
from tests.transport.kit import Inbox, drain
from tools.harness.redis_server import RedisServer

Q = ("-Q", QUEUE)


@pytest.fixture
def server(good_server: RedisServer) -> RedisServer:
    return good_server


def test_a_fair_queue(site: Site) -> None:
    site.app.conf.worker_prefetch_multiplier = 1
    site.text("fair", *Q)
    sort_by_key(site, "a", "b", "b")
    site.add_consumer("alive", 60_000)
    found = [row["found"] for row in site.rows("doctor", *Q) if row["check"] == "queue celery"]
    assert found == ["fair: LLEN does not count its messages; the exporter and `stats` do"]


def test_keys_that_are_paused(site: Site) -> None:
    site.text("fair", *Q)
    site.text("pause", *Q, "--key", " b")
    assert site.findings("warning")["queue celery"].startswith('1 key paused: " b" (since 20')


def test_keys_at_their_limits(site: Site) -> None:
    site.text("fair", *Q)
    site.text("limit", *Q, "--per-key", "--concurrency", "1")
    for _ in range(3):
        site.send(headers={"x-key": "a"})
    with site.app.connection_for_read() as connection:
        inbox = Inbox(connection.channel(), QUEUE)
        drain(connection, lambda: len(inbox) == 1 and site.redis.hlen(site.store.keys(QUEUE).limited))
        assert site.findings("ok")["queue celery"] == "1 key at its limit: a (2 ready)"


def test_all_partitions_are_looked_at(site: Site) -> None:
    site.app.conf.broker_transport_options = {"partitions": {QUEUE: 3}}
    site.app.conf.task_acks_late = True
    last = f"{QUEUE}#2"
    site.text("fair", *Q, "--force")
    site.text("limit", *Q, "--per-key", "--concurrency", "1")
    site.text("pause", *Q, "--key", "b")
    with Access(site.app) as access:
        ids = (f"id {number}" for number in count())
        of_last = [*islice((id for id in ids if access.store.partitions.pick(QUEUE, id) == last), 4)]
    for id in of_last:
        site.send(task_id=id, headers={"x-key": "a"})
    with site.app.connection_for_read() as connection:
        inbox = Inbox(connection.channel(), QUEUE)
        drain(connection, lambda: len(inbox) == 1 and site.redis.hlen(site.store.keys(last).limited))
        assert site.findings("ok")["queue celery"] == "1 key at its limit: a (3 ready)"
        # It is paused in each of them.
        assert site.findings("warning")["queue celery"].startswith("1 key paused: b (since 20")
        site.redis.delete(site.store.keys(last).key_list(0, "a"))
        assert site.findings("wrong")["queue celery"].endswith("where they are counted: 0 of 3")


def test_keys_that_are_paused_among_many(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MOST_KEYS", 3)
    site.text("fair", *Q)
    sort_by_key(site, *"acdefg")
    site.text("pause", *Q, "--key", "b")
    assert site.findings("warning")["queue celery"].startswith("1 key paused: b (since 20")
    for key in "acd":
        site.text("pause", *Q, "--key", key)
    assert site.findings("warning")["queue celery"].startswith("3 keys or more paused: ")


def test_messages_that_nobody_moves_back(site: Site) -> None:
    site.text("fair", *Q)
    sort_by_key(site, "a")
    site.text("fair", *Q, "--off")
    rows = [row["found"] for row in site.rows("doctor", *Q) if row["check"] == "queue celery"]
    assert "it is not to be fair any more, and 1 message is ready: no worker moves it back" in rows


def test_messages_that_are_not_where_they_are_counted(site: Site) -> None:
    site.text("fair", *Q)
    sort_by_key(site, "a", "a", "b")
    site.redis.delete(site.store.keys(QUEUE).key_list(0, "a"))
    assert site.findings("wrong")["queue celery"] == (
        "not all messages of its keys are where they are counted: 1 of 3"
    )


def test_stock_workers(site: Site) -> None:
    site.redis.hset("unacked", "tag", "[]")
    assert "fair queues" not in site.findings("warning")
    site.text("fair", *Q)
    assert site.findings("warning")["fair queues"].startswith("workers of redis:// take")
