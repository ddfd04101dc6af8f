"""Connections that are lost as soon as they are there."""

from __future__ import annotations

import time

import pytest

from kombu_redisdelay.transport import transports
from tests.transport.kit import Site


@pytest.mark.one_server
def test_they_are_not_opened_again_and_again(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transports, "PAUSE", 0.2)
    connection = site.connect()
    connection.connect()
    began = time.monotonic()
    for _ in range(3):
        connection.collect()
        connection.connect()
    assert time.monotonic() - began >= 3 * 0.2


@pytest.mark.one_server
def test_one_that_was_of_use_is_opened_again_at_once(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transports, "PAUSE", 60)
    monkeypatch.setattr(transports, "SHORT_LIVED", 0)
    connection = site.connect()
    connection.connect()
    connection.collect()
    connection.connect()
    assert connection.connected
