"""Why a message is late."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from kombu_redisdelay import Messages
from kombu_redisdelay.operations.why_waiting import why_waiting
from tests.broker.rig import payload, with_count
from tests.cli.site import QUEUE, Site
from tools.harness.redis_server import RedisServer


@pytest.fixture
def site(server: RedisServer) -> Iterator[Site]:
    site = Site(server)
    yield site
    site.close()


def why(site: Site, id: str) -> str:
    with Messages(site.app) as queues:
        message = queues.get(id)
        assert message is not None
        return " ".join(why_waiting(queues.store, message))


@pytest.fixture
def late(site: Site) -> str:
    id = site.send(countdown=3600)
    site.make_due(id, -5000)
    return id


def test_it_is_not_due(site: Site) -> None:
    assert why(site, site.send(countdown=3600)) == ""


def test_it_waits_because_it_has_failed(site: Site) -> None:
    id = site.send(countdown=3600)
    key = site.store.keys(QUEUE).messages
    stored = site.redis.hget(key, id)
    for times, text in ((1, "1 time"), (7, "7 times")):
        counted = stored.replace("{", f'{{"redisdelay-deliveries": {times}, ', 1)
        site.redis.hset(key, id, counted)
        assert why(site, id) == f"It has failed {text}, and waits to be tried again."


def test_no_worker_knows_its_task(site: Site) -> None:
    assert re.fullmatch(
        r"Since \d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC it waits for a worker that knows its task.",
        why(site, site.leave_unknown("shop.new", 60)),
    )


def test_no_worker(site: Site, late: str) -> None:
    assert why(site, late) == (
        "No worker consumes from the queue, and no `celery delayed forward` moves what is due."
    )
    assert why(site, site.send()) == "No worker consumes from the queue."


def test_paused(site: Site, late: str) -> None:
    site.text("pause", "-Q", QUEUE)
    assert why(site, late).startswith("The queue is paused: workers take nothing from it. No worker")
    site.add_consumer("w", 60_000)
    assert why(site, site.send()) == "The queue is paused: workers take nothing from it."


def test_busy(site: Site, late: str) -> None:
    site.add_consumer("w", 60_000, holds=3)
    assert (
        "1 consumer of the queue: 3 messages held. They are stopping, stuck, or of an older version."
        in why(site, late)
    )
    assert why(site, site.send()) == (
        "All workers are busy: they hold as many as they may, or were told to stop. 1 consumer of the queue: "
        "3 messages held."
    )


def test_each_worker_holds_one_alone(site: Site) -> None:
    site.add_consumer("w", 60_000)
    suspect = "0:" + with_count(payload("a"), 3, lost=3)
    site.redis.hset(site.store.keys(QUEUE).unacked("w"), str(site.now_ms() * 1000), suspect)
    assert why(site, site.send()) == (
        "Each worker of the queue holds a message alone, of this or another queue, because workers have "
        "died that held it. It takes no other meanwhile, for 60 s at most. 1 consumer of the queue: "
        "1 message held."
    )


def test_limits(site: Site, late: str) -> None:
    site.add_consumer("w", 60_000, holds=3)
    site.text("limit", "-Q", QUEUE, "--rate", "10/m", "--concurrency", "4")
    assert "Workers take no more than 10/m from the queue together." in why(site, late)
    assert "and its limit" not in why(site, late)
    site.text("limit", "-Q", QUEUE, "--concurrency", "3", "--rate", "none")
    assert "Workers hold 3 messages of the queue, and its limit is 3." in why(site, late)
    assert "no more than" not in why(site, late)


def test_dead(site: Site) -> None:
    id = site.send()
    [payload] = site.redis.lrange(QUEUE, 0, -1)
    site.redis.delete(QUEUE)
    site.bury(payload, "it failed")
    assert why(site, id) == ""


def test_the_command_line_says_it(site: Site, late: str) -> None:
    assert re.search("^waits because +No worker consumes from", site.text("show", late), re.MULTILINE)
