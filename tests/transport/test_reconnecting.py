"""Connections that are lost as soon as they are there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery
from kombu.utils import eventio
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ResponseError

from kombu_redisdelay.transport import orphan_keeper, transports
from kombu_redisdelay.transport.orphan_keeper import LATE_TAKE
from kombu_redisdelay.transport.upstream import dropping_events
from tests.clock import Clock
from tests.transport.kit import Inbox, Site, drain, publish, waits
from tools.harness.process import wait_until


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(transports, "monotonic", clock)
    monkeypatch.setattr(transports, "monotonic", clock)
    return clock


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch, clock: Clock) -> list[float]:
    """How long connections have waited before they were opened. Only that makes the *clock* go on."""
    found: list[float] = []

    def sleep(seconds: float) -> None:
        found.append(round(seconds, 3))
        clock.now += seconds

    monkeypatch.setattr(transports, "sleep", sleep)
    monkeypatch.setattr(transports, "_backoffs", {})
    return found


def lose(connection: Any) -> None:
    """What kombu and Celery do when a connection fails."""
    try:
        raise RedisConnectionError("lost")
    except connection.connection_errors:
        connection.collect()


@contextmanager
def refusing_scripts(site: Site) -> Iterator[None]:
    """The user of the connections may run none."""
    site.redis.execute_command("ACL", "SETUSER", "shop", "-evalsha", "-eval")
    try:
        yield
    finally:
        site.redis.execute_command("ACL", "SETUSER", "shop", "+evalsha", "+eval")
        site.redis.acl_log_reset()


@pytest.mark.one_server
def test_they_are_not_opened_again_and_again(site: Site, pauses: list[float]) -> None:
    connection = site.connect()
    for _ in range(8):
        connection.connect()
        lose(connection)
    assert pauses == [0.1, 0.2, 0.4, 0.8, 1.0, 1.0]


@pytest.mark.one_server
def test_what_a_refused_program_closes_itself_counts_too(site: Site, pauses: list[float]) -> None:
    """So does a client that waits for results in ``rpc://``."""
    with refusing_scripts(site):
        for _ in range(6):
            with site.connect() as connection:
                Inbox(connection.default_channel)
                with pytest.raises(ResponseError):
                    connection.drain_events(timeout=10)
    assert pauses == [0.1, 0.2, 0.4, 0.8]


@pytest.mark.one_server
def test_its_lease_ends_when_nothing_is_refused_any_more(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """The take that was refused has arrived. Nobody waits for it any more."""
    monkeypatch.setattr(orphan_keeper, "INTERVAL", 0.05)
    monkeypatch.setattr(orphan_keeper, "AGAIN", ())
    others = set(orphan_keeper._at_work)
    with refusing_scripts(site), site.connect() as connection:
        Inbox(connection.default_channel)
        with pytest.raises(ResponseError):
            connection.drain_events(timeout=10)
    assert len(orphan_keeper._at_work - others) == 1
    wait_until(lambda: orphan_keeper._at_work <= others, LATE_TAKE / 2, "that nobody looks any more")


@pytest.mark.one_server
def test_who_has_published_does_not_wait(site: Site, pauses: list[float]) -> None:
    """Something that closes connections all the time must not slow a producer down more than that."""
    connection = site.connect()
    for _ in range(3):
        connection.connect()
        lose(connection)
    pauses.clear()
    for _ in range(5):
        publish(connection.default_channel, "m")
        lose(connection)
    # For the last one that was of no use.
    assert pauses == [0.2]


@pytest.mark.one_server
def test_the_next_one_does_not_wait_if_none_was_lost(site: Site, pauses: list[float]) -> None:
    """Celery empties its pools when an application is closed, or forks."""
    connection = site.connect()
    for _ in range(3):
        pool = connection.Pool(limit=1)
        with pool.acquire() as one:
            one.connect()
            assert one.connected
        pool.force_close_all()
    assert pauses == []


def test_a_worker_sends_no_event_to_a_server_that_is_gone(site: Site) -> None:
    """Celery publishes ``worker-offline`` between losing its connection and the next one."""
    app = Celery(broker=site.url, set_as_current=False)
    connection = site.connect()
    dispatcher = app.events.Dispatcher(connection, hostname="h", enabled=True)
    told = []

    def on_lost(consumer: Any, error: Exception) -> None:
        dispatcher.send("worker-offline")
        told.append(error)

    channel = dispatcher.producer.channel
    dropping_events(on_lost, SimpleNamespace(event_dispatcher=dispatcher), RedisConnectionError("lost"))
    assert told
    assert channel.connection is None
    # It is kept for the next dispatcher.
    assert [each[1] for each in dispatcher._outbound_buffer] == ["worker.offline"]


def test_a_connection_that_is_closed_is_not_polled(site: Site) -> None:
    """``select`` remembers it, unlike epoll. eventlet has nothing else, and its worker ended of that."""
    connection = site.connect()
    channel = connection.channel()
    connection.transport.cycle.poller.close()
    connection.transport.cycle.poller = poller = eventio._select()
    inbox = Inbox(channel)
    drain(connection, lambda: waits(channel))
    [fetcher] = channel.intake.fetchers
    waker = channel.connection.cycle._waker
    assert len(poller._rfd) == 2
    fetcher.close()
    assert poller._rfd == {waker.fd}
    publish(channel, "a")
    drain(connection, lambda: len(inbox) == 1)


def lost(found: transports.ReconnectBackoff, clock: Clock, after: float = 0.0) -> None:
    """A connection is opened, and lost *after* some seconds."""
    connected_at = clock.now
    clock.now += after
    found.note_loss(connected_at, was_of_use=False)


def test_the_first_loss_costs_nothing(clock: Clock, pauses: list[float]) -> None:
    found = transports.ReconnectBackoff()
    for _ in range(3):
        lost(found, clock, 0.01)
        found.pause()
        clock.now += 60
    assert pauses == []


def test_one_that_was_of_use_does_not_count(clock: Clock, pauses: list[float]) -> None:
    found = transports.ReconnectBackoff()
    for _ in range(3):
        lost(found, clock, transports.SHORT_LIVED)
        found.pause()
    assert pauses == []


def test_those_that_are_lost_together_count_once(clock: Clock, pauses: list[float]) -> None:
    """As when the server restarts, in a process whose threads have a connection each."""
    found, connected_at = transports.ReconnectBackoff(), clock.now
    for _ in range(5):
        clock.now += 0.01
        found.note_loss(connected_at, was_of_use=False)
    found.pause()
    assert pauses == []


def test_who_has_waited_otherwise_waits_for_the_rest(clock: Clock, pauses: list[float]) -> None:
    found = transports.ReconnectBackoff()
    for _ in range(5):
        lost(found, clock)
    clock.now += 0.5
    found.pause()
    assert pauses == [0.3]
