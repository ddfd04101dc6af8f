"""Servers that are reached through proxies: who is partitioned is replaced, and comes back as a replica."""

from __future__ import annotations

import pytest
import redis

from tests.environments import PROXIES
from tools.harness.process import wait_until
from tools.harness.sentinel import PATIENCE, SentinelSite, follows

pytestmark = pytest.mark.skipif(
    not PROXIES, reason="Redis 6.2 cannot choose the address that it connects from"
)


def test_a_primary_that_is_partitioned_is_replaced() -> None:
    with SentinelSite(proxied=True, hasty=True) as site:
        primary = site.primary()
        with site.client(socket_timeout=1) as client:
            client.set("kept", 1)
            assert client.wait(2, 5000) == 2
            site.partition(primary)
            with pytest.raises(redis.TimeoutError):
                client.get("kept")
            new = site.wait_failover(primary)
            assert client.get("kept") == b"1"
        with primary.client() as alone:
            assert alone.role()[0] == b"master", "nobody could tell it"
        site.reunite(primary)
        wait_until(lambda: follows(primary, new.announced_port), PATIENCE, "it follows the new one")
        site.wait_whole()
