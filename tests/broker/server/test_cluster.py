"""The broker on a cluster whose slots move, with queues at different servers."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from redis.exceptions import ResponseError

from kombu_redisdelay.broker.server import cluster as cluster_module
from kombu_redisdelay.broker.server.server import SlotUnavailable
from tests.broker.database import ClusterDatabase
from tests.broker.rig import Rig, payload, taken, texts
from tools.harness import trouble
from tools.harness.cluster import Cluster
from tools.harness.cluster_node import Node
from tools.harness.cluster_view import slot_of
from tools.harness.process import wait_until
from tools.harness.resharding import Move

HOUR = 3_600_000


@pytest.fixture
def rig(cluster: Cluster) -> Rig:
    return Rig(ClusterDatabase(cluster), prefix="")


def other_primary(cluster: Cluster, node: Node) -> Node:
    return next(other for other in cluster.primaries if other is not node)


def move_away(cluster: Cluster, queue: str) -> None:
    """Move the slot of *queue* to another server."""
    with cluster.moving(slot_of(queue), to=other_primary(cluster, cluster.node_of(queue))):
        pass


def test_acks_after_the_slot_has_moved(rig: Rig, cluster: Cluster) -> None:
    rig.put("q", *(payload(str(n)) for n in range(3)))
    me = rig.consumer()
    first, second, held = taken(me, "q")
    me.ack("q", first.tag)
    move_away(cluster, "q")
    me.ack("q", second.tag)
    me.confirm_acks()
    assert list(rig.unacked("q")) == [held.tag]
    assert rig.missed_acks == []
    # From now on they go there at once.
    assert rig.ack(me, "q", held.tag)
    assert not rig.ack(me, "q", held.tag)


@pytest.mark.parametrize("moved", ["ready", "wake", "consumers", "unacked:me"])
def test_acks_while_keys_move(rig: Rig, cluster: Cluster, moved: str) -> None:
    rig.put("q", *(payload(str(n)) for n in range(3)))
    me = rig.consumer()
    first, second = taken(me, "q", limit=2)
    key = rig.store.keys("q").ready if moved == "ready" else rig.key("q", moved)
    with cluster.moving(slot_of("q"), to=other_primary(cluster, cluster.node_of("q"))) as move:
        move.move(key)
        me.ack("q", first.tag)
        me.confirm_acks()
        move.move_keys()
        me.ack("q", second.tag)
        me.confirm_acks()
    assert rig.unacked("q") == {}
    assert rig.missed_acks == []


def test_an_ack_that_is_refused_when_its_slot_is_served_again(rig: Rig, cluster: Cluster) -> None:
    rig.put("q", payload("0"))
    me = rig.consumer()
    [held] = taken(me, "q")
    node = cluster.node_of("q")
    with trouble.cluster_down(node):
        me.ack("q", held.tag)
        with pytest.raises(SlotUnavailable), rig.store.server.hurrying():
            me.confirm_acks()
    with trouble.misconf(node), pytest.raises(ResponseError, match="MISCONF"):
        me.confirm_acks()
    assert list(rig.unacked("q")) == [held.tag]
    me.confirm_acks()
    assert rig.unacked("q") == {}
    assert rig.missed_acks == []


def test_acks_that_one_server_refuses_do_not_hold_up_the_others(rig: Rig, cluster: Cluster) -> None:
    node = cluster.node_of("q")
    another = next(name for name in "abcdefghij" if cluster.node_of(name) is not node)
    for queue in ("q", another):
        rig.put(queue, payload("0"))
    me = rig.consumer()
    [held], [held_there] = taken(me, "q"), taken(me, another)
    with trouble.cluster_down(cluster.node_of(another)):
        me.ack(another, held_there.tag)
        with pytest.raises(SlotUnavailable), rig.store.server.hurrying():
            me.confirm_acks()
    with trouble.misconf(node):
        me.ack("q", held.tag)
        with pytest.raises(ResponseError, match="MISCONF"):
            me.confirm_acks()
        assert rig.unacked(another) == {}
    me.confirm_acks()
    assert rig.unacked("q") == {}


@pytest.mark.parametrize("moved", [(), ("ready",), ("schedule",), ("ready", "schedule", "messages")])
def test_a_take_while_keys_move_takes_nothing(rig: Rig, cluster: Cluster, moved: tuple[str, ...]) -> None:
    """It would only see those keys that are there, or make new ones beside those that were moved."""
    rig.put("q", payload("now"))
    rig.schedule("q", payload("due"), HOUR, id="due")
    rig.database.advance(2 * HOUR)
    me = rig.consumer()
    with cluster.moving(slot_of("q"), to=other_primary(cluster, cluster.node_of("q"))) as move:
        move.move(*(rig.store.keys("q").ready if name == "ready" else rig.key("q", name) for name in moved))
        if moved:
            with pytest.raises(SlotUnavailable):
                taken(me, "q")
    assert texts(taken(me, "q")) == [payload("now"), payload("due")]
    assert len(rig.unacked("q")) == 2


def test_a_take_whose_slot_has_moved(rig: Rig, cluster: Cluster) -> None:
    me = rig.consumer()
    rig.put("q", payload("0"), payload("1"))
    assert texts(taken(me, "q", limit=1)) == [payload("0")]
    move_away(cluster, "q")
    assert texts(taken(me, "q", limit=1)) == [payload("1")]
    assert len(rig.unacked("q")) == 2


class TestPublishing:
    """It waits until the slot has arrived."""

    @pytest.fixture
    def move(self, rig: Rig, cluster: Cluster) -> Iterator[Move]:
        rig.put("q", "before")
        rig.schedule("q", "before", HOUR)
        with cluster.moving(slot_of("q"), to=other_primary(cluster, cluster.node_of("q"))) as move:
            move.move_keys(1)
            yield move

    def test_while_keys_move(self, rig: Rig, cluster: Cluster, move: Move) -> None:
        before = cluster.errors()["TRYAGAIN"]
        publisher = threading.Thread(target=self.publish, args=[rig])
        publisher.start()
        wait_until(lambda: cluster.errors()["TRYAGAIN"] > before, 20, "it is told to try again")
        move.finish()
        publisher.join()
        assert rig.ready("q") == ["before", "0", "1", "2"]
        assert sorted(rig.scheduled("q")) == ["0:before", "0:later"]

    @staticmethod
    def publish(rig: Rig) -> None:
        rig.put("q", "0", "1", "2")
        rig.schedule("q", "later", HOUR)

    def test_once_more_however_long_the_answer_took(
        self, rig: Rig, move: Move, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """In a busy process, it may wait to be read for longer than a slot is waited for."""
        # Less than a round trip takes.
        monkeypatch.setattr(cluster_module, "PATIENCE", 1e-6)
        monkeypatch.setattr(cluster_module, "sleep", lambda _: move.finish())
        rig.schedule("q", "later", HOUR)
        assert sorted(rig.scheduled("q")) == ["0:before", "0:later"]

    def test_not_for_ever(self, rig: Rig, move: Move, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(cluster_module, "PATIENCE", 0.1)
        with pytest.raises(SlotUnavailable):
            rig.schedule("q", "later", HOUR)


def test_several_queues_in_one_packet(rig: Rig, cluster: Cluster) -> None:
    """Each command goes to its server, and the replies come in the order of the commands."""
    queues = [f"q{number}" for number in range(30)]
    assert len({cluster.node_of(queue) for queue in queues}) == 3
    calls = [rig.store.put(queue, 0, queue) for queue in queues for _ in range(3)]
    move_away(cluster, queues[7])
    assert rig.store.run_all(calls) == [1, 2, 3] * 30
    assert [rig.ready(queue) for queue in queues] == [[queue] * 3 for queue in queues]


def test_a_consumer_of_many_slots_has_tags_of_its_own_for_all(rig: Rig) -> None:
    queues = [f"q{number}" for number in range(30)]
    for queue in queues:
        rig.put(queue, payload("0"), payload("1"))
    me = rig.consumer()
    tags = [delivery.tag for queue in queues for delivery in taken(me, queue)]
    assert len(set(tags)) == 60
    for queue in queues:
        rig.end_lease(queue)
    assert [rig.recover(queue) for queue in queues] == [2] * 30


def test_what_is_held_in_many_slots_is_given_back(rig: Rig, cluster: Cluster) -> None:
    queues = [f"q{number}" for number in range(30)]
    me = rig.consumer()
    for queue in queues:
        rig.put(queue, payload("m"))
        taken(me, queue)
    move_away(cluster, queues[0])
    assert me.give_back_all()
    assert [len(rig.ready(queue)) for queue in queues] == [1] * 30
