"""What the doctor says of a broker with sentinels."""

from __future__ import annotations

from typing import Any

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError

from kombu_redisdelay.operations.access import Access
from kombu_redisdelay.operations.doctor import examine
from tests.sentinel.test_connecting import connect
from tools.harness.process import wait_until
from tools.harness.redis_server import HOST
from tools.harness.sentinel import PASSWORD, SentinelSite, pause


def found(url: str, **options: Any) -> dict[str, tuple[str, str]]:
    """Level and finding of each check."""
    with connect(url, **options) as connection, Access(connection) as access:
        return {one.check: (one.level.value, one.found) for one in examine(access)}


def test_a_primary_that_takes_messages_alone(sentinels: SentinelSite) -> None:
    level, text = found(sentinels.url())["min-replicas-to-write"]
    assert level == "warning"
    assert text.startswith("0: a primary that was replaced")


def test_one_that_does_not(sentinels: SentinelSite) -> None:
    with sentinels.client() as client:
        client.config_set("min-replicas-to-write", 1)
        try:
            findings = found(sentinels.url())
        finally:
            client.config_set("min-replicas-to-write", 0)
    assert findings["min-replicas-to-write"] == ("ok", "1")
    assert findings["role"] == ("ok", "primary, 2 replicas")
    assert "confirm_replicas" not in findings


@pytest.mark.parametrize(("replicas", "level"), [(1, "ok"), (2, "ok"), (3, "wrong")])
def test_more_confirmations_than_replicas(sentinels: SentinelSite, replicas: int, level: str) -> None:
    assert found(sentinels.url(), confirm_replicas=replicas)["confirm_replicas"][0] == level


def test_without_sentinels(sentinels: SentinelSite) -> None:
    """Who fails over there is not known."""
    url = sentinels.primary().url()
    assert "min-replicas-to-write" not in found(url)
    assert found(url, confirm_replicas=3)["confirm_replicas"][0] == "wrong"


def test_a_user_who_may_not_wait(sentinels: SentinelSite) -> None:
    with sentinels.client() as client:
        client.execute_command("ACL", "SETUSER", "shop", "on", ">secret", "~*", "&*", "+@all", "-wait")
    url = sentinels.url().replace(f"//:{PASSWORD}@", "//shop:secret@")
    assert found(url)["permissions"][0] == "ok"
    level, text = found(url, confirm_replicas=1)["permissions"]
    assert (level, text) == ("wrong", "commands refused: WAIT")


def test_without_a_replica_and_without_sentinels() -> None:
    with SentinelSite() as sentinels:
        url, primary = sentinels.url(), sentinels.primary()
        replica, other = sentinels.replicas()
        first, second, third = sentinels.sentinels
        replica.kill()
        with primary.client() as client:
            wait_until(lambda: client.info("replication")["connected_slaves"] == 1, 30, "it is gone")
        first.kill()
        pause(second)
        findings = found(url, confirm_replicas=2)
        assert findings["role"] == ("ok", "primary, 1 replica")
        assert findings["confirm_replicas"][0] == "wrong"
        assert "permissions" in findings, "all else is checked"
        assert "replicas" not in findings
        other.kill()
        with primary.client() as client:
            wait_until(lambda: client.info("replication")["connected_slaves"] == 0, 30, "all are gone")
        level, text = found(url)["replicas"]
        assert (level, text.partition(":")[0]) == ("warning", "none")
        third.kill()
        with pytest.raises(RedisConnectionError, match="no sentinel knows") as raised:
            found(url)
        assert all(f"{HOST}:{sentinel.port}: " in str(raised.value) for sentinel in sentinels.sentinels)
