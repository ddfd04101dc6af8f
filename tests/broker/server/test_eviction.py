"""A server that is set up wrongly, short of memory, or has foreign things under our keys."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import pytest
from redis.exceptions import OutOfMemoryError, ResponseError

from kombu_redisdelay.broker.server.scripts import RENEW
from kombu_redisdelay.broker.server.server import warn_of_eviction
from tests.broker.database import RealDatabase
from tests.broker.rig import Rig, park, payload, taken, texts
from tools.harness.redis_server import RedisServer
from tools.harness.server_binary import ServerBinary, servers


@pytest.fixture(params=servers(), ids=lambda binary: binary.name)
def own_rig(request: pytest.FixtureRequest) -> Iterator[Rig]:
    """In a server of its own, whose settings may be changed."""
    binary: ServerBinary = request.param
    with RedisServer(binary) as server:
        yield Rig(RealDatabase(server))


@pytest.mark.parametrize("policy", ["allkeys-lru", "allkeys-random", "volatile-lru", "volatile-ttl"])
def test_a_policy_that_evicts_queues_is_said(
    own_rig: Rig, policy: str, caplog: pytest.LogCaptureFixture
) -> None:
    own_rig.client.config_set("maxmemory-policy", policy)
    warn_of_eviction(own_rig.store.server)
    [record] = caplog.records
    assert policy in record.getMessage()
    assert "noeviction" in record.getMessage()
    assert ("x-expires" in record.getMessage()) == policy.startswith("volatile")


def test_the_policy_that_does_not_is_not(own_rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    own_rig.client.config_set("maxmemory-policy", "noeviction")
    warn_of_eviction(own_rig.store.server)
    assert caplog.records == []


def test_a_read_only_replica_says_so_whatever_is_done(own_rig: Rig) -> None:
    rig, client = own_rig, own_rig.client
    rig.put("q", payload("a"))
    me = rig.consumer("me")
    client.replicaof("127.0.0.1", 1)
    for write in (
        lambda: rig.put("q", "more"),
        lambda: rig.schedule("q", "more", 60_000),
        lambda: taken(me, "q"),
    ):
        with pytest.raises(ResponseError, match="read only replica"):
            write()
    client.replicaof("NO", "ONE")
    assert texts(taken(me, "q")) == [payload("a")]


def test_out_of_memory_publishing_fails_and_consuming_goes_on(own_rig: Rig) -> None:
    rig, client = own_rig, own_rig.client
    later = json.dumps({"headers": {"id": "later"}, "properties": {}})
    rig.put("q", *(payload(str(n)) for n in range(3)))
    rig.schedule("q", later, -1000)
    me = rig.consumer("me", delivery_limit=1)
    [first] = taken(me, "q", limit=1)
    client.config_set("maxmemory", 1)
    before = {key: client.dump(key) for key in client.scan_iter()}
    with pytest.raises(OutOfMemoryError, match="maxmemory"):
        rig.put("q", "more")
    with pytest.raises(OutOfMemoryError, match="maxmemory"):
        rig.schedule("q", "more", 60_000)
    assert {key: client.dump(key) for key in client.scan_iter()} == before

    rest = taken(me, "q")
    assert texts(rest) == [payload("1"), payload("2"), later]
    lease_end = client.zscore("redisdelay:{q}:consumers", "me")
    RENEW(rig.store.server, ["redisdelay:{q}:consumers"], ["me", 120_000])
    assert client.zscore("redisdelay:{q}:consumers", "me") != lease_end
    park(me, rest[0], "parked", 2**41)
    assert rig.scheduled("q") == [f"0:{payload('1')}"]
    assert me.requeue("q", rest[1].tag), "dead by now"
    assert rig.ack(me, "q", first.tag)
    assert me.give_back_all()


def take(rig: Rig) -> None:
    rig.client.rpush("q", "m")
    taken(rig.consumer(), "q")


def schedule(rig: Rig) -> None:
    rig.schedule("q", "m", 60_000)


@pytest.mark.parametrize(
    ("name", "call"),
    [("schedule", take), ("consumers", take), ("schedule", schedule), ("messages", schedule)],
)
def test_a_wrong_type_is_told_with_its_key(rig: Rig, name: str, call: Callable[[Rig], None]) -> None:
    key = getattr(rig.store.keys("q"), name)
    rig.client.set(key, "mine")
    with pytest.raises(ResponseError) as caught:
        call(rig)
    assert repr(key) in str(caught.value)
    assert "string" in str(caught.value)
