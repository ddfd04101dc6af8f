"""Remote control while a server hangs: its connections stay open, and nothing comes through them."""

from __future__ import annotations

import random
import select
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from kombu.connection import Connection
from kombu.entity import Exchange, Queue

from kombu_redisdelay.transport.cluster import ClusterChannel
from tests.transport.kit import Inbox, drain, drain_for, event_loop, publish, turn
from tools.harness.cluster import Cluster
from tools.harness.cluster_node import Node
from tools.harness.process import wait_until

PATIENCE = 20.0


def listeners(node: Node) -> int:
    """To how many channels and patterns of PUB/SUB its clients listen."""
    return int(node.call("PUBSUB", "NUMPAT")) + len(node.call("PUBSUB", "CHANNELS"))


def test_a_reply_that_waits_to_be_read_was_no_silence(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task has kept the thread for longer than the server may take."""
    monkeypatch.setattr(ClusterChannel, "silence_limit", 0.1)
    with Connection(cluster.url(), transport_options={"health_check_interval": 1}) as connection:
        channel: Any = connection.channel()
        inbox = Inbox(channel, Queue("of this worker", Exchange("control", "fanout")))
        drain(connection, lambda: channel.subclient.subscribed, each=0.01)
        drain_for(connection, 0.1)
        listening = channel.subclient
        # It is time for a PING.
        listening.connection.next_health_check = 0
        channel.check()
        assert listening.health_check_response_counter == 1
        channel.check()
        began = time.monotonic()
        wait_until(
            lambda: (
                time.monotonic() > began + 0.1 and select.select([listening.connection._sock], [], [], 0)[0]
            ),
            PATIENCE,
            "the reply",
        )
        drain(connection, lambda: not listening.health_check_response_counter, timeout=5)
        assert channel.__dict__["subclient"] is listening
        publish(channel, "ping", exchange=Exchange("control", "fanout"), routing_key="")
        drain(connection, lambda: inbox.bodies == ["ping"])


@pytest.mark.parametrize("how", ["drain_events", "event loop"])
def test_is_heard_again_although_its_server_hangs(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """All else is at other servers, so nothing else shows that this one hangs."""
    monkeypatch.setattr(ClusterChannel, "silence_limit", 1.0)
    with Cluster(primaries=3, full_coverage=False) as cluster:
        bindings = cluster.node_of("{_kombu.binding}")
        hanging, _ = (node for node in cluster.primaries if node is not bindings)
        numbers = range(100)
        queue = next(f"q{n}" for n in numbers if cluster.node_of(f"{{q{n}}}") is bindings)
        # PUB/SUB is everywhere, but is published at the server that its channel belongs to.
        control = Exchange(
            next(f"e{n}" for n in numbers if cluster.node_of(f"/0.e{n}") is bindings), "fanout"
        )
        # It listens there.
        monkeypatch.setattr(
            random,
            "shuffle",
            lambda addresses: addresses.sort(key=lambda address: address.port != hanging.port),
        )
        with Connection(cluster.url(), transport_options={"health_check_interval": 1}) as connection:
            inbox = Inbox(connection.channel(), Queue(queue), Queue("of this worker", control))
            wait: Callable[[Callable[[], object]], None] = partial(drain, connection, timeout=PATIENCE)
            if how == "event loop":
                wait = partial(turn, event_loop(connection))
            wait(lambda: listeners(hanging))
            monkeypatch.undo()
            monkeypatch.setattr(ClusterChannel, "silence_limit", 1.0)
            cluster.pause(hanging)
            wait(lambda: any(map(listeners, cluster.live)))
            others = ";".join(f"redisdelay-cluster://{node.address}" for node in cluster.live)
            with Connection(others) as another:
                channel: Any = another.channel()
                publish(channel, "ping", exchange=control, routing_key="")
                wait(lambda: "ping" in inbox.bodies)
                publish(channel, "task", queue=queue)
                wait(lambda: "task" in inbox.bodies)
            cluster.resume(hanging)
            wait_until(lambda: not listeners(hanging), PATIENCE, "the old connection is closed")
