"""A message that is suspected of what failed is held alone, and does not wait for that for ever."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kombu_redisdelay.transport import intake as intake_module
from kombu_redisdelay.transport import qos as qos_module
from tests.broker.rig import with_count
from tests.transport.kit import Inbox, Site, drain, drain_for, event_loop, publish, turn


def publish_suspect(site: Site) -> None:
    publish(site.channel(), "suspect")
    message = site.redis.lpop(site.keys().ready).decode()
    assert json.loads(message)
    site.redis.lpush(site.keys().ready, with_count(message, 3, lost=3))


@pytest.fixture(params=["drain_events", "event loop"])
def run(request: pytest.FixtureRequest) -> Any:
    """Waits for messages, in one of the two ways."""
    loops: dict[Any, Any] = {}

    def run(connection: Any, until: Any) -> None:
        if request.param == "drain_events":
            drain(connection, until)
        else:
            turn(loops.setdefault(connection, event_loop(connection)), until)

    return run


def test_the_worker_says_so(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    channel = site.channel()
    publish_suspect(site)
    publish(channel, "a", "b")
    inbox = Inbox(channel)
    drain(channel.connection.client, lambda: len(inbox) == 1)
    inbox.messages[0].ack()
    drain(channel.connection.client, lambda: len(inbox) == 3)
    assert [line for line in caplog.messages if "isolated" in line.lower()] == [
        "Isolated a message of queue 'q', because 3 worker(s) have died while they held it: this worker "
        "takes no other until it is done, for 60 seconds at most"
    ]


def test_it_waits_for_those_before_it(site: Site, run: Any) -> None:
    channel = site.channel()
    publish(channel, "a", "b")
    publish_suspect(site)
    publish(channel, "c")
    inbox = Inbox(channel)
    connection = channel.connection.client
    run(connection, lambda: len(inbox) == 2)
    run(connection, lambda: site.unacked() == 3)
    assert (inbox.bodies, site.ready()) == (["a", "b"], 1)
    inbox.messages[0].ack()
    inbox.messages[1].ack()
    run(connection, lambda: len(inbox) == 3)
    assert inbox.bodies[2] == "suspect"
    assert site.ready() == 1, "nothing is taken beside it"
    inbox.messages[2].ack()
    run(connection, lambda: len(inbox) == 4)


def test_not_for_ever(site: Site, run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intake_module, "ISOLATION_PATIENCE", 0.3)
    channel = site.channel()
    publish(channel, "long")
    publish_suspect(site)
    publish(channel, "behind")
    inbox = Inbox(channel)
    connection = channel.connection.client
    run(connection, lambda: len(inbox) == 2)
    assert inbox.bodies == ["long", "suspect"]
    assert site.ready() == 1
    inbox.messages[0].ack()
    inbox.messages[1].ack()
    run(connection, lambda: len(inbox) == 3)


def test_others_are_served_meanwhile(site: Site) -> None:
    busy, idle = site.channel(), site.channel()
    publish(busy, "long")
    inbox = Inbox(busy)
    drain(busy.connection.client, lambda: len(inbox) == 1)
    publish_suspect(site)
    drain(busy.connection.client, lambda: site.unacked() == 2)
    others = Inbox(idle)
    publish(busy, *"abc")
    drain(idle.connection.client, lambda: len(others) == 3)
    drain_for(busy.connection.client, 0.1)
    assert inbox.bodies == ["long"]


def test_it_is_given_back_when_its_consumer_is_cancelled(site: Site) -> None:
    channel = site.channel()
    publish(channel, "long")
    publish_suspect(site)
    inbox = Inbox(channel)
    drain(channel.connection.client, lambda: len(inbox) == 1)
    drain(channel.connection.client, lambda: site.unacked() == 2)
    inbox.consumer.cancel()
    assert (site.ready(), site.unacked()) == (1, 1)
    publish(channel, "a")
    again = Inbox(channel)
    inbox.messages[0].ack()
    drain(channel.connection.client, lambda: len(again) == 1)
    assert again.bodies == ["suspect"]


def test_one_that_is_never_acked_does_not_stop_its_consumer(
    site: Site, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(qos_module, "ISOLATED_FOR", 0.3)
    channel = site.channel()
    publish_suspect(site)
    publish(channel, "a", "b")
    inbox = Inbox(channel)
    connection = channel.connection.client
    run(connection, lambda: len(inbox) == 1)
    assert (inbox.bodies, site.ready()) == (["suspect"], 2)
    run(connection, lambda: len(inbox) == 3)
