"""Cancelled, closed, lost: what becomes of the messages."""

from __future__ import annotations

import gc
import logging
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import celery.worker.state
import gevent.exceptions
import pytest
from kombu.connection import Connection
from kombu.entity import Exchange, Queue
from kombu.transport.virtual.base import RESTORING_FMT
from redis.exceptions import ConnectionError as RedisConnectionError

from kombu_redisdelay.transport import orphan_keeper
from tests.transport.kit import PATIENCE, Inbox, Site, drain, drain_for, publish
from tools.harness.process import wait_until
from tools.harness.redis_server import RedisServer


class Changing(set[Any]):
    """Another thread adds something while it is read, for some time."""

    def __init__(self) -> None:
        super().__init__()
        self.left = 3

    def __iter__(self) -> Iterator[Any]:
        if self.left:
            self.left -= 1
            raise RuntimeError("Set changed size during iteration")
        return super().__iter__()


class Broken:
    """A request that cannot be read the first two times."""

    left = 2

    @property
    def message(self) -> None:
        if self.left:
            self.left -= 1
            raise ValueError("broken")


class TestCancel:
    def test_gives_what_was_not_delivered_back_unmarked(self, site: Site) -> None:
        channel = site.channel()
        publish(channel, *map(str, range(5)))
        inbox = Inbox(channel)
        channel.connection.client.drain_events(timeout=5)
        assert site.unacked() == 5
        inbox.consumer.cancel()
        assert (site.ready(), site.unacked()) == (4, 1)
        following = [channel.basic_get("q") for _ in range(4)]
        assert [message.payload for message in following] == ["1", "2", "3", "4"]
        assert not any("redelivered" in message.delivery_info for message in following)
        assert not any("x-delivery-count" in message.headers for message in following)
        inbox.messages[0].ack()

    def test_in_a_callback(self, site: Site) -> None:
        channel = site.channel()
        publish(channel, *map(str, range(5)))
        inbox = Inbox(channel, on_message=lambda message: inbox.consumer.cancel())
        connection = channel.connection.client
        drain(connection, lambda: len(inbox) >= 1)
        drain_for(connection, 0.1)
        assert (len(inbox), site.ready(), site.unacked()) == (1, 4, 1)

    def test_other_queues_are_consumed_on(self, site: Site) -> None:
        channel = site.channel()
        publish(channel, "a1", "a2", queue="a")
        publish(channel, "b1", "b2", queue="b")
        inbox = Inbox(channel, "a", "b")
        connection = channel.connection.client
        connection.drain_events(timeout=5)
        inbox.consumer.cancel_by_queue("a")
        drain(connection, lambda: {"b1", "b2"} <= set(inbox.bodies))
        drain_for(connection, 0.1)
        assert len(inbox) + site.ready("a") == 4

    def test_consumed_again(self, site: Site) -> None:
        channel = site.channel()
        inbox = Inbox(channel)
        connection = channel.connection.client
        drain_for(connection, 0.1)
        inbox.consumer.cancel()
        publish(channel, "a")
        drain_for(connection, 0.1)
        assert len(inbox) == 0
        inbox.consumer.consume()
        drain(connection, lambda: len(inbox) == 1)


class TestClose:
    def test_gives_everything_back_and_marks_what_was_delivered(self, site: Site) -> None:
        channel = site.channel()
        publish(channel, *map(str, range(4)))
        inbox = Inbox(channel)
        connection = channel.connection.client
        drain(connection, lambda: len(inbox) == 2)
        inbox.messages[0].ack()
        channel.close()
        assert (site.ready(), site.unacked()) == (3, 0)
        assert site.all_keys("*consumers*") == []
        other = site.channel()
        one, two, three = (other.basic_get("q") for _ in range(3))
        assert [one.payload, two.payload, three.payload] == ["1", "2", "3"]
        assert one.delivery_info["redelivered"] is True
        assert one.headers["x-delivery-count"] == 1
        assert "redelivered" not in two.delivery_info
        assert "x-delivery-count" not in three.headers

    def test_is_said_in_the_words_of_kombu(self, site: Site, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.INFO)
        channel = site.channel()
        publish(channel, *map(str, range(4)))
        inbox = Inbox(channel)
        drain(channel.connection.client, lambda: len(inbox) == 3)
        inbox.messages[0].ack()
        channel.close()
        channel.close()
        assert caplog.messages.count(RESTORING_FMT.format(2)) == 1
        assert "Restoring" not in caplog.text.replace(RESTORING_FMT.format(2), "")

    def test_is_not_said_of_nothing(self, site: Site, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.INFO)
        channel = site.channel()
        publish(channel, "a")
        inbox = Inbox(channel)
        drain(channel.connection.client, lambda: len(inbox) == 1)
        inbox.messages[0].ack()
        channel.close()
        assert "Restoring" not in caplog.text

    @pytest.mark.parametrize("how", ["connection", "with", "release"])
    def test_connection(self, site: Site, how: str) -> None:
        connection = site.connect()
        channel = connection.channel()
        publish(channel, "a")
        inbox = Inbox(channel)
        drain(connection, lambda: len(inbox) == 1)
        if how == "with":
            with connection:
                pass
        else:
            (connection.close if how == "connection" else connection.release)()
        assert (site.ready(), site.unacked()) == (1, 0)

    def test_never_buries(self, site: Site) -> None:
        for _ in range(3):
            channel = site.channel(delivery_limit=1)
            if not site.ready():
                publish(channel, "a")
            assert channel.basic_get("q") is not None
            channel.close()
        assert (site.ready(), site.dead()) == (1, [])

    def test_never_buries_for_an_error_of_a_program_that_is_no_worker(self, site: Site) -> None:
        # As in every process that has published a Celery task.
        assert celery.worker.state
        channel = site.channel(delivery_limit=1)
        publish(channel, "a")
        assert channel.basic_get("q") is not None
        try:
            raise ValueError("of the program")
        except ValueError:
            channel.close()
        assert (site.ready(), site.dead()) == (1, [])

    def test_in_a_callback(self, site: Site) -> None:
        channel = site.channel()
        connection = channel.connection.client
        publish(channel, *map(str, range(5)))
        Inbox(channel, on_message=lambda message: channel.close())
        drain(connection, lambda: channel.closed)
        drain_for(connection, 0.1)
        assert (site.ready(), site.unacked()) == (5, 0)

    def test_twice(self, site: Site) -> None:
        channel = site.channel()
        publish(channel, "a")
        channel.basic_get("q")
        channel.close()
        channel.close()
        assert site.ready() == 1

    def test_recover_gives_everything_back_and_goes_on(self, site: Site) -> None:
        channel = site.channel()
        publish(channel, "a", "b")
        inbox = Inbox(channel)
        connection = channel.connection.client
        drain(connection, lambda: len(inbox) == 2)
        channel.basic_recover(requeue=True)
        drain(connection, lambda: len(inbox) == 4)
        assert inbox.bodies == ["a", "b"] * 2
        assert [message.delivery_info.get("redelivered") for message in inbox] == [None, None, True, True]


class TestLostConnection:
    def test_acks_still_count_and_the_rest_waits_for_the_lease(self, site: Site) -> None:
        connection = site.connect()
        channel = connection.channel()
        publish(channel, "a", "b", "c")
        inbox = Inbox(channel)
        drain(connection, lambda: len(inbox) == 3)
        connection.collect()
        assert (site.ready(), site.unacked()) == (0, 3)
        inbox.messages[0].ack()
        assert site.unacked() == 2
        other = site.channel()
        again = Inbox(other)
        drain_for(other.connection.client, 0.2)
        assert len(again) == 0
        site.end_leases()
        # One that need not look for long.
        third = site.channel(visibility_timeout=0.3)
        after = Inbox(third)
        drain(third.connection.client, lambda: len(after) + len(again) == 2)

    def test_what_a_failover_undoes_is_done_again(self, site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
        """Nobody waits for replicas when a message is given back or acked."""
        monkeypatch.setattr(orphan_keeper, "INTERVAL", 0.1)
        monkeypatch.setattr(orphan_keeper, "AGAIN", (1.0, 1.0, 1.0))
        connection = site.connect()
        channel = connection.channel()
        publish(channel, "a", "b")
        inbox = Inbox(channel)
        drain(connection, lambda: len(inbox) == 2)
        unacked = site.keys().unacked(channel.consumer.name)
        before = site.redis.hgetall(unacked)
        inbox.messages[0].ack()
        del inbox.messages[:]
        others = set(orphan_keeper._at_work)
        connection.collect()
        wait_until(lambda: (site.ready(), site.unacked()) == (1, 0), PATIENCE, "what was held is given back")
        site.redis.delete(site.keys().ready)
        site.redis.hset(unacked, mapping=before)
        wait_until(lambda: (site.ready(), site.unacked()) == (1, 0), PATIENCE, "it is given back again")
        wait_until(lambda: orphan_keeper._at_work <= others, PATIENCE, "that nobody looks any more")

    def test_a_cycle_keeps_nothing(self, site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
        """Celery's request of a task with an ETA is one. A worker that has nothing to do collects none for
        minutes."""
        monkeypatch.setattr(orphan_keeper, "INTERVAL", 0.05)
        monkeypatch.setattr(orphan_keeper, "COLLECT_OFTEN", 0.0)
        monkeypatch.setattr(orphan_keeper, "COLLECT_EVERY", 0.2)
        connection = site.connect()
        channel = connection.channel()
        publish(channel, "a", "b")
        inbox = Inbox(channel)
        drain(connection, lambda: len(inbox) == 2)
        gc.disable()
        try:
            cycle: list[Any] = [inbox.messages.pop()]
            cycle.append(cycle)
            connection.collect()
            del cycle
            wait_until(lambda: (site.ready(), site.unacked()) == (1, 1), 5, "it is given back")
        finally:
            gc.enable()

    @pytest.mark.parametrize(
        ("requests", "is_told"),
        [
            pytest.param(lambda: {object()}, False, id="a request without a message"),
            pytest.param(lambda: Changing(), False, id="that change meanwhile"),
            pytest.param(lambda: {Broken()}, True, id="a request that is broken"),
        ],
    )
    def test_messages_come_back_whatever_their_keeper_reads(
        self,
        site: Site,
        requests: Callable[[], set[Any]],
        is_told: bool,
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        """Libraries put requests of their own into Celery's state, and other threads change it."""
        for other in list(orphan_keeper._at_work):
            # Of another test. It would read and tell the same.
            other.end()
        wait_until(lambda: not orphan_keeper._at_work, PATIENCE, "those of other tests have ended")
        celery = SimpleNamespace(active_requests=requests(), requests={}, should_terminate=None)
        monkeypatch.setitem(sys.modules, "celery.worker.state", celery)
        monkeypatch.setattr(orphan_keeper, "INTERVAL", 0.05)
        connection = site.connect()
        channel = connection.channel()
        publish(channel, "a")
        inbox = Inbox(channel)
        drain(connection, lambda: len(inbox) == 1)
        inbox.messages.clear()
        connection.collect()
        wait_until(lambda: (site.ready(), site.unacked()) == (1, 0), 5, "it is given back")
        told = [each.message for each in caplog.records if each.levelno == logging.ERROR]
        assert told == ["Cannot give messages of a lost connection back yet, trying on"] * is_told

    def test_is_noticed_and_the_connection_is_of_use_again(self, site: Site) -> None:
        connection = site.connect()
        inbox = Inbox(connection.channel())
        drain_for(connection, 0.1)
        site.kill_connections()
        with pytest.raises(connection.connection_errors):
            drain_for(connection, 2)
        connection.collect()
        connection.ensure_connection(max_retries=3)
        channel = connection.channel()
        publish(channel, "a")
        inbox = Inbox(channel)
        drain(connection, lambda: len(inbox) == 1)

    def test_is_one_of_redis_errors(self, site: Site) -> None:
        assert RedisConnectionError in site.connect().connection_errors


class TestClosedChannel:
    """As it is left behind when a connection breaks while another thread uses it."""

    def test_publishing_is_an_error_that_kombu_knows(self, site: Site) -> None:
        channel = site.channel()
        connection = channel.connection.client
        message = channel.prepare_message("m")
        channel.close()
        with pytest.raises(connection.recoverable_connection_errors):
            channel.basic_publish(message, "", "q")

    def test_what_has_lost_its_connection_publishes_through_the_next(self, site: Site) -> None:
        """kombu connects anew to declare a queue, and goes on with the channel that it had."""
        connection = site.connect()
        channel = connection.default_channel
        message = channel.prepare_message("m")
        connection.collect()
        with pytest.raises(RedisConnectionError, match="closed"):
            channel.basic_publish(message, "", "q")
        connection.connect()
        channel.basic_publish(message, "", "q")
        assert site.ready() == 1

    def test_publishing_with_retries_goes_through_another(self, site: Site) -> None:
        producer = site.connect().Producer()
        producer.publish("first", routing_key="q")
        producer.channel.close()
        producer.publish("second", routing_key="q", retry=True)
        assert site.ready() == 2


class TestLostLease:
    def lose(self, site: Site, count: int, prefetch: int = 0) -> tuple[Inbox, Inbox]:
        """Messages that somebody holds who has lost the lease, and who has got them instead."""
        channel = site.channel(visibility_timeout=1000)
        publish(channel, *map(str, range(count)))
        inbox = Inbox(channel, prefetch=prefetch)
        drain(channel.connection.client, lambda: len(inbox) == count)
        other = site.channel(visibility_timeout=0.3)
        theirs = Inbox(other)
        # The heartbeat may still be about to renew the lease for the first time.
        deadline = time.monotonic() + PATIENCE
        while len(theirs) < count and time.monotonic() < deadline:
            site.end_leases()
            drain_for(other.connection.client, 0.1)
        assert len(theirs) == count
        return inbox, theirs

    def test_each_is_said_once(self, site: Site, caplog: pytest.LogCaptureFixture) -> None:
        inbox, _ = self.lose(site, 3)
        caplog.clear()
        for message in inbox:
            message.ack()
        consuming: Any = inbox.consumer.channel
        consuming.consumer.confirm_acks()
        # The replies to the first acks may come, and be read, before the last ack is written.
        records = [r for r in caplog.records if r.msg.startswith("The lease of this consumer was lost")]
        assert {record.levelno for record in records} == {logging.WARNING}
        told: list[Any] = [record.args for record in records]
        assert sum(number for number, *_ in told) == 3
        assert {queue for _, queue, *_ in told} == {"q"}

    def test_loses_and_duplicates_nothing_more(self, site: Site) -> None:
        inbox, _ = self.lose(site, 3)
        inbox.messages[0].reject(requeue=True)
        inbox.messages[1].ack()
        assert (site.ready(), site.unacked()) == (0, 3)

    def test_gives_credit_back(self, site: Site) -> None:
        inbox, theirs = self.lose(site, 1, prefetch=1)
        theirs.consumer.cancel()
        inbox.messages[0].ack()
        channel: Any = inbox.consumer.channel
        publish(channel, "after")
        drain(channel.connection.client, lambda: len(inbox) == 2)
        assert inbox.bodies == ["0", "after"]


class TestCallbackThatRaises:
    def test_loses_nothing(self, site: Site) -> None:
        def fail(message: object) -> None:
            if len(inbox) == 2:
                raise RuntimeError("of the application")

        channel = site.channel()
        publish(channel, *map(str, range(5)))
        inbox = Inbox(channel, on_message=fail)
        connection = channel.connection.client
        with pytest.raises(RuntimeError, match="of the application"):
            drain(connection, lambda: len(inbox) == 5)
        assert len(inbox) == 2
        assert site.unacked() + site.ready() == 5
        drain(connection, lambda: len(inbox) == 5)
        assert inbox.bodies == ["0", "1", "2", "3", "4"]

    def test_what_gevent_raises_ends_no_worker_where_none_is(
        self, site: Site, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It tells of a worker that its signal handler has failed in the loop. Else it is an error as any."""
        monkeypatch.setattr(celery.worker.state, "should_terminate", None)

        def fail(message: object) -> None:
            raise gevent.exceptions.BlockingSwitchOutError

        channel = site.channel(delivery_limit=1)
        publish(channel, "a")
        Inbox(channel, on_message=fail)
        with pytest.raises(gevent.exceptions.BlockingSwitchOutError):
            drain(channel.connection.client, site.dead)
        assert celery.worker.state.should_terminate is None
        channel.close()
        assert (site.ready(), len(site.dead())) == (0, 1)


class TestCallbackThatRaisesAndIsForgiven:
    def test_the_message_is_tried_again_and_becomes_a_dead_letter(self, site: Site) -> None:
        """The application catches the exception, and goes on with the same channel."""
        channel = site.channel(visibility_timeout=0.3, delivery_limit=3)
        connection = channel.connection.client
        failures = []

        def fail(message: Any) -> None:
            if message.payload == "poison":
                failures.append(message)
                raise RuntimeError("of the application")
            message.ack()

        publish(channel, "poison", "good")
        inbox = Inbox(channel, on_message=fail)

        def is_dead() -> bool:
            return bool(site.dead())

        deadline = time.monotonic() + PATIENCE
        while not is_dead() and time.monotonic() < deadline:
            with suppress(RuntimeError):
                drain(connection, is_dead)
        assert is_dead()
        assert len(failures) == 3
        assert inbox.bodies.count("good") == 1
        assert (site.ready(), site.unacked()) == (0, 0)

    def test_a_message_that_was_acked_before_has_not_failed(self, site: Site) -> None:
        def fail(message: Any) -> None:
            message.ack()
            raise RuntimeError("of the application")

        channel = site.channel(visibility_timeout=0.3)
        publish(channel, "a")
        inbox = Inbox(channel, on_message=fail)
        with pytest.raises(RuntimeError):
            drain(channel.connection.client, lambda: len(inbox) == 1)
        drain_for(channel.connection.client, 0.4)
        assert channel.consumer.long_failed() == []


def test_connections_are_closed_although_the_server_is_gone() -> None:
    """Nothing else does it before Python collects them: a worker with greenlets had one more after each
    failover."""
    with RedisServer() as server, Connection(server.url("redisdelay")) as connection:
        channel: Any = connection.channel()
        own = Queue("of this worker", Exchange("control", "fanout"), auto_delete=True)
        Inbox(channel, Queue("q"), own)
        drain_for(connection, 0.2)
        used = [channel.client.connection, channel.subclient.connection]
        assert all(each._sock for each in used)
        server.kill()
        with pytest.raises(RedisConnectionError):
            channel.close()
        assert not any(each._sock for each in used)
        assert channel.store.server.line.connection._sock is None
