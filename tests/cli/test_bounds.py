"""Queues that refuse new work, on the command line, for Prometheus, and in the doctor."""

from __future__ import annotations

from typing import Any

import pytest
from kombu.entity import Queue

from kombu_redisdelay.transport import admission
from tests.cli.site import QUEUE, Site
from tests.cli.test_exporter import exported
from tools.harness.redis_server import RedisServer

REJECT = {"x-overflow": "reject-publish"}


@pytest.fixture
def server(good_server: RedisServer) -> RedisServer:
    admission.forget_lengths()
    return good_server


def declare(site: Site, *names: str, number: int = 10, **options: Any) -> None:
    """Declare queues with a bound of ten. Publishes messages to the first one, one of these for later."""
    site.app.conf.task_queues = [
        Queue(name, **{"max_length": 10, "queue_arguments": REJECT, **options}) for name in names
    ]
    for index in range(number):
        site.send(queue=names[0], countdown=None if index else 3600)


def test_stats_and_the_exporter_tell_how_full_it_is(site: Site) -> None:
    declare(site, QUEUE, number=8)
    site.add_consumer("alive", 60_000)
    site.send(queue="other")
    header, full, free = site.text("stats").splitlines()
    assert " BOUND " in header
    assert " 80 % of 10 " in full
    assert "%" not in free
    assert {row["queue"]: row["bound"] for row in site.rows("stats")} == {QUEUE: 10, "other": None}
    found = exported(site)
    assert found["redisdelay_queue_bound_messages", QUEUE] == 10
    assert found["redisdelay_queue_bound_ratio", QUEUE] == 0.8
    assert ("redisdelay_queue_bound_messages", "other") not in found


def test_a_partition_has_its_share(site: Site) -> None:
    site.app.conf.broker_transport_options = {"partitions": {"emails": 4}}
    declare(site, "emails", number=0)
    assert [
        row["bound"] for row in site.rows("stats", "-Q", "emails", "-Q", "emails#1", "-Q", "emails#3")
    ] == [10, 3, 2]


def test_the_doctor_says_once_that_a_full_queue_has_no_worker(site: Site) -> None:
    declare(site, "emails", number=10)
    [found] = [row for row in site.rows("doctor") if row["check"] == "queue emails"]
    assert found["found"] == (
        "10 messages wait, and it may have 10: new work is refused now, and no worker takes them"
    )
    assert found["advice"].startswith("Start a worker for this queue, or see what fills it")


@pytest.mark.parametrize(("number", "when"), [(7, ""), (8, "soon"), (10, "now")])
def test_the_doctor_warns_before_it_is_full(site: Site, number: int, when: str) -> None:
    declare(site, "emails", number=number)
    site.add_consumer("alive", 60_000, queue="emails")
    found = [row for row in site.rows("doctor") if row["check"] == "queue emails"]
    assert [row["found"] for row in found] == (
        [f"{number} messages wait, and it may have 10: new work is refused {when}"] if when else []
    )
    assert all("`celery delayed count --by task -Q emails`" in row["advice"] for row in found)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [({}, "it has no x-overflow"), ({"x-overflow": "reject_publish"}, "its x-overflow is 'reject_publish'")],
)
def test_the_doctor_says_that_a_length_has_no_effect(
    site: Site, arguments: dict[str, Any], reason: str
) -> None:
    declare(site, "emails", number=0, queue_arguments=arguments)
    assert f"max_length has no effect, because {reason}:" in site.findings("warning")["queue emails"]


def test_the_doctor_says_that_an_overflow_has_no_effect(site: Site) -> None:
    declare(site, "emails", number=0, max_length=None)
    assert (
        "x-overflow has no effect, because it has no max_length" in site.findings("warning")["queue emails"]
    )


def test_the_doctor_says_that_a_length_cannot_be(site: Site) -> None:
    declare(site, "emails", number=0, max_length=-1)
    assert "max_length must be a whole number from 1, not -1" in site.findings("wrong")["queue emails"]
    assert site.rows("stats", "-Q", "emails")[0]["bound"] is None
