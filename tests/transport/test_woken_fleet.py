"""Messages wake as many of the consumers that wait as are needed, and no more."""

from __future__ import annotations

import select
from functools import partial
from typing import Any

import pytest

from tests.transport.kit import LONG_POLL, PATIENCE, Inbox, Site, drain, waits

pytestmark = pytest.mark.one_server

CONSUMERS, PREFETCH = 20, 10


def waiting(site: Site) -> list[Inbox]:
    """Consumers that wait to be woken."""
    inboxes = []
    for _ in range(CONSUMERS):
        inbox = Inbox(site.channel(), prefetch=PREFETCH)
        channel: Any = inbox.consumer.channel
        drain(channel.connection.client, partial(waits, channel))
        inboxes.append(inbox)
    return inboxes


def woken(inboxes: list[Inbox], timeout: float) -> list[Inbox]:
    """Those to which the server has sent a token, at most one second after it was asked to wait."""
    by_socket = {
        fetcher.client.connection._sock: inbox
        for inbox in inboxes
        for fetcher in channel_of(inbox).intake.fetchers
    }
    readable, _, _ = select.select(list(by_socket), [], [], timeout)
    return [by_socket[sock] for sock in readable]


def publish_together(channel: Any, *bodies: str) -> None:
    """In one packet, as ``batch(app)`` does. One by one, each message wakes one more consumer that waits."""
    block = channel.create_publish_batch(len(bodies))
    for body in bodies:
        message = channel.prepare_message(body)
        block.publish(message, exchange="", routing_key="q")
    block.flush()


def channel_of(inbox: Inbox) -> Any:
    return inbox.consumer.channel


@pytest.mark.parametrize(("messages", "needed"), [(1, 1), (100, 10)])
def test_as_many_as_are_needed(
    site: Site, monkeypatch: pytest.MonkeyPatch, messages: int, needed: int
) -> None:
    # Otherwise they look for themselves once a second.
    monkeypatch.setattr("kombu_redisdelay.transport.transports.Transport.brpop_timeout", LONG_POLL)
    idle = waiting(site)
    publish_together(site.channel(), *map(str, range(messages)))
    busy: list[Inbox] = []
    while sum(map(len, busy)) < messages:
        some = woken(idle, PATIENCE)
        assert some, "nobody is woken for what is left"
        for inbox in some:
            idle.remove(inbox)
            busy.append(inbox)
            expected = min(PREFETCH, messages - sum(map(len, busy)))
            drain(channel_of(inbox).connection.client, lambda i=inbox, n=expected: len(i) >= n)  # type: ignore[misc]
    assert len(busy) == needed
    assert woken(idle, 0.2) == []
