"""What clients get from real servers while a slot is moved; tools.harness.resharding describes it.

The transport relies on a key of the slot that never exists, declared as the last one of every script.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from queue import SimpleQueue
from threading import Thread
from typing import Any

import pytest
import redis

from tools.harness.cluster import Cluster
from tools.harness.cluster_node import Node
from tools.harness.cluster_view import slot_of
from tools.harness.server_binary import servers

SLOT = slot_of("q")
A, B, NEVER = "{q}a", "{q}b", "{q}never"

#: Writes to all its keys but the last one.
COUNT = """
KEYS[#KEYS] = nil
for _, key in ipairs(KEYS) do
    redis.call('incr', key)
end
return #KEYS
"""

REFUSED = {"ASK", "TRYAGAIN"}


@pytest.fixture(scope="module")
def shared_cluster() -> Iterator[Cluster]:
    with Cluster(2) as cluster:
        yield cluster


@pytest.fixture
def cluster(shared_cluster: Cluster) -> Cluster:
    shared_cluster.flush()
    return shared_cluster


def other_primary(cluster: Cluster, node: Node) -> Node:
    return next(other for other in cluster.primaries if other is not node)


def reply(node: Node, *command: Any, asking: bool = False) -> Any:
    """What a node replies; the first word of it if it is an error."""
    with node.client(single_connection_client=True, decode_responses=True) as client:
        try:
            if asking:
                client.execute_command("ASKING")
            return client.execute_command(*command)
        except redis.exceptions.MovedError:
            return "MOVED"
        except redis.exceptions.AskError:
            return "ASK"
        except redis.exceptions.TryAgainError:
            return "TRYAGAIN"
        except redis.ResponseError as error:
            # redis-py 4.6 knows the others in a cluster's client only.
            return str(error).partition(" ")[0]


def counted(*keys: str) -> tuple[Any, ...]:
    return ("EVAL", COUNT, len(keys), *keys)


def exists(node: Node, key: str) -> bool:
    """Whether the node has the key, whoever serves the slot."""
    return key.encode() in node.call("CLUSTER", "GETKEYSINSLOT", SLOT, 100)


def test_the_key_that_never_exists_is_no_hindrance_otherwise(cluster: Cluster) -> None:
    assert reply(cluster.node_of("q"), *counted(A, B, NEVER)) == 2
    assert reply(cluster.node_of("q"), "MGET", A, B, NEVER) == ["1", "1", None]


@pytest.mark.parametrize("existing", [[A, B], [A], []], ids=["both", "one", "none"])
@pytest.mark.parametrize("moved", [[], [A], [B], [A, B]], ids=["nothing", "a", "b", "all"])
def test_a_script_with_it_runs_nowhere_while_the_slot_is_moved(
    cluster: Cluster, existing: list[str], moved: list[str]
) -> None:
    source = cluster.node_of("q")
    for key in existing:
        source.call("SET", key, 0)
    with cluster.moving(SLOT, to=other_primary(cluster, source)) as move:
        move.move(*moved)
        for keys in ([A, NEVER], [A, B, NEVER]):
            assert reply(move.source, *counted(*keys)) in REFUSED
            assert reply(move.target, *counted(*keys)) == "MOVED"
            assert reply(move.target, *counted(*keys), asking=True) == "TRYAGAIN"
    assert reply(move.target, "MGET", A, B) == ["0" if key in existing else None for key in (A, B)]
    assert reply(move.target, *counted(A, B, NEVER)) == 2


def test_without_it_a_script_runs_where_its_keys_are(cluster: Cluster) -> None:
    source = cluster.node_of("q")
    source.call("MSET", A, 0, B, 0)
    with cluster.moving(SLOT, to=other_primary(cluster, source)) as move:
        assert reply(move.source, *counted(A, B, A)) == 2
        move.move_keys()
        assert reply(move.target, *counted(A, B, A), asking=True) == 2


def test_without_it_a_script_ends_half_way_at_a_key_that_is_not_there(cluster: Cluster) -> None:
    source = cluster.node_of("q")
    source.call("MSET", A, 0, B, 0)
    with (
        cluster.moving(SLOT, to=other_primary(cluster, source)) as move,
        pytest.raises(redis.ResponseError, match="non local key"),
    ):
        move.source.call(
            "EVAL",
            "redis.call('del', KEYS[1]) redis.call('incr', KEYS[2]) redis.call('incr', KEYS[1])",
            2,
            A,
            B,
        )
    assert reply(move.target, "MGET", A, B) == [None, "1"]


def test_a_key_on_both_sides_is_not_overwritten(cluster: Cluster) -> None:
    source = cluster.node_of("q")
    source.call("SET", A, "source")
    with cluster.moving(SLOT, to=other_primary(cluster, source)) as move:
        assert reply(move.target, "SET", A, "target", asking=True)
        with pytest.raises(redis.ResponseError, match="BUSYKEY"):
            move.move_keys()
        source.call("DEL", A)
    assert reply(move.target, "GET", A) == "target"


def test_keys_of_the_slot_need_not_be_declared(cluster: Cluster) -> None:
    script = "redis.call('set', KEYS[1] .. ARGV[1], 1) return redis.call('get', KEYS[1] .. ARGV[1])"
    assert reply(cluster.node_of("q"), "EVAL", script, 1, A, "-derived") == "1"


def test_who_waits_at_the_source_hears_nothing_before_the_end(cluster: Cluster) -> None:
    source = cluster.node_of("q")
    replies: SimpleQueue[Any] = SimpleQueue()
    waiting = Thread(target=lambda: replies.put(reply(source, "BLPOP", A, 20)))
    waiting.start()
    while not source.info("clients")["blocked_clients"]:
        time.sleep(0.01)
    with cluster.moving(SLOT, to=other_primary(cluster, source)) as move:
        cluster.client().rpush(A, "pushed")
        assert exists(move.target, A)
        # A command that comes later goes where the push went.
        assert reply(source, "BLPOP", A, 20) == "ASK"
        assert source.info("clients")["blocked_clients"] == 1
        assert replies.empty()
    assert replies.get(timeout=10) == "MOVED"
    waiting.join()


def test_a_replica_that_takes_over_goes_on_with_the_move_on_valkey_only() -> None:
    told = servers()[0].product == "Valkey"
    with Cluster(3, replicas=1, node_timeout=1000) as cluster:
        source = cluster.node_of("q")
        [replica] = cluster.replicas_of(source)
        source.call("MSET", A, 0, B, 0)
        with cluster.moving(SLOT, to=other_primary(cluster, source)) as move:
            move.move(A)
            source.call("WAIT", 1, 5000)
            cluster.kill(source)
            cluster.wait_for_failover(of=source, agreed=False)
            assert reply(replica, *counted(A, B, NEVER)) == ("TRYAGAIN" if told else 2)
            if not told:
                # It ran where only one of its keys was, and made the other one anew.
                replica.call("DEL", A)
                # For the target, the slot is still that of the dead node: it replies nothing else at all.
                assert move.target.state() == "fail"
            move.source = replica
            move.begin()
            cluster.wait_until_ok()
        assert reply(move.target, "MGET", A, B) == ["0", "0" if told else "1"]
