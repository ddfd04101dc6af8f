"""What wakes an event loop on signals goes when nobody uses it any more."""

from __future__ import annotations

import pytest
from kombu.asynchronous import Hub

from kombu_redisdelay.transport import waker
from tests.transport.kit import Site

pytestmark = pytest.mark.one_server


def test_the_last_connection_takes_its_reader_along(site: Site) -> None:
    hub = Hub()
    first, second = site.connect(), site.connect()
    for connection in (first, second):
        connection.channel()
        connection.register_with_event_loop(hub)
    assert waker._pair is not None, "this test runs in the main thread"
    reader = waker._pair[0].fileno()
    assert reader in hub.readers
    first.close()
    assert reader in hub.readers
    second.close()
    assert reader not in hub.readers
