"""Declare, count, purge, delete, expire; keys under a prefix."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
from kombu.entity import Exchange, Queue
from kombu.exceptions import ChannelError

from kombu_redisdelay.broker.delivery import Acks, Request, Tags
from kombu_redisdelay.broker.fair_keys import PLAIN, StoredKeyLimits
from kombu_redisdelay.broker.lease import Membership
from kombu_redisdelay.broker.limits import FairQueues
from kombu_redisdelay.broker.takes import Takes
from kombu_redisdelay.transport.slot_fetcher import SlotFetcher
from tests.transport.kit import Inbox, Site, drain, drain_for, publish

LATER = {"x-delay": 60_000}


def bound(channel: Any, name: str = "q") -> Queue:
    queue = Queue(name, Exchange("e"), routing_key=name)(channel)
    queue.declare()
    return queue


class TestPassiveDeclare:
    def test_not_found(self, site: Site) -> None:
        with pytest.raises(ChannelError, match="NOT_FOUND"):
            site.channel().queue_declare("q", passive=True)

    @pytest.mark.parametrize("headers", [{}, LATER])
    def test_counts_what_is_ready(self, site: Site, headers: dict[str, int]) -> None:
        channel = site.channel()
        publish(channel, "a", headers=headers)
        assert channel.queue_declare("q", passive=True).message_count == (0 if headers else 1)

    def test_unacked_is_enough(self, site: Site) -> None:
        channel = site.channel()
        publish(channel, "a")
        channel.basic_get("q")
        assert channel.queue_declare("q", passive=True).message_count == 0


def test_purge_counts_ready_and_scheduled(site: Site) -> None:
    channel = site.channel()
    publish(channel, "a", "b")
    publish(channel, "c", priority=9)
    publish(channel, "d", headers=LATER)
    assert channel.queue_purge("q") == 4
    assert (site.ready(), site.scheduled()) == (0, 0)


class TestDelete:
    @pytest.mark.parametrize("headers", [{}, LATER])
    def test_takes_the_messages_along(self, site: Site, headers: dict[str, int]) -> None:
        channel = site.channel()
        queue = bound(channel)
        publish(channel, "a", headers=headers)
        queue.delete()
        assert (site.ready(), site.scheduled()) == (0, 0)
        assert site.redis.exists(site.keys().messages, site.bindings("e")) == 0

    @pytest.mark.parametrize("headers", [{}, LATER])
    def test_if_empty(self, site: Site, headers: dict[str, int]) -> None:
        channel = site.channel()
        queue = bound(channel)
        publish(channel, "a", headers=headers)
        queue.delete(if_empty=True)
        assert site.ready() + site.scheduled() == 1
        channel.queue_purge("q")
        queue.delete(if_empty=True)
        assert site.redis.exists(site.bindings("e")) == 0

    def test_auto_delete_reply_queue(self, site: Site) -> None:
        channel = site.channel()
        queue = Queue("reply", Exchange("e"), routing_key="reply", auto_delete=True)
        inbox = Inbox(channel, queue)
        publish(channel, "a", exchange="e", queue="reply")
        drain(channel.connection.client, lambda: len(inbox) == 1)
        channel.after_reply_message_received("reply")
        assert site.redis.exists(site.keys("reply").ready, site.bindings("e")) == 0


def test_nothing_of_a_deleted_queue_is_delivered(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    channel = site.channel()
    deleted, other = bound(channel, "q"), bound(channel, "other")
    publish(channel, *"abc", exchange="e")
    publish(channel, "of another queue", exchange="e", queue="other")
    inbox = Inbox(channel, deleted, other, prefetch=4)
    drain(channel.connection.client, lambda: len(inbox) == 1)
    deleted.delete()
    drain_for(channel.connection.client, 0.05)
    assert inbox.bodies == ["a", "of another queue"]
    for message in inbox:
        message.ack()
    channel.consumer.confirm_acks()
    assert not caplog.records


def test_a_deleted_queue_does_not_come_back(site: Site) -> None:
    """As the heartbeat of a channel that consumed it would have it."""
    channel = site.channel(visibility_timeout=0.15)
    queue = Queue("reply", Exchange("e"), routing_key="reply")
    inbox = Inbox(channel, queue)
    publish(channel, "a", exchange="e", queue="reply")
    drain(channel.connection.client, lambda: len(inbox) == 1)
    inbox.messages[0].ack()
    inbox.consumer.cancel()
    queue(channel).delete()
    # Several heartbeats.
    drain_for(channel.connection.client, 0.3)
    assert site.all_keys("redisdelay:{reply}:*") == []
    with pytest.raises(ChannelError, match="NOT_FOUND"):
        channel.queue_declare("reply", passive=True)


def test_a_take_that_comes_late_lists_no_consumer_that_has_left(site: Site) -> None:
    """Redis was busy, say, and does the take after the consumer has left the queue."""
    channel = site.channel()
    inbox = Inbox(channel)
    publish(channel, "a")
    drain(channel.connection.client, lambda: len(inbox) == 1)
    inbox.messages[0].ack()
    inbox.consumer.cancel()

    def settle() -> None:
        channel.intake._confirmed_at = 0.0
        channel.intake.settle()

    settle()
    store, name, keys = channel.store, channel.consumer.name, site.keys()
    assert site.redis.zcard(keys.consumers) == 0
    lease = channel.consumer._lease
    late = Takes(
        *(store, name, channel.options, Tags(), Membership(store, name, lease, ())),
        Acks(store, name),
    )
    publish(channel, "b")
    taken = late.take(Request(["q"], 1))
    lease.uncover(keys)
    assert site.redis.zcard(keys.consumers) == 1
    fetcher = SlotFetcher(late, channel.intake.consumed, channel._queue_cycle)
    channel.intake._keep(fetcher, taken)
    settle()
    assert (site.redis.zcard(keys.consumers), site.ready(), site.unacked()) == (0, 1, 0)


def test_what_was_used_of_the_rates_of_keys_goes_with_a_queue(site: Site) -> None:
    channel = site.channel()
    queue = bound(channel, "q")
    fair = FairQueues(channel.store)
    fair.switch_on(["q"])
    fair.limit(["q"], StoredKeyLimits(interval_us=60_000_000, burst=1))
    for _ in range(2):
        publish(channel, "a", exchange="e", headers={"x-key": "tenant"})
    assert channel.basic_get("q") is not None
    assert site.redis.exists(site.keys("q").rate_clocks)
    queue.delete()
    # The limits are an operator's.
    assert site.all_keys("redisdelay:{q}:*") == [site.keys("q").limits.encode()]


def test_x_expires(site: Site) -> None:
    channel = site.channel()
    Queue("q", Exchange("e"), routing_key="q", queue_arguments={"x-expires": 50_000})(channel).declare()
    publish(channel, "a", "b", exchange="e")
    publish(channel, "c", exchange="e", headers=LATER)
    k = site.keys()
    assert all(0 < site.redis.pttl(key) <= 50_000 for key in (k.ready, k.schedule, k.messages, k.wake))
    site.redis.pexpire(k.ready, 25_000)
    assert channel.basic_get("q").payload == "a"
    assert site.redis.pttl(k.ready) > 25_000


def test_every_key_is_behind_the_prefix(site: Site) -> None:
    channel = site.channel(global_keyprefix="app:")
    bound(channel)
    publish(channel, "a", "b", exchange="e")
    publish(channel, "c", exchange="e", headers=LATER)
    inbox = Inbox(channel, Queue("q", Exchange("e"), routing_key="q"), prefetch=2)
    drain(channel.connection.client, lambda: len(inbox) == 2)
    assert all(key.startswith(b"app:") for key in site.all_keys())
    assert site.all_keys("app:redisdelay:{q}:unacked:*")
    inbox.messages[0].ack()
    inbox.messages[1].requeue()
    channel.close()
    assert site.redis.llen(site.keys(prefix="app:").ready) == 1
    assert all(key.startswith(b"app:") for key in site.all_keys())


class TestFair:
    FAIR: ClassVar = {"x-fair": True}

    def test_a_queue_is_made_fair(self, site: Site) -> None:
        channel = site.channel()
        channel.queue_declare("q", arguments=self.FAIR)
        channel.queue_declare("plain")
        store = channel.store
        assert FairQueues(store).states(["q", "plain"]) == ["on", ""]
        # What is fair stays so.
        channel.queue_declare("q")
        assert FairQueues(store).states(["q"]) == ["on"]

    def test_what_is_ready_is_counted_in_one_packet(
        self, site: Site, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        channel = site.channel()
        publish(channel, "a")
        channel.queue_declare("q", passive=True)
        server = channel.store.server
        call, sent = server.call_all, []

        def call_all(*commands: Any) -> Any:
            sent.append([name for name, *_ in commands])
            return call(*commands)

        monkeypatch.setattr(server, "call_all", call_all)
        # Kombu's own question would be a second one.
        monkeypatch.delattr("kombu.transport.redis.Channel._size")
        assert channel._size("q") == 1
        assert sent == [["LLEN"] * 4 + ["HMGET"]]

    def test_again_it_costs_one_round_trip(self, site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
        channel = site.channel()
        channel.queue_declare("q", arguments=self.FAIR)
        server = channel.store.server
        call, sent = server.call_all, []

        def call_all(*commands: Any) -> Any:
            sent.append(commands)
            return call(*commands)

        monkeypatch.setattr(server, "call_all", call_all)
        channel._new_queue("q", arguments=self.FAIR)
        assert len(sent) == 1
        channel._new_queue("plain")
        assert len(sent) == 1

    def test_each_partition(self, site: Site) -> None:
        channel = site.channel(partitions={"q": 2})
        channel.queue_declare("q", arguments=self.FAIR)
        assert FairQueues(channel.store).states(channel.store.partitions.names("q")) == ["on", "on"]

    def test_switched_on_and_off_under_load(self, site: Site) -> None:
        channels = [site.channel() for _ in range(2)]
        fair = FairQueues(channels[0].store)
        inboxes = [Inbox(each, prefetch=3, on_message=lambda message: message.ack()) for each in channels]
        published: list[str] = []

        def wait_until_received(number: int) -> None:
            for _ in channels:
                channels.reverse()
                drain(channels[0].connection.client, lambda: sum(map(len, inboxes)) >= number, each=0.002)

        for number in range(100):
            some = [f"{number} {each}" for each in range(4)]
            for body in some:
                publish(channels[0], body, headers={"x-key": body[-1]})
            published += some
            (fair.switch_off if number % 2 else fair.switch_on)(["q"])
            # Some are left for the next one.
            wait_until_received(len(published) - 6)
        wait_until_received(len(published))
        received = [body for inbox in inboxes for body in inbox.bodies]
        assert sorted(received) == sorted(published)
        drain(channels[0].connection.client, lambda: fair.states(["q"]) == [PLAIN])

    def test_not_with_x_expires(self, site: Site) -> None:
        channel = site.channel()
        with pytest.raises(ValueError, match=r"'q' .*'x-fair'.*'x-expires'"):
            channel.queue_declare("q", arguments={**self.FAIR, "x-expires": 50_000})
        assert FairQueues(channel.store).states(["q"]) == [""]
