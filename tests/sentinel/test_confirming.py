"""``confirm_replicas``: what is published is at so many replicas, or an error says that it is not."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any

import pytest
from celery import Celery
from kombu.connection import Connection
from kombu.messaging import Producer
from redis.exceptions import ResponseError

from kombu_redisdelay import BatchPublishError, NotReplicatedError, batch
from tests.transport.kit import publish
from tools.harness.process import wait_until
from tools.harness.sentinel import MASTER, SentinelSite, go_on, pause

LATER = {"x-delay": 60_000}


def waits(client: Any) -> int:
    """How many WAIT commands the server has run."""
    return int(client.info("commandstats").get("cmdstat_wait", {"calls": 0})["calls"])


@pytest.fixture
def primary(sentinels: SentinelSite) -> Iterator[Any]:
    with sentinels.client() as client:
        client.config_resetstat()
        yield client


@pytest.fixture
def site(sentinels: SentinelSite) -> Iterator[SentinelSite]:
    """Of whose two replicas one may be paused."""
    yield sentinels
    for server in sentinels.servers:
        go_on(server)


def channel(site: SentinelSite, replicas: int) -> Any:
    options = {"master_name": MASTER, "confirm_replicas": replicas}
    return Connection(site.url(), transport_options=options).channel()


@pytest.mark.parametrize("headers", [{}, LATER])
def test_one_wait_for_each_message(site: SentinelSite, primary: Any, headers: dict[str, Any]) -> None:
    """Also for the first one that is scheduled, whose script the server does not know."""
    primary.script_flush()
    ours = channel(site, 2)
    publish(ours, "a", headers=headers)
    before = waits(primary)
    publish(ours, "b", "c", headers=headers)
    assert waits(primary) - before == 2
    assert ours.queue_purge("q") == 3
    assert waits(primary) - before == 2, "only what is published"


def test_none_by_default(site: SentinelSite, primary: Any) -> None:
    publish(channel(site, 0), "a")
    assert waits(primary) == 0


@pytest.mark.parametrize("headers", [{}, LATER])
def test_too_few(site: SentinelSite, primary: Any, headers: dict[str, Any]) -> None:
    ours = channel(site, 2)
    publish(ours, "a", headers=headers)
    pause(site.replicas()[0])
    with pytest.raises(NotReplicatedError, match="1 of 2 replicas have confirmed") as raised:
        # kombu must not publish it again by itself.
        Producer(ours).publish("b", routing_key="q", headers=headers, retry=True)
    assert (raised.value.confirmed, raised.value.wanted) == (1, 2)
    assert str(pickle.loads(pickle.dumps(raised.value))) == str(raised.value)
    assert ours.pool.line.connection._sock is None, "the next publish asks the sentinels"
    assert (primary.llen("q") or primary.zcard("redisdelay:{q}:schedule")) == 2
    go_on(site.replicas()[0])
    publish(ours, "c", headers=headers)


def test_what_is_refused_is_no_question_of_replicas(site: SentinelSite, primary: Any) -> None:
    primary.set("q", "of somebody else")
    with pytest.raises(ResponseError, match="WRONGTYPE"):
        publish(channel(site, 3), "a")


def test_a_batch_waits_once(site: SentinelSite, primary: Any) -> None:
    options = {"master_name": MASTER, "confirm_replicas": 2}
    app = Celery("batch", broker=site.url(), set_as_current=False)
    app.conf.broker_transport_options = options
    with batch(app):
        for number in range(10):
            app.send_task("work", [number], countdown=60 if number % 2 else None, queue="q")
    assert waits(primary) == 1
    pause(site.replicas()[0])
    with pytest.raises(BatchPublishError, match="1 of 2 replicas") as raised, batch(app):
        app.send_task("work", queue="q", task_id="uncertain")
    assert raised.value.uncertain == ["uncertain"]
    app.close()


@pytest.mark.parametrize("value", [-1, True, "1", 1.5])
def test_values_that_make_no_sense(value: object) -> None:
    options = {"master_name": MASTER, "confirm_replicas": value}
    with pytest.raises(ValueError, match="'confirm_replicas' must be a whole number from 0"):
        Connection("redisdelay-sentinel://localhost:1", transport_options=options).channel()


def test_a_replica_that_is_paused_longer_is_waited_for_no_longer_than_a_second(site: SentinelSite) -> None:
    ours = channel(site, 1)
    for replica in site.replicas():
        pause(replica)
    with pytest.raises(NotReplicatedError, match="0 of 1"):
        publish(ours, "a")
    for replica in site.replicas():
        go_on(replica)
    wait_until(lambda: ours.store.server.call("WAIT", 2, 100) == 2, 30, "the replicas")
