"""Which queues are known because something was published to them, though nobody consumes from them."""

from __future__ import annotations

from typing import Any

import pytest
from celery import Celery
from kombu import pools
from kombu.entity import Exchange, Queue

from kombu_redisdelay import Messages, batch
from kombu_redisdelay.broker.keys import known_queues
from kombu_redisdelay.broker.known_queues import UNUSED_FOR, forget_unused
from kombu_redisdelay.broker.portions import finish
from tests.transport.kit import Inbox, Site, drain, look_after_queues, publish


@pytest.fixture(autouse=True)
def fresh_producers() -> None:
    # Celery's producers are kombu's, which outlive an app, and believe to have noted their queues.
    pools.reset()


def known(site: Site, prefix: str = "") -> set[str]:
    return {name.decode() for name in site.redis.zrange(known_queues(prefix), 0, -1)}


def declared(channel: Any, name: str = "q", **options: Any) -> Queue:
    queue = Queue(name, Exchange("e"), routing_key=name, **options)(channel)
    queue.declare()
    return queue


class TestATask:
    def test_its_queue_is_known(self, site: Site, app: Celery) -> None:
        app.send_task("shop.close", queue="tpyo")
        assert known(site) == {"tpyo"}
        with Messages(site.url) as queues:
            assert queues.queues() == ["tpyo"]
            assert queues.count() == 1

    def test_in_a_batch(self, site: Site, app: Celery) -> None:
        with batch(app):
            app.send_task("shop.close", queue="one")
            app.send_task("shop.close", queue="two", countdown=60)
        assert known(site) == {"one", "two"}

    def test_in_a_batch_over_another_connection_than_the_one_that_has_declared_it(
        self, site: Site, app: Celery
    ) -> None:
        with batch(app):
            app.send_task("shop.close", queue="one")
            with app.producer_pool.acquire(block=True):
                app.send_task("shop.close", queue="two")
        assert known(site) == {"one", "two"}


class TestAMessage:
    def test_through_an_exchange(self, site: Site) -> None:
        channel = site.channel()
        declared(channel)
        for _ in range(2):
            publish(channel, "a", exchange="e")
        assert known(site) == {"q"}

    def test_through_another_channel_of_the_connection(self, site: Site) -> None:
        connection = site.connect()
        declared(connection.channel())
        publish(connection.channel(), "a")
        assert known(site) == {"q"}

    def test_through_a_batch_of_a_producer(self, site: Site) -> None:
        channel = site.channel()
        declared(channel)
        producer_batch = channel.create_publish_batch(10)
        producer_batch.publish(channel.prepare_message("a"), exchange="", routing_key="q")
        assert known(site) == set()
        producer_batch.flush()
        assert known(site) == {"q"}

    def test_behind_a_prefix(self, site: Site) -> None:
        prefix = "{shop}" if site.cluster is None else "shop:"
        channel = site.channel(global_keyprefix=prefix)
        declared(channel)
        publish(channel, "a")
        assert known(site, prefix) == {"q"}

    def test_of_a_queue_with_partitions(self, site: Site) -> None:
        channel = site.channel(partitions={"q": 2})
        declared(channel)
        for number in range(20):
            publish(channel, str(number))
        assert known(site) == {"q", "q#1"}

    def test_again_when_it_was_forgotten(self, site: Site) -> None:
        channel = site.channel()
        declared(channel)
        publish(channel, "a")
        site.redis.delete(known_queues(""))
        channel.store.known_until["q"] = 0
        publish(channel, "b")
        assert known(site) == {"q"}

    def test_costs_nothing_more_the_second_time(self, site: Site) -> None:
        channel = site.channel()
        declared(channel)
        publish(channel, "a")
        site.redis.delete(known_queues(""))
        publish(channel, "b")
        assert known(site) == set()

    def test_is_published_though_the_queue_cannot_be_noted(self, site: Site) -> None:
        site.redis.set(known_queues(""), "no zset")
        channel = site.channel()
        declared(channel)
        publish(channel, "a")
        assert site.ready() == 1


class TestNotKnown:
    def test_declared_and_never_used(self, site: Site) -> None:
        declared(site.channel())
        assert known(site) == set()

    def test_deleted_when_nobody_consumes(self, site: Site) -> None:
        channel = site.channel()
        declared(channel, auto_delete=True)
        publish(channel, "a")
        assert known(site) == set()

    def test_declared_by_another_program(self, site: Site) -> None:
        """As that of a reply."""
        declared(site.channel())
        publish(site.channel(), "a")
        assert known(site) == set()

    def test_of_remote_control(self, site: Site, app: Celery) -> None:
        app.control.ping(timeout=0.1)
        with app.events.default_dispatcher() as dispatcher:
            dispatcher.send("worker-online")
        assert known(site) == set()

    @pytest.mark.parametrize("no_ack", [True, False])
    @pytest.mark.parametrize("partitions", [{}, {"replies": 2}])
    def test_deleted_with_its_consumer_while_it_is_maintained(
        self, site: Site, no_ack: bool, partitions: dict[str, int]
    ) -> None:
        """As after a ping: kombu forgets what it deletes, and the round of maintenance has not ended."""
        channel = site.channel(partitions=partitions)
        Inbox(channel, "orders")
        replies = Queue("replies", Exchange("replies", "direct"), "replies", auto_delete=True)
        asking = Inbox(channel, replies, no_ack=no_ack)
        while not channel._maintenance:
            channel.look_after_queues()
        assert channel.look_after_queues()
        asking.consumer.cancel()
        channel.after_reply_message_received("replies")
        while channel.look_after_queues():
            pass
        assert known(site) == {"orders"}

    def test_where_results_of_rpc_are_waited_for(self, site: Site) -> None:
        channel = site.channel()
        results = Queue("results of a process", queue_arguments={"x-expires": 60_000})
        Inbox(channel, results, no_ack=True)
        Inbox(channel, "orders", no_ack=True)
        look_after_queues(channel)
        assert known(site) == {"orders"}

    @pytest.mark.one_server
    def test_of_a_ping_costs_no_look(self, site: Site) -> None:
        channel = site.channel()
        replies = Queue("replies", Exchange("replies", "direct"), "replies", auto_delete=True)
        asking = Inbox(channel, replies, no_ack=True)
        publish(channel, "pong", queue="replies")
        drain(channel.connection.client, lambda: len(asking) == 1)
        site.redis.config_resetstat()
        assert not channel.look_after_queues()
        # Redis 6.2 does not tell subcommands apart.
        ours = {"cmdstat_config|resetstat", "cmdstat_config", "cmdstat_info"}
        assert set(site.redis.info("commandstats")) <= ours

    def test_of_results(self, site: Site) -> None:
        app = Celery("replies", broker=site.url, backend="rpc://", set_as_current=False)
        app.send_task("shop.close", queue="q")
        assert known(site) == {"q"}
        app.close()

    def test_deleted(self, site: Site) -> None:
        channel = site.channel()
        queue = declared(channel)
        queue.delete()
        publish(channel, "a")
        assert known(site) == set()


@pytest.mark.one_server
class TestForgotten:
    def test_when_it_is_empty(self, site: Site) -> None:
        channel = site.channel()
        declared(channel)
        publish(channel, "a")
        self.age(site)
        self.tidy(channel)
        assert known(site) == {"q"}
        channel.queue_purge("q")
        self.age(site)
        self.tidy(channel)
        assert known(site) == set()

    def age(self, site: Site) -> None:
        site.redis.zincrby(known_queues(""), -1000 * UNUSED_FOR - 1000, "q")

    def tidy(self, channel: Any) -> None:
        # Another process, which has noted nothing.
        store = channel.store.with_own_connections(socket_timeout=5)
        finish(forget_unused(store))
        store.disconnect()
