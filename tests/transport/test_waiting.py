"""From when on a message may be delivered, and for how long it has waited since."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from kombu_redisdelay.broker.members import DUE
from kombu_redisdelay.broker.paging import REQUEUE
from kombu_redisdelay.broker.schedule import Schedule
from kombu_redisdelay.operations.stats import queue_stats
from tests.broker.rig import take_out
from tests.dead import bury
from tests.transport.kit import Site, publish

HOUR_MS = 3_600_000


def waiting(site: Site) -> float | None:
    [stats] = queue_stats(site.channel().store, ["q"])
    return stats.waiting


def put(site: Site, waits: float | None, *, step: int = 0, size: int = 0) -> None:
    """Add a message that has waited for so many seconds, or does not tell, as the next of its list."""
    message: dict[str, Any] = {"body": size * "x", "headers": {}, "properties": {}}
    if waits is not None:
        message = {DUE: int((time.time() - waits) * 1000), **message}
    site.redis.rpush(site.keys().ready_at(step), json.dumps(message))


@pytest.mark.parametrize(("delay_ms", "places"), [(None, "ready"), (HOUR_MS, "messages")])
def test_a_message_says_it_first(site: Site, delay_ms: int | None, places: str) -> None:
    before_ms = int(time.time() * 1000)
    publish(site.channel(), "body", headers={"x-delay": delay_ms} if delay_ms else {})
    keys = site.keys()
    data = site.redis.lindex(keys.ready, 0) if delay_ms is None else site.redis.hvals(keys.messages)[0][2:]
    assert data.startswith(b'{"redisdelay-due": ')
    due_ms = json.loads(data)[DUE] - (delay_ms or 0)
    assert before_ms <= due_ms <= time.time() * 1000


def test_nothing_waits(site: Site) -> None:
    publish(site.channel(), "later", headers={"x-delay": HOUR_MS})
    assert waiting(site) == 0


def test_the_next_one_counts(site: Site) -> None:
    put(site, 50)
    put(site, 100)
    put(site, 70)
    assert 70 <= (waiting(site) or 0) < 100


def test_the_longest_of_all_priorities(site: Site) -> None:
    put(site, None, step=3)
    put(site, 50)
    put(site, 100, step=6)
    put(site, 70, step=9)
    assert 100 <= (waiting(site) or 0) < 130


def test_of_a_stock_producer_it_is_unknown(site: Site) -> None:
    put(site, None)
    assert waiting(site) is None
    site.redis.rpush(site.keys().ready, "no message")
    assert waiting(site) is None


def test_a_clock_that_is_ahead(site: Site) -> None:
    put(site, -50)
    assert waiting(site) == 0


def test_a_large_message(site: Site) -> None:
    put(site, 50, size=5_000_000)
    assert 50 <= (waiting(site) or 0) < 80


def test_it_counts_on_when_a_message_comes_back(site: Site) -> None:
    put(site, 100)
    channel = site.channel()
    message = channel.basic_get("q")
    message.reject(requeue=True)
    data = site.redis.lindex(site.keys().ready, 0)
    assert data.startswith(b'{"redisdelay-deliveries": 1, "redisdelay-due": ')
    assert 100 <= (waiting(site) or 0) < 130
    assert channel.basic_get("q").headers["x-delivery-count"] == 1


def test_it_begins_anew_for_a_dead_letter_that_is_requeued(site: Site) -> None:
    put(site, 100_000)
    store = site.channel().store
    bury(store, "q", site.redis.rpop(site.keys().ready), "why")
    assert take_out(store, "q", REQUEUE) == 1
    assert 0 < (waiting(site) or 0) < 60


@pytest.mark.parametrize("in_ms", [-1, HOUR_MS])
def test_it_is_another_time_when_it_is_rescheduled(site: Site, in_ms: int) -> None:
    channel = site.channel()
    publish(channel, "body", headers={"x-delay": 2 * HOUR_MS}, message_id="m")
    schedule = Schedule(channel.store)
    [found] = schedule.find("q", "m")
    due_ms = channel.store.now_ms() + in_ms
    assert schedule.reschedule(found, found.payload, due_ms)
    if in_ms < 0:
        assert 0 <= (waiting(site) or 0) < 60
    else:
        [again] = schedule.find("q", "m")
        assert json.loads(again.payload)[DUE] == pytest.approx(due_ms, abs=1)


@pytest.mark.one_server
def test_stock_workers_do_not_mind(site: Site) -> None:
    publish(site.channel(), "body")
    data = site.redis.lindex("q", 0)
    # kombu's own transport needs more permissions than ours.
    options = site.redis.connection_pool.connection_kwargs
    login = f":{options['password']}@" if options.get("password") else ""
    channel = site.connect(f"redis://{login}{options['host']}:{options['port']}/0").channel()
    message = channel.basic_get("q")
    assert message.body == b"body"
    message.reject(requeue=True)
    [back] = site.redis.lrange("q", 0, -1)
    assert json.loads(back)[DUE] == json.loads(data)[DUE]
