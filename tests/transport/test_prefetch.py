"""The prefetch count, honoured exactly."""

from __future__ import annotations

import pytest

from tests.transport.kit import Inbox, Site, drain, drain_for, publish


@pytest.mark.parametrize("max_batch", [1, 3, 64])
@pytest.mark.parametrize("prefetch", [1, 4])
def test_never_more_and_never_fewer(site: Site, prefetch: int, max_batch: int) -> None:
    channel = site.channel(max_batch=max_batch)
    publish(channel, *map(str, range(12)))
    inbox = Inbox(channel, prefetch=prefetch)
    connection = channel.connection.client
    for acked in range(12 - prefetch):
        drain(connection, lambda acked=acked: len(inbox) == acked + prefetch)  # type: ignore[misc]
        assert site.unacked() == prefetch
        assert site.ready() == 12 - prefetch - acked
        if acked in (0, 5):
            drain_for(connection, 0.1)
            assert len(inbox) == acked + prefetch
        inbox.messages[acked].ack()
    drain(connection, lambda: len(inbox) == 12)
    assert inbox.bodies == [str(n) for n in range(12)]
    assert (site.ready(), site.unacked()) == (0, prefetch)


def test_unlimited(site: Site) -> None:
    channel = site.channel(max_batch=7)
    publish(channel, *map(str, range(100)))
    inbox = Inbox(channel, prefetch=0)
    drain(channel.connection.client, lambda: len(inbox) == 100)


def test_taken_and_not_yet_delivered_counts(site: Site) -> None:
    channel = site.channel()
    publish(channel, *map(str, range(10)))
    inbox = Inbox(channel, prefetch=4)
    channel.connection.client.drain_events(timeout=5)
    assert len(inbox) == 1
    assert site.unacked() == 4
    inbox.messages[0].ack()
    channel.connection.client.drain_events(timeout=5)
    assert site.unacked() <= 4


def test_what_is_not_delivered_yet_counts_in_every_take(site: Site) -> None:
    """A wake-up and an alarm may come in one turn of the loop."""
    channel = site.channel()
    publish(channel, *map(str, range(10)))
    inbox = Inbox(channel, prefetch=4)
    [fetcher] = channel.intake.fetchers
    channel.intake.take(fetcher)
    channel.intake.take(fetcher)
    assert (len(inbox), site.unacked(), site.ready()) == (0, 4, 6)


@pytest.mark.parametrize("requeue", [True, False])
def test_rejected_gives_credit_back(site: Site, requeue: bool) -> None:
    channel = site.channel()
    publish(channel, "a", "b", "c")
    inbox = Inbox(channel, prefetch=1)
    connection = channel.connection.client
    for count in range(1, 4):
        drain(connection, lambda count=count: len(inbox) == count)  # type: ignore[misc]
        inbox.messages[-1].reject(requeue=requeue)
    if requeue:
        drain(connection, lambda: len(inbox) == 4)
        assert inbox.bodies == ["a", "b", "c", "a"]
        drain_for(connection, 0.1)
        assert len(inbox) == 4


def test_raised_while_waiting(site: Site) -> None:
    channel = site.channel()
    publish(channel, *map(str, range(5)))
    inbox = Inbox(channel, prefetch=1)
    connection = channel.connection.client
    drain(connection, lambda: len(inbox) == 1)
    channel.basic_qos(0, 3, False)
    drain(connection, lambda: len(inbox) == 3)
    drain_for(connection, 0.1)
    assert len(inbox) == 3


def test_two_channels_of_a_connection_share_a_queue(site: Site) -> None:
    connection = site.connect()
    one, two = connection.channel(), connection.channel()
    publish(one, *map(str, range(20)))
    inboxes = [Inbox(one, prefetch=2), Inbox(two, prefetch=3)]
    drain(connection, lambda: [len(inbox) for inbox in inboxes] == [2, 3])
    drain_for(connection, 0.1)
    assert [len(inbox) for inbox in inboxes] == [2, 3]
    assert site.unacked() == 5
    for _ in range(15):
        inboxes[0].messages[-1].ack()
        before = len(inboxes[0])
        drain(connection, lambda before=before: len(inboxes[0]) == before + 1)  # type: ignore[misc]
    assert sorted(inboxes[0].bodies + inboxes[1].bodies, key=int) == [str(n) for n in range(20)]


def test_channels_of_a_connection_have_queues_of_their_own(site: Site) -> None:
    connection = site.connect()
    one, two = connection.channel(), connection.channel()
    publish(one, "a", queue="a")
    publish(one, "b", queue="b")
    inboxes = [Inbox(one, "a"), Inbox(two, "b")]
    drain(connection, lambda: all(inboxes))
    assert [inbox.bodies for inbox in inboxes] == [["a"], ["b"]]


def test_replaced_can_consume_decides_message_by_message(site: Site) -> None:
    """What Celery's worker_disable_prefetch does."""
    channel = site.channel()
    publish(channel, *map(str, range(5)))
    inbox = Inbox(channel)
    channel.qos.can_consume = lambda: len(inbox) < 2
    connection = channel.connection.client
    drain(connection, lambda: len(inbox) == 2)
    drain_for(connection, 0.1)
    assert (len(inbox), site.unacked(), site.ready()) == (2, 2, 3)


@pytest.mark.usefixtures("long_polls")
def test_without_credit_due_messages_go_to_whoever_has_some(site: Site) -> None:
    full, idle = site.channel(), site.channel()
    publish(full, "first")
    inbox = Inbox(full, prefetch=1)
    drain(full.connection.client, lambda: len(inbox) == 1)
    other = Inbox(idle)
    drain_for(idle.connection.client, 0.1)
    publish(full, "second", headers={"x-delay": 200})
    drain(idle.connection.client, lambda: len(other) == 1)
    assert other.bodies == ["second"]


def test_a_message_that_failed_again_and_again_is_not_held_alone(site: Site) -> None:
    """What has failed is known, so nothing else needs to wait for it."""
    channel = site.channel(retry_wait=0)
    connection = channel.connection.client
    publish(channel, "poison")
    for _ in range(5):
        channel.basic_get("q").requeue()
    publish(channel, "a", "b")
    inbox = Inbox(channel)
    drain(connection, lambda: len(inbox) == 3)
    assert inbox.bodies == ["poison", "a", "b"]
    assert inbox.messages[0].headers["x-delivery-count"] == 5
