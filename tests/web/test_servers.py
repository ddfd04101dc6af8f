"""The pages and their actions on a cluster, behind sentinels, and with a queue that has partitions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from celery import Celery
from kombu import pools
from kombu.connection import Connection

from tests.environments import CLUSTER, CLUSTERS, SERVER
from tests.web.viewer import Page, Viewer
from tools.harness.cluster import Cluster
from tools.harness.redis_server import RedisServer
from tools.harness.sentinel import SentinelSite

QUEUES = ("a", "b", "c", "d")

#: With partitions, each of its messages is in one of four queues.
SPREAD = "a"
PARTITIONS: dict[str, Any] = {"partitions": {SPREAD: 4}}

SENTINEL = "sentinel"
PLACES = [(kind, options) for kind in (SERVER, *CLUSTERS) for options in ({}, PARTITIONS)]

#: In each queue: so many are scheduled, ready, held and dead.
SCHEDULED, READY, HELD, DEAD = 20, 3, 2, 2


@pytest.fixture(scope="module")
def sentinels() -> Iterator[SentinelSite]:
    with SentinelSite(replicas=1, sentinels=1) as site:
        yield site


@pytest.fixture(params=[*PLACES, (SENTINEL, {})], ids=lambda place: "-".join([place[0], *place[1]]))
def app(request: pytest.FixtureRequest) -> Iterator[Celery]:
    kind, options = request.param
    with ExitStack() as at_exit:
        if kind == SENTINEL:
            sentinels: SentinelSite = request.getfixturevalue("sentinels")
            sentinels.empty()
            url = sentinels.url()
            options = {**options, "master_name": "mymaster"}
        elif kind == CLUSTER:
            cluster: Cluster = request.getfixturevalue("cluster")
            before = cluster.errors()["CROSSSLOT"]
            at_exit.callback(lambda: _check(cluster, before))
            url = cluster.url()
        else:
            server: RedisServer = request.getfixturevalue("server")
            url = server.url()
        app = Celery("places", broker=url, broker_transport_options=options, set_as_current=False)
        pools.reset()
        at_exit.callback(pools.reset)
        at_exit.callback(app.close)
        yield app


def _check(cluster: Cluster, before: int) -> None:
    assert cluster.errors()["CROSSSLOT"] == before


@pytest.fixture
def consumer(app: Celery) -> Iterator[Connection]:
    """Holds messages, and has let some die."""
    options = {**app.conf.broker_transport_options, "dead_letter": True}
    with Connection(app.conf.broker_url, transport_options=options) as connection:
        channel = connection.channel()
        for queue in QUEUES:
            for number in range(HELD + DEAD + READY):
                app.send_task("t", task_id=f"{queue}-now{number}", queue=queue)
            for number in range(HELD + DEAD):
                message = channel.basic_get(queue)
                assert message is not None
                if number < DEAD:
                    message.reject()
            for number in range(SCHEDULED):
                app.send_task(
                    "t", task_id=f"{queue}-later{number}", queue=queue, countdown=3600 + 60 * number
                )
        yield connection


@pytest.fixture
def viewer(app: Celery, consumer: Connection) -> Iterator[Viewer]:
    viewer = Viewer(app)
    yield viewer
    viewer.close()


def ids_of(viewer: Viewer, **choice: str) -> Counter[str]:
    """Those of a list, on all its pages."""
    page = viewer.open("/messages", **choice)
    assert page.status == 200
    found = Counter(page.ids)
    while "Next page" in page.links:
        page = viewer.open(page.links["Next page"])
        found.update(page.ids)
    return found


def test_the_pages(viewer: Viewer) -> None:
    page = viewer.open("/")
    assert page.status == 200
    totals = {"scheduled": SCHEDULED, "ready": READY, "unacked": HELD, "dead": DEAD}
    for state, count in totals.items():
        assert f'<a href="/messages?state={state}">{4 * count}</a>' in page.source
        assert f'<a href="/messages?state={state}&amp;queue={SPREAD}">{count}</a>' in page.source
    scheduled = Counter(f"{queue}-later{number}" for queue in QUEUES for number in range(SCHEDULED))
    assert ids_of(viewer) == ids_of(viewer, order="last") == scheduled
    assert ids_of(viewer, queue=SPREAD) == Counter(f"{SPREAD}-later{number}" for number in range(SCHEDULED))
    assert len(ids_of(viewer, state="ready")) == 4 * READY
    dead = ids_of(viewer, state="dead")
    assert (len(dead), ids_of(viewer, state="dead", order="last")) == (4 * DEAD, dead)
    assert f"{4 * HELD} unacked messages." in viewer.open("/messages", state="unacked").text
    for id, state in ((f"{SPREAD}-later3", "scheduled"), (next(iter(dead)), "dead")):
        page = viewer.open("/message", id=id)
        assert (page.status, state in page.text) == (200, True)
    assert viewer.open("/queue", name=SPREAD).status == 200
    assert viewer.open("/doctor").status == 200


def done(viewer: Viewer, button: str, ids: list[str], **fields: str) -> Page:
    """Press a button of the page, and confirm."""
    viewer.press(button, ids)
    page = viewer.press(button, **fields)
    assert page.status == 200, page.text
    return page


def test_the_actions(viewer: Viewer) -> None:
    viewer.open("/messages")
    assert "Cancelled 4 messages." in done(viewer, "Cancel", [f"{queue}-later0" for queue in QUEUES]).text
    assert "Delivered 4 messages." in done(viewer, "Deliver now", [f"{q}-later1" for q in QUEUES]).text
    page = done(viewer, "Reschedule", [f"{queue}-later2" for queue in QUEUES], time="30m")
    assert "Rescheduled 4 messages." in page.text
    assert sorted(page.ids[:4]) == [f"{queue}-later2" for queue in QUEUES]
    viewer.open("/messages", state="dead")
    assert f"Requeued {4 * DEAD} dead letters." in done(viewer, "Requeue all", []).text
    viewer.open("/messages", queue=SPREAD)
    assert f"Cancelled {SCHEDULED - 2} messages." in done(viewer, "Cancel all", []).text
    ready = Counter(viewer.open("/messages", state="ready", queue=SPREAD).ids)
    assert (len(ready), ready[f"{SPREAD}-later1"]) == (READY + 1 + DEAD, 1)
    viewer.open("/queue", name=SPREAD)
    assert f"{SPREAD} is paused." in done(viewer, "Pause", []).text
    assert f"{SPREAD} is not paused any more." in done(viewer, "Resume", []).text
    assert f"{SPREAD} is limited." in done(viewer, "Limit", [], rate="10/s", concurrency="8").text
    assert viewer.open("/queue", name=SPREAD).heading == f"{SPREAD} limited"
