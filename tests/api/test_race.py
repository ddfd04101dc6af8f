"""Cancelling and moving messages while several consumers, in processes of their own, have them delivered."""

from __future__ import annotations

import multiprocessing
import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import datetime, timezone
from multiprocessing.synchronize import Event
from threading import Thread
from time import time
from typing import Any

import pytest
from kombu.connection import Connection

from harness.process import wait_until
from kombu_redisdelay import DelayedMessages
from tests.channel.kit import Inbox, Site, publish

MESSAGES = 3000
#: The times at which they are due are spread over so long: faster than the operators are, so that they are
#: often too late.
SPREAD_MS = 1500
ATTEMPTS = 2000
CONSUMERS = 3
#: Each operator picks one of so many messages that are the next to be delivered.
NEXT = 4

context = multiprocessing.get_context("spawn")

Operation = Callable[[DelayedMessages, str], bool]

OPERATIONS: dict[str, Operation] = {
    "cancel": lambda delayed, id: delayed.cancel(id),
    "reschedule": lambda delayed, id: delayed.reschedule(id, countdown=random.random() / 20),
    "deliver_now": lambda delayed, id: delayed.deliver_now(id),
}


def consume(url: str, stop: Event) -> None:
    """Ack every message, and note its id in Redis."""
    with Connection(url) as connection:
        channel: Any = connection.channel()

        def on_message(message: Any) -> None:
            channel.store.client.rpush("delivered", message.properties["message_id"])
            message.ack()

        Inbox(channel, prefetch=10, on_message=on_message)
        while not stop.is_set():
            with suppress(TimeoutError):
                connection.drain_events(timeout=0.2)


@pytest.fixture
def consumers(site: Site) -> Iterator[None]:
    stop = context.Event()
    processes = [context.Process(target=consume, args=(site.url, stop)) for _ in range(CONSUMERS)]
    for process in processes:
        process.start()
    publish(site.channel(), *["first"] * CONSUMERS * 10, message_id="first")
    wait_until(lambda: site.redis.zcard("redisdelay:{q}:consumers") == CONSUMERS, 30, "all consume")
    yield
    stop.set()
    for process in processes:
        process.join(20)
        assert process.exitcode == 0


class Operator(Thread):
    """Does one operation to messages that are about to be delivered, again and again."""

    def __init__(self, url: str, operation: Operation) -> None:
        super().__init__(daemon=True)
        self.done: list[str] = []
        self.failed = 0
        self.error: BaseException | None = None
        self._url = url
        self._operation = operation

    def run(self) -> None:
        try:
            with DelayedMessages(self._url) as delayed:
                for _ in range(ATTEMPTS):
                    coming = [message.id for message in delayed.iter(limit=NEXT)]
                    if not coming:
                        break
                    id = random.choice(coming)
                    if self._operation(delayed, id):
                        self.done.append(id)
                    else:
                        self.failed += 1
        except BaseException as exc:
            self.error = exc


@pytest.mark.usefixtures("consumers")
@pytest.mark.parametrize("names", [["cancel"], ["reschedule"], ["deliver_now"], [*OPERATIONS]], ids=",".join)
def test_each_message_is_cancelled_or_delivered_once(site: Site, names: list[str]) -> None:
    ids = [f"id-{number}" for number in range(MESSAGES)]
    channel = site.channel()
    soon = time() + 1.5
    for number, id in enumerate(ids):
        eta = datetime.fromtimestamp(soon + SPREAD_MS / 1000 * number / MESSAGES, timezone.utc)
        publish(channel, id, message_id=id, headers={"eta": eta.isoformat()})
    operators = {name: Operator(site.url, OPERATIONS[name]) for name in names}
    for operator in operators.values():
        operator.start()
    for operator in operators.values():
        operator.join()
        assert operator.error is None
    cancelled = operators["cancel"].done if "cancel" in operators else []
    print({name: (len(operator.done), operator.failed) for name, operator in operators.items()})
    wait_until(lambda: not site.scheduled() and not site.ready() and not site.unacked(), 60, "all delivered")
    delivered = Counter(id.decode() for id in site.redis.lrange("delivered", 0, -1))
    del delivered["first"]
    assert Counter(cancelled) + delivered == Counter(ids)
    assert all(operator.done for operator in operators.values())
