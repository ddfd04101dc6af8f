"""A cluster of real servers starts, moves slots, survives what is done to it, and leaves nothing behind."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from threading import Event, Thread

import pytest
import redis
from redis.cluster import RedisCluster

from tests.environments import PROXIES
from tools.harness.cluster import Cluster
from tools.harness.cluster_node import Node, free_port_with_bus
from tools.harness.cluster_view import slot_of
from tools.harness.ports import OF_NODES
from tools.harness.process import wait_until
from tools.harness.redis_server import HOST


@pytest.fixture(scope="module")
def shared_cluster() -> Iterator[Cluster]:
    with Cluster(3, replicas=1, node_timeout=1000, appendonly=True, requirepass="pass word") as cluster:
        yield cluster


@pytest.fixture
def cluster(shared_cluster: Cluster) -> Iterator[Cluster]:
    shared_cluster.start_all()
    shared_cluster.flush()
    yield shared_cluster
    for node in shared_cluster.nodes:
        shared_cluster.resume(node)


def other_primary(cluster: Cluster, node: Node) -> Node:
    return next(other for other in cluster.primaries if other is not node)


def increment(client: RedisCluster, name: str) -> None:
    while True:
        try:
            client.incr(name)
        except AttributeError:
            # It was told to ask a node that had no slots when it last looked for nodes (redis/redis-py#2432).
            client.nodes_manager.initialize()
        else:
            return


def test_it_serves_all_slots(cluster: Cluster) -> None:
    client = cluster.client(decode_responses=True)
    for number in range(100):
        client.set(f"key-{number}", number)
    assert [client.get(f"key-{number}") for number in range(100)] == [str(n) for n in range(100)]
    assert len(cluster.primaries) == 3
    for node in cluster.primaries:
        assert node.call("DBSIZE") > 0
        assert len(cluster.replicas_of(node)) == 1


def test_a_flush_leaves_nothing(cluster: Cluster) -> None:
    client = cluster.client()
    for number in range(100):
        client.set(f"key-{number}", number)
    cluster.flush()
    assert [node.call("DBSIZE") for node in cluster.primaries] == [0, 0, 0]


def test_scripts_are_forgotten_if_asked_for(cluster: Cluster) -> None:
    node = cluster.node_of("a")
    digest = node.call("SCRIPT", "LOAD", "return 1")
    cluster.flush()
    assert node.call("SCRIPT", "EXISTS", digest) == [1]
    cluster.flush(scripts=True)
    assert node.call("SCRIPT", "EXISTS", digest) == [0]


def test_urls(cluster: Cluster) -> None:
    first, *rest = cluster.url("redis").split(";")
    assert first == f"redis://:pass%20word@{cluster.addresses[0]}"
    assert len(rest) == 5
    with redis.Redis.from_url(first) as client:
        assert client.ping()
    cluster.everywhere("ACL", "SETUSER", "shop", "on", ">secret", "+ping")
    for url in cluster.url("redis", username="shop", password="secret").split(";"):
        with redis.Redis.from_url(url) as client:
            assert client.ping()


def test_a_slot_is_moved_while_a_client_works(cluster: Cluster) -> None:
    client = cluster.client()
    names = [f"{{moved}}{number}" for number in range(300)]
    for name in names:
        client.set(name, 0)
    source = cluster.node_of("moved")
    target = other_primary(cluster, source)
    rounds, once, stop = 0, Event(), Event()

    def work() -> None:
        nonlocal rounds
        while not stop.is_set():
            for name in names:
                client.incr(name)
            rounds += 1
            once.set()

    worker = Thread(target=work)
    with cluster.moving(slot_of("moved"), to=target) as move:
        assert move.move_keys(count=120) == 120
        worker.start()
        assert source.call("CLUSTER", "COUNTKEYSINSLOT", slot_of("moved")) == 180
        # It has all keys where they are, and then where they go.
        assert once.wait(30)
    stop.set()
    worker.join()
    assert cluster.node_of("moved") is target
    assert source.call("CLUSTER", "COUNTKEYSINSLOT", slot_of("moved")) == 0
    assert {int(client.get(name) or 0) for name in names} == {rounds}


def test_a_named_key_is_moved(cluster: Cluster) -> None:
    client = cluster.client()
    client.set("{moved}stays", 1)
    client.set("{moved}goes", 1)
    source = cluster.node_of("moved")
    with cluster.moving(slot_of("moved"), to=other_primary(cluster, source)) as move:
        move.move("{moved}goes")
        assert move.source.call("EXISTS", "{moved}stays") == 1
        # An AskError, but for redis-py 4.6, which knows that one in a cluster's client only.
        with pytest.raises(redis.ResponseError):
            move.source.call("EXISTS", "{moved}goes")


def test_errors_are_counted(cluster: Cluster) -> None:
    before = cluster.errors()
    with pytest.raises(redis.ResponseError):
        cluster.nodes[0].call("MGET", "a", "b")
    assert cluster.errors() - before == {"CROSSSLOT": 1}


def test_a_killed_primary_is_replaced(cluster: Cluster) -> None:
    client = cluster.client()
    client.set("kept", 1)
    killed = cluster.node_of("kept")
    [replica] = cluster.replicas_of(killed)
    killed.call("WAIT", 1, 5000)
    cluster.kill(killed)
    cluster.wait_for_failover(of=killed)
    assert cluster.node_of("kept") is replica
    assert replica.call("GET", "kept") == b"1"
    cluster.start(killed)
    cluster.wait_until_ok()
    assert cluster.replicas_of(replica) == [killed]


def test_a_paused_primary_is_replaced(cluster: Cluster) -> None:
    paused = cluster.node_of("a")
    [replica] = cluster.replicas_of(paused)
    cluster.pause(paused)
    cluster.wait_for_failover(of=paused)
    cluster.resume(paused)
    cluster.wait_until_ok()
    assert cluster.node_of("a") is replica
    assert cluster.replicas_of(replica) == [paused]


def refused(client: redis.Redis, error: type[Exception]) -> bool:
    try:
        client.get("kept")
    except error:
        return True
    return False


@pytest.mark.skipif(not PROXIES, reason="Redis 6.2 cannot choose the address that it connects from")
@pytest.mark.parametrize("clients", [True, False])
@pytest.mark.thorough
def test_a_primary_that_is_cut_off_is_replaced(clients: bool) -> None:
    with Cluster(3, replicas=1, node_timeout=1000, proxied=True) as cluster:
        client = cluster.client()
        client.set("kept", 1)
        cut = cluster.node_of("kept")
        [replica] = cluster.replicas_of(cut)
        cut.call("WAIT", 1, 5000)
        with redis.Redis(HOST, cluster.gates[cut].clients.port, socket_timeout=1) as stays:
            assert stays.get("kept") == b"1"
            cluster.cut_off(cut, clients=clients)
            cluster.wait_for_failover(of=cut)
            assert cut.known()[cut.id].primary is None, "nobody could tell it"
            # It serves nobody, for it sees no majority. It may find that out later than the others.
            refusal = redis.TimeoutError if clients else redis.ResponseError
            wait_until(lambda: refused(stays, refusal), 30, "a refusal")
        assert cluster.node_of("kept") is replica
        assert replica.call("GET", "kept") == b"1"
        cluster.reunite(cut)
        cluster.wait_until_ok()
        assert cluster.replicas_of(replica) == [cut]
        assert cluster.client().get("kept") == b"1"


def test_the_whole_cluster_is_down_and_comes_back(cluster: Cluster) -> None:
    client = cluster.client()
    client.set("kept", 1)
    cluster.stop_all()
    assert not any(node.running for node in cluster.nodes)
    cluster.start_all()
    assert cluster.client().get("kept") == b"1"


@pytest.mark.thorough
def test_a_node_is_added_and_takes_its_share_while_a_client_works() -> None:
    with Cluster(3, node_timeout=1000) as cluster:
        client = cluster.client()
        names = [f"key-{number}" for number in range(500)]
        for name in names:
            client.set(name, 0)
        rounds, stop = 0, Event()

        def work() -> None:
            nonlocal rounds
            while not stop.is_set():
                for name in names:
                    increment(client, name)
                rounds += 1

        worker = Thread(target=work)
        worker.start()
        node = cluster.add_node()
        assert node.call("DBSIZE") == 0
        assert cluster.balance() == 4096
        stop.set()
        worker.join()
        known = node.known()
        assert [len(known[node.id].slots) for node in cluster.nodes] == [4096] * 4
        assert node.call("DBSIZE") > 0
        assert {int(client.get(name) or 0) for name in names} == {rounds}


@pytest.mark.thorough
def test_a_replica_is_added() -> None:
    with Cluster(1) as cluster:
        [primary] = cluster.primaries
        replica = cluster.add_node(replica_of=primary)
        assert cluster.replicas_of(primary) == [replica]
        assert cluster.primaries == [primary]


def test_what_is_missing_is_told(cluster: Cluster) -> None:
    node = cluster.node_of(0)
    [replica] = cluster.replicas_of(node)
    cluster.pause(replica)
    cluster.kill(node)
    with pytest.raises(TimeoutError, match=r"after 0\.1 s: \d+ slots are served by no node that is up"):
        cluster.wait_until_ok(timeout=0.1)


def test_nothing_is_left_behind() -> None:
    cluster = Cluster(1)
    with suppress(ZeroDivisionError), cluster:
        [node] = cluster.nodes
        cluster.pause(node)
        raise ZeroDivisionError
    assert not node.running
    assert not node.directory.exists()


def test_nothing_is_left_behind_if_it_does_not_start() -> None:
    cluster = Cluster(1, args=["--no-such-option", "1"])
    with pytest.raises(RuntimeError, match="no-such-option"), cluster:
        pass
    [node] = cluster.nodes
    assert not node.running
    assert not node.directory.exists()


def test_a_port_has_its_bus() -> None:
    assert free_port_with_bus() in OF_NODES
