"""One connection for many threads, and two channels on it."""

from __future__ import annotations

from collections import Counter
from queue import Queue
from threading import Thread
from typing import Any

from tests.transport.kit import Inbox, Site, drain, publish

THREADS, MESSAGES = 16, 40


def test_many_threads_publish_through_one_channel(site: Site) -> None:
    channel = site.channel()
    errors: list[Exception] = []

    def work(name: int) -> None:
        try:
            for number in range(MESSAGES):
                headers = {"x-delay": 500} if number % 2 else {}
                publish(channel, f"{name}-{number}", headers=headers)
        except Exception as error:
            errors.append(error)

    threads = [Thread(target=work, args=(name,)) for name in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []

    inbox = Inbox(channel, no_ack=True)
    drain(channel.connection.client, lambda: len(inbox) >= THREADS * MESSAGES)
    expected = {f"{name}-{number}" for name in range(THREADS) for number in range(MESSAGES)}
    assert Counter(inbox.bodies) == Counter(expected)
    assert (site.ready(), site.scheduled()) == (0, 0)


def test_threads_publish_while_another_consumes_and_others_ack(site: Site) -> None:
    connection = site.connect()
    consuming, publishing = connection.channel(), connection.channel()
    messages: Queue[Any] = Queue()
    inbox = Inbox(consuming, prefetch=10, on_message=messages.put)
    errors: list[Exception] = []
    acked: list[str] = []

    def publish_some(name: int) -> None:
        try:
            for number in range(MESSAGES):
                publish(publishing, f"{name}-{number}")
        except Exception as error:
            errors.append(error)

    def ack_some() -> None:
        try:
            while message := messages.get():
                message.ack()
                acked.append(message.payload)
        except Exception as error:
            errors.append(error)

    publishers = [Thread(target=publish_some, args=(name,)) for name in range(THREADS)]
    ackers = [Thread(target=ack_some) for _ in range(4)]
    for thread in (*publishers, *ackers):
        thread.start()
    try:
        drain(connection, lambda: errors or len(inbox) >= THREADS * MESSAGES, timeout=30)
    finally:
        for _ in ackers:
            messages.put(None)
        for thread in (*publishers, *ackers):
            thread.join()
    assert errors == []
    assert len(set(acked)) == len(acked) == THREADS * MESSAGES
    assert (site.ready(), site.unacked()) == (0, 0)


class TestTwoChannels:
    def test_are_two_consumers(self, site: Site) -> None:
        connection = site.connect()
        one, two = connection.channel(), connection.channel()
        publish(one, *(str(number) for number in range(10)))
        first, second = Inbox(one, prefetch=5), Inbox(two, prefetch=5)
        drain(connection, lambda: len(first) + len(second) == 10)
        assert (len(first), len(second)) == (5, 5)
        assert len(site.redis.keys("redisdelay:{q}:unacked:*")) == 2

        one.close()
        assert (site.ready(), site.unacked()) == (5, 5)
        for message in second:
            message.ack()
        drain(connection, lambda: len(second) == 10)
        assert sorted(second.bodies) == [str(number) for number in range(10)]

    def one_message_each(self, connection: Any) -> tuple[Inbox, Inbox]:
        one, two = connection.channel(), connection.channel()
        publish(one, "a", "b")
        first, second = Inbox(one, prefetch=1), Inbox(two, prefetch=1)
        drain(connection, lambda: len(first) == len(second) == 1)
        return first, second

    def test_neither_acks_for_the_other(self, site: Site) -> None:
        first, second = self.one_message_each(site.connect())
        first.messages[0].ack()
        assert site.unacked() == 1
        second.messages[0].ack()
        assert site.unacked() == 0

    def test_lost_together(self, site: Site) -> None:
        connection = site.connect()
        first, second = self.one_message_each(connection)
        connection.collect()
        for message in (*first, *second):
            message.ack()
        assert (site.ready(), site.unacked()) == (0, 0)
