"""The event loop polls on, or raises, whichever connection breaks while nothing is asked of it."""

from __future__ import annotations

import pytest

from tests.transport.kit import Inbox, Site, event_loop, publish, turn


@pytest.mark.parametrize("broken", ["ping", "evalsha"], ids=["poll", "commands"])
def test_a_connection_that_breaks_while_there_is_no_credit(site: Site, broken: str) -> None:
    """The worker has as many messages as it may have, and waits for no more."""
    connection = site.connect()
    channel = connection.channel()
    inbox = Inbox(channel, prefetch=1)
    loop = event_loop(connection)
    publish(site.channel(), "a", "b")
    turn(loop, lambda: len(inbox) == 1 and not any(fetcher.is_waiting for fetcher in channel.intake.fetchers))

    ours = str(site.redis.client_id())
    for client in site.redis.client_list():
        if client["cmd"] == broken and client["id"] != ours:
            site.redis.client_kill_filter(_id=client["id"])
    rounds = iter(range(3))
    try:
        turn(loop, lambda: next(rounds, None) is None)
        inbox.messages[0].ack()
        turn(loop, lambda: len(inbox) == 2)
    except connection.connection_errors:
        # A worker connects again; see test_client_kill.
        return
    assert inbox.bodies == ["a", "b"]
