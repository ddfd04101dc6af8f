"""A Redis Cluster of three primaries, each with a replica."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from redis.cluster import RedisCluster
from redis.exceptions import RedisError

from tests.chaos.schedule import Harm
from tests.chaos.site import Course, Site, in_use
from tools.harness.cluster import Cluster
from tools.harness.cluster_node import Node
from tools.harness.cluster_view import slot_of
from tools.harness.proxy import Proxy
from tools.harness.redis_server import RedisServer

#: Of the first queue.
PARTITIONS = 4
#: Seconds for which the keys of a queue are at two nodes, and for which there is no node.
SPLIT_FOR = 1.0
DOWN_FOR = 5.0


class Shards(Site):
    """A replica has what a producer was told to be published."""

    failovers: ClassVar = (
        Harm.PRIMARY_KILL,
        Harm.PRIMARY_STOP,
        Harm.PRIMARY_CUT,
        Harm.PRIMARY_PARTITION,
    )
    changes: ClassVar = (Harm.MOVE, Harm.GROW, Harm.DOWN)
    count: ClassVar = 6
    _cluster: Cluster

    @property
    def options(self) -> Mapping[str, Any]:
        return {"partitions": {self.queues[0]: PARTITIONS}}

    @property
    def publishing(self) -> Mapping[str, Any]:
        return {"confirm_replicas": 1}

    @property
    def servers(self) -> list[RedisServer]:
        return [*self._cluster.live]

    @property
    def proxies(self) -> list[Proxy]:
        try:
            primaries = self._cluster.primaries
        except RedisError:
            # One has failed just now.
            return []
        return [self._cluster.gates[node].clients for node in primaries]

    def url(self, scheme: str, *, proxied: bool = False) -> str:
        return self._cluster.url(f"{scheme}-cluster")

    def client(self) -> RedisCluster:
        return self._cluster.client()

    def befall(self, harm: Harm, pick: float) -> Course:
        changes: dict[Harm, Callable[[float], Course]] = {
            Harm.MOVE: self._move,
            Harm.GROW: self._grow,
            Harm.DOWN: self._take_down,
        }
        if harm in changes:
            return changes[harm](pick)
        failovers: dict[Harm, Callable[[Node], Course]] = {
            Harm.PRIMARY_KILL: self._kill,
            Harm.PRIMARY_STOP: self._stop,
            Harm.PRIMARY_CUT: self._cut_off,
            Harm.PRIMARY_PARTITION: self._partition,
        }
        primary = self._primary(pick)
        with in_use(self._cluster.gates[primary].clients):
            return failovers[harm](primary)

    def _kill(self, primary: Node) -> Course:
        self._cluster.kill(primary)
        # It says nothing any more.
        killed = time.time()
        self._cluster.wait_for_failover(primary)
        served = time.time()
        self._cluster.start(primary)
        self._cluster.wait_until_ok()
        return Course(killed, served)

    def _stop(self, primary: Node) -> Course:
        self._cluster.pause(primary)
        self._cluster.wait_for_failover(primary)
        served = time.time()
        self._cluster.resume(primary)
        self._cluster.wait_until_ok()
        return Course(time.time(), served)

    def _cut_off(self, primary: Node) -> Course:
        """It goes on for as long as it takes the others for reachable, and comes back as a replica."""
        self._cluster.cut_off(primary)
        self._cluster.wait_for_failover(primary)
        served = time.time()
        self._cluster.reunite(primary)
        self._cluster.wait_until_ok()
        return Course(served, served)

    def _partition(self, primary: Node) -> Course:
        self._cluster.cut_off(primary, clients=True)
        cut = time.time()
        self._cluster.wait_for_failover(primary)
        served = time.time()
        self._cluster.reunite(primary)
        self._cluster.wait_until_ok()
        return Course(cut, served)

    def _move(self, pick: float) -> Course:
        """Move the slot of each queue, with what is in it."""
        for queue in self.queues:
            slot = slot_of("{" + queue + "}")
            primaries = self._cluster.primaries
            others = [node for node in primaries if node is not self._cluster.node_of(slot)]
            with self._cluster.moving(slot, others[int(pick * len(others))]) as move:
                move.move_keys(1)
                time.sleep(SPLIT_FOR)
        return Course(forgetful_until=0)

    def _grow(self, pick: float) -> Course:
        """Add a primary and a replica of it, and give them their share of the slots."""
        self._cluster.add_node(replica_of=self._cluster.add_node())
        self._cluster.balance()
        return Course(forgetful_until=0)

    def _take_down(self, pick: float) -> Course:
        self._cluster.stop_all()
        time.sleep(DOWN_FOR)
        self._cluster.start_all()
        return Course(forgetful_until=0, served=time.time())

    def _primary(self, pick: float) -> Node:
        """One that serves slots, and can be replaced."""
        able = [node for node in self._cluster.primaries if self._cluster.replicas_of(node)]
        return able[int(pick * len(able))]

    def _start(self) -> None:
        # What is on disk outlives the processes.
        self._cluster = self._exit.enter_context(Cluster(3, replicas=1, appendonly=True, proxied=True))
