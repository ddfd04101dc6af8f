"""A server that refuses to write because too few replicas follow it: ``min-replicas-to-write``."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError

from kombu_redisdelay.transport.patience import impatient
from tests.transport.kit import Inbox, Site, drain, publish

SETTING = "min-replicas-to-write"


@pytest.fixture
def refusing(site: Site) -> Iterator[Site]:
    set_everywhere(site, 1)
    yield site
    set_everywhere(site, 0)


def set_everywhere(site: Site, count: int) -> None:
    if site.cluster is None:
        site.redis.config_set(SETTING, count)
    else:
        site.cluster.everywhere("CONFIG", "SET", SETTING, count)


@pytest.mark.parametrize("headers", [{}, {"x-delay": 1000}])
def test_publishing(refusing: Site, headers: dict[str, int]) -> None:
    with impatient(), pytest.raises(RedisConnectionError, match=r"too few replicas follow .*NOREPLICAS"):
        publish(refusing.channel(), "a", headers=headers)


def test_consuming(site: Site) -> None:
    """For any other error, Celery would end the worker."""
    channel = site.channel()
    publish(channel, "before")
    inbox = Inbox(channel)
    drain(channel.connection.client, lambda: len(inbox) == 1)
    set_everywhere(site, 1)
    try:
        with pytest.raises(RedisConnectionError, match="too few replicas follow"):
            drain(channel.connection.client, lambda: False)
    finally:
        set_everywhere(site, 0)
    inbox.messages[0].ack()
    channel.consumer.confirm_acks()
    assert site.unacked() == 0
