"""The invariant of docs/how-it-works.rst, whatever happens in whatever order: every message that was
published and not acked is in exactly one place, and where an order is promised, it is kept."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule

from kombu_redisdelay.broker.consumer import Consumer
from kombu_redisdelay.broker.delivery import Delivery, Request
from kombu_redisdelay.broker.failure import Failure
from kombu_redisdelay.broker.server.scripts import RENEW, run_each
from tests.broker.database import Database, FakeDatabase
from tests.broker.machine import (
    DELIVERY_LIMIT,
    KEPT,
    KEPT_BYTES,
    KEPT_UNITS,
    OPTIONS,
    PRIORITIES,
    QUEUES,
    UNIT_MS,
    PublishingMachine,
    choices,
)
from tests.broker.model import Broker, Control, Message
from tests.broker.rig import a_failure, dead_letter, park, payload, takes_of, texts, timeless, with_count
from tests.broker.test_mover import look, mover_of
from tests.search import may_search_for_long, run_machine

#: A consumer with more queues than one take works on.
MANY_QUEUES = (*map(str, range(100)), "a", *map(str, range(100, 250)), "b", *map(str, range(250, 300)))

#: More messages than a run publishes. What waits after a failure comes before what is scheduled for its unit.
AFTER_ALL = 10**6

consumers = st.integers(0, 2)
polled_queues = st.sampled_from([("a",), ("b",), ("a", "b"), ("b", "a")])


@dataclass
class Held:
    """A consumer, and what the model says that it holds.

    Attributes:
        deliveries: in the order of taking, those that it knows of.
        unseen: those whose reply was lost.
        failed: those whose callback has failed, in this order.
        early: those that were acked when they were taken, and whose tasks run.
    """

    consumer: Consumer
    in_turn: bool
    deliveries: list[tuple[Delivery, Message]] = field(default_factory=list)
    unseen: list[tuple[Delivery, Message]] = field(default_factory=list)
    failed: list[tuple[Delivery, Message]] = field(default_factory=list)
    early: list[tuple[Delivery, Message]] = field(default_factory=list)

    def in_reverse(self) -> list[tuple[Delivery, Message]]:
        """Everything, what was taken last first."""
        return sorted(self.deliveries + self.unseen, key=lambda entry: -int(entry[0].tag))


class BrokerMachine(PublishingMachine):
    """Consumers may have other queues besides.

    Attributes:
        consumed: the queues that each consumer has.
    """

    consumed: tuple[str, ...]

    def __init__(self) -> None:
        super().__init__()
        self.model.held = self.held
        self.names = count()
        self.consumers = [self.new_consumer() for _ in range(3)]

    def new_consumer(self) -> Held:
        number = next(self.names)
        return Held(self.rig.consumer(f"consumer{number}", options=OPTIONS), in_turn=number % 2 == 0)

    # -- taking --

    @rule(who=consumers, limit=st.integers(0, 6), polled=polled_queues)
    def take(self, who: int, limit: int, polled: Sequence[str]) -> None:
        held = self.consumers[who]
        request = self.request(held, limit, polled)
        if held.unseen:
            expected, held.unseen = held.unseen, []
            # The lost ones may be in any queue of which the consumer holds something.
            for queue in {*polled, *(delivery.queue for delivery, _ in expected + held.deliveries)}:
                self.model.queues[queue].migrate(self.model.now)
            assert held.consumer.take(request).deliveries == [delivery for delivery, _ in expected]
            held.deliveries += expected
        else:
            names = self.worked_on(request)
            held.deliveries += self.as_the_model_says(held.consumer.take(request).deliveries, request, names)

    @precondition(lambda self: any(queue.has_ready() for queue in self.model.queues.values()))
    @rule(who=consumers, limit=st.integers(1, 6), polled=polled_queues)
    def take_and_lose_the_reply(self, who: int, limit: int, polled: Sequence[str]) -> None:
        held = self.consumers[who]
        if not held.unseen:
            request = self.request(held, limit, polled)
            names = self.worked_on(request)
            reply = self.rig.exchange(held.consumer, request)
            # The copy reads the reply, the consumer does not hear of it.
            taken = takes_of(copy_of(held.consumer), request.queues).taken(request, reply).deliveries
            held.unseen = self.as_the_model_says(taken, request, names)
            if not taken:
                # A loss of nothing would only have the next take leave out queues that were woken.
                takes_of(held.consumer, request.queues).taken(request, reply)

    @precondition(lambda self: any(held.unseen for held in self.consumers))
    @rule(limit=st.integers(0, 6), polled=polled_queues)
    def take_again(self, limit: int, polled: Sequence[str]) -> None:
        self.take(next(n for n, held in enumerate(self.consumers) if held.unseen), limit, polled)

    @rule(who=consumers, limit=st.integers(1, 3), polled=polled_queues)
    def take_without_acks(self, who: int, limit: int, polled: Sequence[str]) -> None:
        held = self.consumers[who]
        if not held.unseen:
            request = self.request(held, limit, polled)._replace(no_ack=QUEUES)
            expected = self.model.take(limit, self.worked_on(request), in_turn=held.in_turn, acked=False)
            taken = held.consumer.take(request).deliveries
            assert [*map(timeless, texts(taken))] == [message.text for _, message in expected]
            held.early += [
                (delivery, message) for delivery, (_, message) in zip(taken, expected, strict=True)
            ]

    @rule(who=consumers)
    def move_while_there_is_no_room(self, who: int) -> None:
        name = self.consumers[who].consumer.name
        keys = [self.rig.store.keys(queue).consumers for queue in QUEUES]
        # The heartbeat does both.
        run_each(self.rig.store.server, [(RENEW, [key], (name, UNIT_MS)) for key in keys])
        look(mover_of(self.rig.store, *QUEUES))
        for queue in self.model.queues.values():
            queue.migrate(self.model.now)

    def request(self, held: Held, limit: int, polled: Sequence[str]) -> Request:
        polled = polled if held.in_turn else sorted(polled)
        return Request(self.consumed, limit, held.in_turn, polled=polled)

    def worked_on(self, request: Request) -> Sequence[str]:
        """The queues that a take works on, in order: the polled ones, and those that were woken."""
        woken = [queue for queue in QUEUES if self.rig.tokens(queue)]
        both = list(dict.fromkeys((*(request.polled or ()), *woken)))
        return both if request.in_turn else sorted(both)

    def as_the_model_says(
        self, taken: Sequence[Delivery], request: Request, names: Sequence[str]
    ) -> list[tuple[Delivery, Message]]:
        expected = self.model.take(request.limit, names, in_turn=request.in_turn)
        assert [(d.queue, d.step, timeless(d.payload.decode())) for d in taken] == [
            (queue, message.step, message.text) for queue, message in expected
        ]
        return [(delivery, message) for delivery, (_, message) in zip(taken, expected, strict=True)]

    # -- what becomes of a delivery --

    def holds_any(self) -> bool:
        return any(held.deliveries for held in self.consumers)

    def one_delivery(self, who: int, which: int) -> tuple[Consumer, Delivery, Message]:
        """One that is held; by consumer *who* if it holds any."""
        holding = [held for held in self.consumers if held.deliveries]
        held = holding[who % len(holding)]
        delivery, message = held.deliveries.pop(which % len(held.deliveries))
        return held.consumer, delivery, message

    @precondition(holds_any)
    @rule(who=consumers, which=choices)
    def ack(self, who: int, which: int) -> None:
        consumer, delivery, _ = self.one_delivery(who, which)
        assert self.rig.ack(consumer, delivery.queue, delivery.tag)
        assert not self.rig.ack(consumer, delivery.queue, delivery.tag)

    @precondition(holds_any)
    @rule(who=consumers, which=choices, same_id=st.booleans())
    def task_fails(self, who: int, which: int, same_id: bool) -> None:
        consumer, delivery, message = self.one_delivery(who, which)
        failure = a_failure("same" if same_id else message.id)
        self.database.tick()
        assert self.rig.fail(consumer, delivery.queue, delivery.tag, failure)
        assert not self.rig.fail(consumer, delivery.queue, delivery.tag, failure)
        self.is_kept(delivery, message, failure)

    @precondition(lambda self: any(held.early for held in self.consumers))
    @rule(which=choices, same_id=st.booleans())
    def task_fails_after_its_ack(self, which: int, same_id: bool) -> None:
        every = [(held, entry) for held in self.consumers for entry in held.early]
        held, entry = every[which % len(every)]
        held.early.remove(entry)
        delivery, message = entry
        failure = a_failure("same" if same_id else message.id)
        copy = f"{delivery.step}:{delivery.payload.decode()}"
        self.database.tick()
        # A copy that is sent again because its reply was lost.
        for _ in range(2):
            self.rig.fail(held.consumer, delivery.queue, delivery.tag, failure, copy)
        self.is_kept(delivery, message, failure)

    def is_kept(self, delivery: Delivery, message: Message, failure: Failure) -> None:
        head = (
            f"{self.database.now_us()} {message.deliveries} {failure.group} {delivery.tag} {failure.details}"
        )
        message.failed = self.model.now
        message.kept_bytes = len(head) + len(f"{delivery.step}:") + len(delivery.payload)
        queue = self.model.queues[delivery.queue]
        queue.failed.append(message)
        queue.trim_failed(self.model.now, KEPT, KEPT_UNITS, KEPT_BYTES)

    @precondition(holds_any)
    @rule(who=consumers, which=choices)
    def requeue(self, who: int, which: int) -> None:
        consumer, delivery, message = self.one_delivery(who, which)
        self.database.tick()
        assert consumer.requeue(delivery.queue, delivery.tag)
        self.have_failed([(delivery, message)])

    def have_failed(self, entries: Sequence[tuple[Delivery, Message]]) -> None:
        def place(entry: tuple[Delivery, Message]) -> int:
            delivery, message = entry
            text = with_count(payload(message.id), message.deliveries + 1, message.lost)
            scheduled = self.rig.scheduled(delivery.queue)
            stored = f"{message.step}:{text}"
            return scheduled.index(stored) if stored in scheduled else -1

        # Those that have failed at the same instant wait in any order.
        for delivery, message in sorted(entries, key=place):
            is_first = message.deliveries == message.lost
            due = None if is_first else self.model.now + 1
            number = next(self.numbers) - AFTER_ALL
            self.model.queues[delivery.queue].fail(message, DELIVERY_LIMIT, due, number)

    @precondition(holds_any)
    @rule(who=consumers, which=choices)
    def callback_fails(self, who: int, which: int) -> None:
        """Which says nothing to Redis: the consumer may go on, and even ack the message."""
        holding = [held for held in self.consumers if held.deliveries]
        held = holding[who % len(holding)]
        entry = held.deliveries[which % len(held.deliveries)]
        held.consumer.fail(entry[0].queue, entry[0].tag)
        if entry not in held.failed:
            held.failed.append(entry)

    @precondition(holds_any)
    @rule(who=consumers, which=choices, in_units=st.integers(1, 4))
    def park(self, who: int, which: int, in_units: int) -> None:
        consumer, delivery, message = self.one_delivery(who, which)
        message.number = next(self.numbers)
        message.due = self.model.now + in_units
        due_ms = self.database.now_ms() + self.in_ms(in_units, message.number)
        park(consumer, delivery, message.id, due_ms)
        self.model.queues[delivery.queue].schedule(message, message.id)

    @precondition(holds_any)
    @rule(who=consumers, which=choices, in_units=st.integers(1, 4))
    def requeue_later(self, who: int, which: int, in_units: int) -> None:
        consumer, delivery, message = self.one_delivery(who, which)
        queue, tag = delivery.queue, delivery.tag
        number = next(self.numbers)
        assert consumer.requeue(queue, tag, self.in_ms(in_units, number))
        assert not consumer.requeue(queue, tag, 0)
        self.model.queues[queue].fail(message, DELIVERY_LIMIT, self.model.now + in_units, number)

    @precondition(holds_any)
    @rule(who=consumers, which=choices)
    def dead_letter(self, who: int, which: int) -> None:
        consumer, delivery, message = self.one_delivery(who, which)
        dead_letter(consumer, delivery, "the test wants it")
        self.model.queues[delivery.queue].bury(message)

    @precondition(holds_any)
    @rule(who=consumers, how_many=st.integers(1, 5))
    def put_back(self, who: int, how_many: int) -> None:
        holding = [held for held in self.consumers if held.deliveries]
        held = holding[who % len(holding)]
        # What was not delivered yet is what was taken last.
        back = held.deliveries[-how_many:]
        del held.deliveries[-how_many:]
        held.consumer.put_back([delivery for delivery, _ in back])
        for delivery, message in reversed(back):
            self.model.queues[delivery.queue].put_first(message)

    # -- the end of a consumer --

    @rule(who=consumers)
    def close(self, who: int) -> None:
        held = self.consumers[who]
        self.database.tick()
        assert held.consumer.give_back_all()
        failed = [entry for entry in held.failed if entry in held.deliveries]
        self.have_failed(failed)
        held.deliveries = [entry for entry in held.deliveries if entry not in failed]
        for delivery, message in held.in_reverse():
            message.deliveries = max(1, message.deliveries)
            self.model.queues[delivery.queue].put_first(message)
        self.consumers[who] = self.new_consumer()

    @rule(who=consumers)
    def die_and_be_recovered(self, who: int) -> None:
        gone = self.consumers[who]
        self.database.tick()
        recoverer = self.rig.recoverer(options=OPTIONS)
        for queue in QUEUES:
            if self.rig.unacked(queue, gone.consumer.name):
                self.rig.end_lease(queue, gone.consumer.name)
        # Another one whose lease has ended as well, in time that passed, renews it first.
        for held in self.consumers:
            if held is not gone:
                self.renew(held.consumer)
        for queue in QUEUES:
            mine = [d for d, _ in gone.deliveries + gone.unseen if d.queue == queue]
            recovered = self.rig.recover(queue, recoverer)
            assert recovered == len(mine) - self.buried(gone, queue)
            for delivery in mine:
                assert not self.rig.ack(gone.consumer, queue, delivery.tag)
                assert not self.rig.fail(gone.consumer, queue, delivery.tag, a_failure("late"))
        # They were held alone.
        guilty = [entry for entry in gone.in_reverse() if entry[1].lost >= OPTIONS.isolated_after]
        again = [entry for entry in guilty if entry[1].deliveries > entry[1].lost]
        for delivery, message in gone.in_reverse():
            if (delivery, message) not in guilty:
                self.model.queues[delivery.queue].lose(message, OPTIONS.isolated_after)
            elif (delivery, message) not in again:
                # It goes to the tail: before those that are put there after it.
                self.have_failed([(delivery, message)])
        self.have_failed(again)
        self.consumers[who] = self.new_consumer()

    def held(self, name: str) -> int:
        """How many messages of a queue all consumers hold."""
        each = [entry for held in self.consumers for entry in held.deliveries + held.unseen]
        return sum(delivery.queue == name for delivery, _ in each)

    def renew(self, consumer: Consumer) -> None:
        for queue in QUEUES:
            key = self.rig.store.keys(queue).consumers
            self.rig.client.zadd(key, {consumer.name: self.database.now_ms() + UNIT_MS}, xx=True)

    @staticmethod
    def buried(held: Held, queue: str) -> int:
        return sum(
            delivery.queue == queue
            and message.lost >= OPTIONS.isolated_after
            and message.deliveries + 1 - message.lost >= DELIVERY_LIMIT
            for delivery, message in held.deliveries + held.unseen
        )

    # -- what always holds --

    @invariant()
    def every_message_is_in_one_place(self) -> None:
        for name, queue in self.model.queues.items():
            for step, messages in queue.ready.items():
                assert [*map(timeless, self.rig.ready(name, step))] == [message.text for message in messages]
            assert [*map(timeless, self.rig.scheduled(name))] == [
                f"{m.step}:{m.text}" for m in queue.scheduled
            ]
            letters = self.rig.dead(name) + self.rig.older_dead(name)
            buried = sorted(letter.split("\n", 1)[1] for letter in letters)
            assert buried == sorted(payload(message.id) for message in queue.dead)
            assert [timeless(task.stored.decode()) for task in self.rig.failed(name)] == [
                f"{message.step}:{message.text}" for message in queue.failed
            ]
            for held in self.consumers:
                unacked = self.rig.unacked(name, held.consumer.name)
                assert {tag: timeless(text) for tag, text in unacked.items()} == {
                    delivery.tag: f"{message.step}:{message.text}"
                    for delivery, message in held.deliveries + held.unseen
                    if delivery.queue == name
                }

    @invariant()
    def every_duplicate_is_listed(self) -> None:
        for name in QUEUES:
            members = self.rig.client.zrange(self.rig.store.keys(name).schedule, 0, -1)
            assert {member for member in members if b"\x1f" in member} <= self.rig.listed_duplicates(name)

    @invariant()
    def whoever_waits_for_what_is_ready_is_woken(self) -> None:
        for name, queue in self.model.queues.items():
            assert self.rig.tokens(name) <= 1
            if queue.has_ready() and queue.control == Control():
                assert self.rig.tokens(name) == 1


def copy_of(consumer: Consumer) -> Consumer:
    """One that goes on from the same state, on its own."""
    twin = copy.copy(consumer)
    twin._takes = {slot: copy.copy(takes) for slot, takes in consumer._takes.items()}
    return twin


def run_broker_machine(
    machine: type[BrokerMachine], database: Database, consumed: Sequence[str] = QUEUES
) -> None:
    run_machine(
        machine,
        30 if isinstance(database, FakeDatabase) else 20,
        name=f"{database.name} {len(consumed)}",
        database=database,
        consumed=consumed,
    )


@may_search_for_long
@pytest.mark.in_all_orders
@pytest.mark.parametrize("consumed", [QUEUES, MANY_QUEUES], ids=len)
def test_every_message_is_in_one_place(database: Database, consumed: tuple[str, ...]) -> None:
    run_broker_machine(BrokerMachine, database, consumed)


def test_the_model_itself_takes_in_turn() -> None:
    model = Broker(QUEUES, PRIORITIES, isolated_from=2)
    for id in ("0", "1", "2"):
        model.queues["a"].put(Message(id, 0))
    model.queues["b"].put(Message("b", 0))
    assert [message.id for _, message in model.take(3, QUEUES, in_turn=True)] == ["0", "b", "1"]
    assert payload("2") == model.queues["a"].ready[0][0].text


def test_the_model_itself_takes_nothing_behind_a_suspect() -> None:
    model = Broker(QUEUES, PRIORITIES, isolated_from=2)
    for id, lost in (("0", 1), ("suspect", 2), ("behind", 0)):
        model.queues["a"].put(Message(id, 0, deliveries=3, lost=lost))
    assert [message.id for _, message in model.take(3, QUEUES, in_turn=False)] == ["0", "suspect"]
