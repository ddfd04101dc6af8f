"""What is particular to a cluster: queues in many slots, slots that move, and wrong URLs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from kombu.connection import Connection
from kombu.entity import Exchange, Queue
from kombu.exceptions import OperationalError
from kombu.transport import virtual

from kombu_redisdelay.broker.lease import MOST_LEFT
from tests.transport.kit import Inbox, Site, drain, event_loop, publish, turn, waits
from tools.harness.cluster import Cluster
from tools.harness.cluster_node import Node
from tools.harness.cluster_view import slot_of
from tools.harness.redis_server import RedisServer

QUEUES = [f"q{number:02}" for number in range(12)]

#: Waits for a condition, with drain_events or on the event loop.
Wait = Callable[[Connection, Callable[[], object]], None]


@pytest.fixture(params=["drain_events", "event loop"])
def wait(request: pytest.FixtureRequest) -> Wait:
    if request.param == "drain_events":
        return drain
    loops: dict[Connection, Iterator[object]] = {}

    def run(connection: Connection, until: Callable[[], object]) -> None:
        if connection not in loops:
            loops[connection] = event_loop(connection)
        turn(loops[connection], until)

    return run


def other_primary(cluster: Cluster, node: Node) -> Node:
    return next(other for other in cluster.primaries if other is not node)


def held(site: Site) -> int:
    return sum(site.redis.hlen(key) for key in site.all_keys("*:unacked:*"))


def takes(cluster: Cluster) -> int:
    """How many scripts have run."""
    stats = [node.info("commandstats").get("cmdstat_evalsha", {"calls": 0}) for node in cluster.primaries]
    return sum(each["calls"] for each in stats)


class TestManySlots:
    def test_the_queues_of_these_tests_are(self, cluster: Cluster) -> None:
        assert len(set(map(slot_of, QUEUES))) == len(QUEUES)
        assert len(set(map(cluster.node_of, QUEUES))) == 3

    @pytest.mark.parametrize("prefetch", [1, 5])
    def test_one_prefetch_count_for_all(self, cluster_site: Site, wait: Wait, prefetch: int) -> None:
        channel = cluster_site.channel()
        for queue in QUEUES:
            publish(channel, *(f"{queue} {number}" for number in range(4)), queue=queue)
        most = 0

        def ack(message: virtual.Message) -> None:
            nonlocal most
            most = max(most, held(cluster_site))
            if len(inbox) % prefetch == 0:
                for each in inbox.messages[-prefetch:]:
                    each.ack()

        inbox = Inbox(channel, *QUEUES, prefetch=prefetch, on_message=ack)
        wait(channel.connection.client, lambda: len(inbox) >= 4 * len(QUEUES) // prefetch * prefetch)
        assert 0 < most <= prefetch
        bodies = inbox.bodies
        assert len(set(bodies)) == len(bodies)
        # In order within each queue.
        for queue in QUEUES:
            of_queue = [body for body in bodies if body.startswith(queue)]
            assert of_queue == sorted(of_queue)

    def test_tags_are_those_of_one_message(self, cluster_site: Site) -> None:
        channel = cluster_site.channel()
        for queue in QUEUES:
            publish(channel, "0", "1", queue=queue)
        inbox = Inbox(channel, *QUEUES)
        drain(channel.connection.client, lambda: len(inbox) == 2 * len(QUEUES))
        assert len({message.delivery_tag for message in inbox}) == 2 * len(QUEUES)
        for message in inbox.messages[::2]:
            message.ack()
        channel.consumer.confirm_acks()
        assert held(cluster_site) == len(QUEUES)
        channel.close()
        assert sum(map(cluster_site.ready, QUEUES)) == len(QUEUES)

    def test_priorities_count_within_a_queue(self, cluster_site: Site) -> None:
        channel = cluster_site.channel()
        for priority in (9, 6, 3, 0):
            for queue in QUEUES:
                publish(channel, f"{queue} {priority}", queue=queue, priority=priority)
        inbox = Inbox(channel, *QUEUES, prefetch=1, on_message=virtual.Message.ack)
        drain(channel.connection.client, lambda: len(inbox) == 4 * len(QUEUES))
        for queue in QUEUES:
            of_queue = [body for body in inbox.bodies if body.startswith(queue)]
            assert of_queue == sorted(of_queue)

    def test_each_is_woken(self, cluster_site: Site, wait: Wait) -> None:
        channel, other = cluster_site.channel(), cluster_site.channel()
        inbox = Inbox(channel, *QUEUES, prefetch=3, on_message=virtual.Message.ack)
        wait(channel.connection.client, lambda: waits(channel))
        for count, queue in enumerate(QUEUES, 1):
            publish(other, queue, queue=queue)
            wait(channel.connection.client, lambda count=count: len(inbox) == count)  # type: ignore[misc]
        assert inbox.bodies == QUEUES

    def test_queues_that_are_cancelled_and_consumed_again(self, cluster_site: Site, wait: Wait) -> None:
        channel, other = cluster_site.channel(), cluster_site.channel()
        inbox = Inbox(channel, *QUEUES, on_message=virtual.Message.ack)
        wait(channel.connection.client, lambda: waits(channel))
        for queue in QUEUES[::2]:
            inbox.consumer.cancel_by_queue(queue)
        for queue in QUEUES:
            publish(other, queue, queue=queue)
        wait(channel.connection.client, lambda: len(inbox) == len(QUEUES[1::2]))
        assert sorted(inbox.bodies) == QUEUES[1::2]
        assert len(channel.intake.fetchers) == len(QUEUES[1::2])
        for queue in QUEUES[::2]:
            inbox.consumer.add_queue(Queue(queue))
        inbox.consumer.consume()
        wait(channel.connection.client, lambda: len(inbox) == len(QUEUES))
        assert sorted(inbox.bodies) == QUEUES

    def test_it_leaves_none_of_many(self, cluster_site: Site, wait: Wait) -> None:
        """A request is about the queues of one slot. The others are in use nevertheless."""
        queues = [f"q{number}" for number in range(MOST_LEFT + 20)]
        channel, other = cluster_site.channel(), cluster_site.channel()
        inbox = Inbox(channel, *queues, on_message=virtual.Message.ack)
        joined = partial(cluster_site.all_keys, "redisdelay:*:consumers")
        wait(channel.connection.client, lambda: len(joined()) == len(queues))
        for count, queue in enumerate([*queues[-10:], *queues[:10]], 1):
            publish(other, "m", queue=queue)
            wait(channel.connection.client, lambda count=count: len(inbox) == count)  # type: ignore[misc]
            channel.consumer.confirm_acks()
            assert len(joined()) == len(queues)

    def test_asking_all_of_many_costs_few_takes(self, cluster_site: Site, cluster: Cluster) -> None:
        """There is room for the messages of one or two of them at a time. The others do not ask in vain."""
        queues, each, prefetch = [f"q{number}" for number in range(60)], 10, 8
        channel, other = cluster_site.channel(), cluster_site.channel()
        for queue in queues:
            publish(other, *["m"] * each, queue=queue)
        loop = event_loop(channel.connection.client)
        before = takes(cluster)
        inbox = Inbox(channel, *queues, prefetch=prefetch)
        acked = 0
        while acked < each * len(queues):
            turn(loop, lambda: len(inbox) > acked)  # noqa: B023
            # As tasks end: later, one after the other.
            inbox.messages[acked].ack()
            acked += 1
        # About one a message; two on a busy machine, for which a pause of a millisecond is over soon. If each
        # asks in vain, it is eight.
        assert takes(cluster) - before < 4 * acked


class TestSlotsThatMove:
    def test_while_it_consumes(self, cluster_site: Site, cluster: Cluster, wait: Wait) -> None:
        channel, other = cluster_site.channel(), cluster_site.channel()
        count = 0
        inbox = Inbox(channel, *QUEUES[:3], prefetch=4, on_message=virtual.Message.ack)

        def publish_some() -> None:
            nonlocal count
            for queue in QUEUES[:3]:
                publish(other, *map(str, range(count, count + 4)), queue=queue)
                publish(other, str(count + 4), queue=queue, headers={"x-delay": 20})
                count += 5

        def wait_for(messages: int) -> None:
            wait(channel.connection.client, lambda: len(inbox) >= messages)

        publish_some()
        wait_for(5)
        source = cluster.node_of(QUEUES[0])
        with cluster.moving(slot_of(QUEUES[0]), to=other_primary(cluster, source)) as move:
            # The other queues go on meanwhile.
            move.move_keys(1)
            for queue in QUEUES[1:3]:
                publish(other, *map(str, range(count, count + 4)), queue=queue)
                count += 4
            before = len(inbox)
            wait_for(before + 4)
        publish_some()
        wait_for(count)
        assert Counter(inbox.bodies) == Counter(map(str, range(count)))
        channel.consumer.confirm_acks()
        assert held(cluster_site) == 0

    def test_while_it_waits(self, cluster_site: Site, cluster: Cluster, wait: Wait) -> None:
        channel, other = cluster_site.channel(), cluster_site.channel()
        inbox = Inbox(channel, "q", prefetch=4, on_message=virtual.Message.ack)
        wait(channel.connection.client, lambda: waits(channel))
        with cluster.moving(slot_of("q"), to=other_primary(cluster, cluster.node_of("q"))):
            pass
        publish(other, "a")
        wait(channel.connection.client, lambda: inbox)
        publish(other, "b", "c")
        wait(channel.connection.client, lambda: len(inbox) == 3)
        assert inbox.bodies == ["a", "b", "c"]

    def test_while_messages_are_held(self, cluster_site: Site, cluster: Cluster, wait: Wait) -> None:
        channel = cluster_site.channel()
        publish(channel, *"abcdef")
        inbox = Inbox(channel, "q", prefetch=3)
        wait(channel.connection.client, lambda: len(inbox) == 3)
        with cluster.moving(slot_of("q"), to=other_primary(cluster, cluster.node_of("q"))) as move:
            for message in inbox.messages[:2]:
                message.ack()
            move.move_keys(1)
        inbox.messages[2].requeue()
        wait(channel.connection.client, lambda: len(inbox) == 6)
        assert inbox.bodies == [*"abcdef"]
        for message in inbox.messages[3:]:
            message.ack()
        wait(channel.connection.client, lambda: len(inbox) == 7)
        assert inbox.bodies[6] == "c"

    def test_a_channel_that_closes_meanwhile(self, cluster_site: Site, cluster: Cluster) -> None:
        channel = cluster_site.channel()
        publish(channel, *"abc")
        inbox = Inbox(channel, "q")
        drain(channel.connection.client, lambda: len(inbox) == 3)
        with cluster.moving(slot_of("q"), to=other_primary(cluster, cluster.node_of("q"))):
            pass
        channel.close()
        assert cluster_site.ready() == 3


class TestPrefix:
    @pytest.mark.parametrize("prefix", ["app:", "{app}", "app:{x}:"])
    def test_everything_is_behind_it(self, cluster_site: Site, prefix: str) -> None:
        channel = cluster_site.channel(global_keyprefix=prefix)
        everybody, named = Exchange("everybody", "fanout"), Exchange("named", "topic")
        other = cluster_site.channel(global_keyprefix=prefix)
        listener = Inbox(other, Queue("mine", everybody, auto_delete=True))
        drain(other.connection.client, cluster_site.listeners)
        inbox = Inbox(channel, *QUEUES[:3], Queue("bound", named, "a.*"))
        for queue in QUEUES[:3]:
            publish(channel, "now", queue=queue)
            publish(channel, "later", queue=queue, headers={"x-delay": 10})
        publish(channel, "bound", exchange=named, routing_key="a.b")
        publish(channel, "heard", exchange=everybody, queue="")
        drain(channel.connection.client, lambda: len(inbox) == 7)
        drain(other.connection.client, lambda: listener)
        assert all(key.startswith(prefix.encode()) for key in cluster_site.all_keys())
        assert len(channel.intake.fetchers) == (4 if prefix == "app:" else 1)

    @pytest.mark.parametrize("prefix", ["{", "{}", "a{b"])
    def test_one_that_would_divide_a_queue(self, cluster_site: Site, prefix: str) -> None:
        with pytest.raises(ValueError, match="global_keyprefix"):
            cluster_site.channel(global_keyprefix=prefix)


class TestWrongUse:
    def opens(self, url: str) -> Any:
        with Connection(url) as connection:
            return connection.channel()

    def test_another_database(self, cluster: Cluster) -> None:
        with pytest.raises(ValueError, match="only database 0") as raised:
            self.opens(f"redisdelay-cluster://{cluster.addresses[0]}/1")
        assert raised.value.__context__ is None, "no other error is shown"

    def test_a_single_server(self, server: RedisServer) -> None:
        with pytest.raises(ValueError, match=r"not a server of a cluster: .* redisdelay://"):
            self.opens(server.url("redisdelay-cluster"))

    def test_a_server_of_a_cluster_as_a_single_one(self, cluster: Cluster) -> None:
        connection = Connection(f"redisdelay://{cluster.addresses[0]}")
        with pytest.raises(ValueError, match="redisdelay-cluster://"):
            connection.connect()

    def test_by_a_user_that_may_not_ask(self, cluster: Cluster) -> None:
        cluster.everywhere("ACL", "SETUSER", "shop", "on", ">secret", "~*", "&*", "+@all", "-info")
        try:
            connection = Connection(f"redisdelay://shop:secret@{cluster.addresses[0]}")
            with pytest.raises(ValueError, match="redisdelay-cluster://"):
                connection.connect()
        finally:
            cluster.everywhere("ACL", "DELUSER", "shop")

    @pytest.mark.parametrize(
        ("kind", "error", "said"),
        [
            ("unknown-endpoint", ValueError, "CONFIG SET cluster-preferred-endpoint-type ip"),
            ("hostname", OperationalError, "set its cluster-announce-hostname"),
        ],
    )
    def test_a_cluster_that_does_not_tell_its_addresses(
        self, cluster: Cluster, kind: str, error: type[Exception], said: str
    ) -> None:
        setting = "cluster-preferred-endpoint-type"
        if not cluster.nodes[0].call("CONFIG", "GET", setting):
            pytest.skip("this server always tells addresses")
        cluster.everywhere("CONFIG", "SET", setting, kind)
        try:
            for urls in (cluster.url(), cluster.url().partition(";")[0]):
                with Connection(urls) as connection, pytest.raises(error, match=said):
                    connection.ensure_connection(max_retries=1, interval_start=0)
        finally:
            cluster.everywhere("CONFIG", "SET", setting, "ip")
