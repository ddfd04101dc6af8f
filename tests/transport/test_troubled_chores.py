"""What a worker does beside its messages while a server refuses: it logs no traceback, and loses no
connection."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from kombu.entity import Exchange, Queue
from kombu.transport import redis
from redis.exceptions import ResponseError

from kombu_redisdelay.transport import refused
from tests.transport.kit import Inbox, Site, event_loop, publish, turn
from tools.harness.redis_server import RedisServer
from tools.harness.trouble import Trouble, busy, misconf, no_permission

pytestmark = pytest.mark.one_server


@pytest.fixture
def site(own_server: RedisServer) -> Iterator[Site]:
    with own_server.client() as client:
        client.flushall()
        site = Site(own_server.url(), client)
        yield site
        site.close()


def workers_channel(site: Site, **options: Any) -> Any:
    """A channel on a connection of a worker that was served."""
    channel = site.channel(**options)
    channel.connection.is_workers = True
    refused.served(channel.connection.broker)
    return channel


def listeners(site: Site) -> list[str]:
    """The ids of connections that listen to PUB/SUB."""
    return [each["id"] for each in site.redis.client_list() if each["psub"] != "0"]


def noting_errors(client: Any) -> list[ResponseError]:
    """What *client* will have raised when it has read."""
    errors: list[ResponseError] = []
    read = client.parse_response

    def noting(*args: Any, **kwargs: Any) -> Any:
        try:
            return read(*args, **kwargs)
        except ResponseError as exc:
            errors.append(exc)
            raise

    client.parse_response = noting
    return errors


@pytest.mark.parametrize("trouble", [misconf, busy])
def test_a_health_check_that_is_refused_loses_no_connection(
    site: Site, own_server: RedisServer, trouble: Trouble
) -> None:
    """kombu sends PING over the connection that it hears remote control over, every 25 s by default."""
    channel = workers_channel(site, health_check_interval=0.2)
    everybody = Exchange("everybody", "fanout")
    inbox = Inbox(channel, Queue("of this worker", everybody, auto_delete=True))
    loop = event_loop(channel.connection.client)
    turn(loop, lambda: site.listeners() == 1)
    was_refused = noting_errors(channel.subclient)
    [ear] = listeners(site)
    with trouble(own_server):
        turn(loop, lambda: len(was_refused) >= 2)
    assert listeners(site) == [ear]
    publish(site.channel(), "a", exchange=everybody, queue="")
    turn(loop, lambda: inbox.bodies == ["a"])


@pytest.mark.skipif(not hasattr(redis.Channel, "sweep_bindings"), reason="new in kombu 5.7")
def test_bindings_that_cannot_be_swept_are_no_traceback(
    site: Site, own_server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    """kombu's timer would log one each second."""
    channel = workers_channel(site)
    Inbox(channel, Queue("expiring", Exchange("shop"), "key", expires=60))
    with no_permission(own_server):
        for _ in range(2):
            channel._bindings_swept_at = channel._binding_expiry_refreshed_at = float("-inf")
            channel.connection.cycle.maybe_refresh_binding_expiry()
    assert [record.exc_info for record in caplog.records if record.exc_info] == []
