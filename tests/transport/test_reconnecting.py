"""Connections that are lost as soon as they are there."""

from __future__ import annotations

import time
from typing import Any

import pytest
from kombu.utils import eventio
from redis.exceptions import ConnectionError as RedisConnectionError

from kombu_redisdelay.transport import transports
from tests.transport.kit import Inbox, Site, drain, publish, waits


def lose(connection: Any) -> None:
    """What kombu and Celery do when a connection fails."""
    try:
        raise RedisConnectionError("lost")
    except connection.connection_errors:
        connection.collect()


@pytest.mark.one_server
def test_they_are_not_opened_again_and_again(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transports, "PAUSE", 0.2)
    connection = site.connect()
    connection.connect()
    began = time.monotonic()
    for _ in range(3):
        lose(connection)
        connection.connect()
    assert time.monotonic() - began >= 3 * 0.2


@pytest.mark.one_server
def test_one_that_was_of_use_is_opened_again_at_once(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transports, "PAUSE", 60)
    monkeypatch.setattr(transports, "SHORT_LIVED", 0)
    connection = site.connect()
    connection.connect()
    lose(connection)
    connection.connect()
    assert connection.connected


@pytest.mark.one_server
def test_the_next_one_does_not_wait_if_none_was_lost(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Celery empties its pools when an application is closed, or forks."""
    monkeypatch.setattr(transports, "PAUSE", 60)
    connection = site.connect()
    for _ in range(2):
        pool = connection.Pool(limit=1)
        with pool.acquire() as one:
            one.connect()
            assert one.connected
        pool.force_close_all()


def test_a_connection_that_is_closed_is_not_polled(site: Site) -> None:
    """``select`` remembers it, unlike epoll. eventlet has nothing else, and its worker ended of that."""
    connection = site.connect()
    channel = connection.channel()
    connection.transport.cycle.poller.close()
    connection.transport.cycle.poller = poller = eventio._select()
    inbox = Inbox(channel)
    drain(connection, lambda: waits(channel))
    [lane] = channel.intake.lanes
    assert poller._rfd
    lane.close()
    assert not poller._rfd
    publish(channel, "a")
    drain(connection, lambda: len(inbox) == 1)
