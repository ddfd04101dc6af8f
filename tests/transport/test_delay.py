"""Messages with a due time, through kombu."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from tests.transport.kit import Inbox, Site, drain, drain_for, in_seconds, publish


@pytest.mark.usefixtures("long_polls")
@pytest.mark.parametrize("by", ["x-delay", "eta"])
def test_is_delivered_on_time_and_not_before(site: Site, by: str) -> None:
    channel = site.channel()
    connection = channel.connection.client
    inbox = Inbox(channel)
    drain_for(connection, 0.1)
    due_at = time.time() + 0.6
    headers = {"x-delay": 600} if by == "x-delay" else {"eta": in_seconds(0.6).isoformat(), "task": "t"}
    publish(channel, "later", headers=headers)
    assert (site.ready(), site.scheduled(), site.unacked()) == (0, 1, 0)
    drain(connection, lambda: len(inbox) == 1)
    assert time.time() >= due_at
    assert site.scheduled() == 0


@pytest.mark.usefixtures("long_polls")
def test_earlier_than_what_is_waited_for_is_noticed(site: Site) -> None:
    channel, other = site.channel(), site.channel()
    connection = channel.connection.client
    inbox = Inbox(channel)
    publish(other, "late", headers={"x-delay": 60_000})
    drain_for(connection, 0.2)
    due_at = time.monotonic() + 0.3
    publish(other, "early", headers={"x-delay": 300})
    drain(connection, lambda: len(inbox) == 1)
    assert time.monotonic() >= due_at
    assert inbox.bodies == ["early"]


def test_is_delivered_without_its_delay_which_is_over(site: Site) -> None:
    """Whoever publishes the headers again, as a task that is retried, would have it wait once more."""
    channel = site.channel()
    publish(channel, "a", headers={"x-delay": 50, "other": 1})
    inbox = Inbox(channel)
    drain(channel.connection.client, lambda: len(inbox) == 1)
    assert inbox.messages[0].headers == {"other": 1}


def test_requeued_does_not_wait_again(site: Site) -> None:
    channel = site.channel()
    publish(channel, "a", headers={"x-delay": 100})
    inbox = Inbox(channel)
    drain(channel.connection.client, lambda: len(inbox) == 1)
    inbox.messages[0].requeue()
    assert (site.ready(), site.scheduled()) == (1, 0)


@pytest.mark.parametrize("delay", ["5000", -1, True, float("nan"), float("inf"), 10**16, 10**400])
def test_no_sense_is_an_error_and_nothing_is_published(site: Site, delay: object) -> None:
    channel = site.channel()
    before = site.all_keys()
    with pytest.raises(ValueError, match="x-delay"):
        publish(channel, "a", headers={"x-delay": delay})
    assert site.all_keys() == before


def test_the_same_task_twice_is_kept_twice(site: Site) -> None:
    channel = site.channel()
    for body in ("a", "b"):
        publish(channel, body, headers={"id": "task", "x-delay": 100})
    assert site.scheduled() == 2
    assert site.redis.zscore(site.keys().schedule, "task") is not None
    inbox = Inbox(channel)
    drain(channel.connection.client, lambda: len(inbox) == 2)


class TestFoundOnAReadyList:
    """Put there by a producer or a worker of the stock transport."""

    def put(self, site: Site, seconds: float, **properties: Any) -> bytes:
        message = {
            "body": "ImEi",
            "content-encoding": "utf-8",
            "content-type": "application/json",
            "headers": {"task": "t", "id": "task", "eta": in_seconds(seconds).isoformat(), "args": [[], {}]},
            "properties": {
                "body_encoding": "base64",
                "delivery_info": {"exchange": "", "routing_key": "q"},
                "delivery_tag": "stock",
                **properties,
            },
        }
        data = json.dumps(message).encode()
        site.redis.lpush(site.keys().ready, data)
        return data

    def test_is_parked_as_it_is(self, site: Site) -> None:
        channel = site.channel()
        inbox = Inbox(channel, prefetch=1)
        data = self.put(site, 3600)
        publish(channel, "now")
        drain(channel.connection.client, lambda: len(inbox) == 1)
        assert inbox.bodies == ["now"]
        assert site.redis.hgetall(site.keys().messages) == {b"task": b"0:" + data}
        assert site.unacked() == 1

    @pytest.mark.usefixtures("long_polls")
    def test_is_delivered_when_due(self, site: Site) -> None:
        channel = site.channel()
        inbox = Inbox(channel)
        due_at = time.monotonic() + 0.4
        self.put(site, 0.4)
        drain(channel.connection.client, lambda: len(inbox) == 1)
        assert time.monotonic() >= due_at
        assert "redelivered" not in inbox.messages[0].delivery_info

    def test_by_basic_get(self, site: Site) -> None:
        channel = site.channel()
        self.put(site, 3600)
        assert channel.basic_get("q") is None
        assert site.scheduled() == 1

    def test_without_a_tag(self, site: Site) -> None:
        channel = site.channel()
        self.put(site, 3600, delivery_tag=None)
        assert channel.basic_get("q") is None
        assert site.scheduled() == 1
