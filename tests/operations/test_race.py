"""Cancelling and moving messages while several consumers, in processes of their own, have them delivered."""

from __future__ import annotations

import multiprocessing
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from multiprocessing.synchronize import Event
from threading import Thread
from typing import Any

import pytest
from kombu.connection import Connection

from kombu_redisdelay import Messages, Selection
from tests.environments import examples
from tests.transport.kit import Inbox, Site, publish
from tools.harness.process import wait_until

CONSUMERS = 3
#: So many messages wait at any time, each for so many ms at most: an operator is often too late.
WAITING = 20
DELAY_MS = 20
#: Each operator picks one of so many messages that are the next to be delivered, and goes on until it was
#: in time and too late so often.
NEXT = 4
IN_TIME = examples(200)
TOO_LATE = examples(20)

context = multiprocessing.get_context("spawn")

Operation = Callable[[Messages, str], object]


def soon() -> float:
    return random.random() * DELAY_MS / 1000


OPERATIONS: dict[str, Operation] = {
    "cancel": lambda delayed, id: delayed.cancel(ids=[id]),
    "reschedule": lambda delayed, id: delayed.reschedule(ids=[id], countdown=soon()),
    "deliver_now": lambda delayed, id: delayed.deliver_now(ids=[id]),
}

#: They are never too late for all messages.
OPERATIONS_ON_ALL: dict[str, Operation] = {
    "reschedule_all": lambda delayed, id: delayed.reschedule(Selection(every=True), countdown=soon()),
    "deliver_now_all": lambda delayed, id: delayed.deliver_now(Selection(every=True)),
}


def each_alone(operations: Mapping[str, Operation]) -> list[Any]:
    """For who has seen them fail together."""
    return [pytest.param([name], marks=pytest.mark.thorough) for name in operations]


def consume(url: str, stop: Event) -> None:
    """Ack every message, and note its id in Redis."""
    with Connection(url) as connection:
        channel: Any = connection.channel()

        def on_message(message: Any) -> None:
            channel.store.server.call("RPUSH", "delivered", message.properties["message_id"])
            message.ack()

        Inbox(channel, prefetch=10, on_message=on_message)
        channel.store.server.call("RPUSH", "consuming", 1)
        while not stop.is_set():
            with suppress(TimeoutError):
                connection.drain_events(timeout=0.2)


@pytest.fixture
def consumers(site: Site) -> Iterator[None]:
    stop = context.Event()
    processes = [context.Process(target=consume, args=(site.url, stop)) for _ in range(CONSUMERS)]
    for process in processes:
        process.start()
    wait_until(lambda: site.redis.llen("consuming") == CONSUMERS, 60, "all consume")
    yield
    stop.set()
    for process in processes:
        process.join(60)
        assert process.exitcode == 0


class Operator(Thread):
    """Does one operation to messages that are about to be delivered, again and again."""

    def __init__(self, url: str, operation: Operation, too_late: int = TOO_LATE) -> None:
        super().__init__(daemon=True)
        self.done: list[str] = []
        self.too_late = 0
        self.error: BaseException | None = None
        self._url = url
        self._operation = operation
        self._enough_too_late = too_late

    def run(self) -> None:
        try:
            with Messages(self._url) as delayed:
                while len(self.done) < IN_TIME or self.too_late < self._enough_too_late:
                    self._try(delayed)
        except BaseException as exc:
            self.error = exc

    def _try(self, delayed: Messages) -> None:
        coming = [message.id for message in delayed.select(Selection(state="scheduled"), limit=NEXT)]
        if not coming:
            return
        id = random.choice(coming)
        if self._operation(delayed, id):
            self.done.append(id)
        else:
            self.too_late += 1


def publish_while_they_work(site: Site, operators: Sequence[Operator]) -> list[str]:
    """Publish messages for the *operators* until each has done its work, and return the messages' ids.

    No message has its time before the operators are there, however slow this machine is.
    """
    channel = site.channel()
    ids: list[str] = []
    while any(operator.is_alive() for operator in operators):
        if site.scheduled() < WAITING:
            id = f"id-{len(ids)}"
            publish(channel, id, message_id=id, headers={"x-delay": random.randint(1, DELAY_MS)})
            ids.append(id)
    return ids


@pytest.mark.once
@pytest.mark.usefixtures("consumers")
@pytest.mark.parametrize("names", [*each_alone(OPERATIONS), [*OPERATIONS]], ids=",".join)
def test_each_message_is_cancelled_or_delivered_once(site: Site, names: list[str]) -> None:
    operators = {name: Operator(site.url, OPERATIONS[name]) for name in names}
    for operator in operators.values():
        operator.start()
    ids = publish_while_they_work(site, list(operators.values()))
    assert [operator.error for operator in operators.values()] == [None] * len(operators)
    print(len(ids), {name: (len(operator.done), operator.too_late) for name, operator in operators.items()})
    wait_until(lambda: not site.scheduled() and not site.ready() and not site.unacked(), 60, "all delivered")
    cancelled = operators["cancel"].done if "cancel" in operators else []
    delivered = Counter(id.decode() for id in site.redis.lrange("delivered", 0, -1))
    assert Counter(cancelled) + delivered == Counter(ids)


@pytest.mark.once
@pytest.mark.usefixtures("consumers")
@pytest.mark.parametrize("names", [*each_alone(OPERATIONS_ON_ALL), [*OPERATIONS_ON_ALL]], ids=",".join)
def test_each_message_is_delivered_once_while_all_are_moved(site: Site, names: list[str]) -> None:
    operators = [Operator(site.url, OPERATIONS_ON_ALL[name], too_late=0) for name in names]
    for operator in operators:
        operator.start()
    ids = publish_while_they_work(site, operators)
    assert [operator.error for operator in operators] == [None] * len(operators)
    wait_until(lambda: not site.scheduled() and not site.ready() and not site.unacked(), 60, "all delivered")
    delivered = Counter(id.decode() for id in site.redis.lrange("delivered", 0, -1))
    assert delivered == Counter(ids)
