"""The invariant of test_invariant.py holds for what consumers leave to others because they do not know its
task, and for what others fetch; also where queues are paused and limited."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from kombu_redisdelay.broker.consumer import Consumer
from kombu_redisdelay.broker.delivery import Delivery, Request, Waiting
from kombu_redisdelay.broker.unknown_tasks import COMES_BACK_MS, is_known
from tests.broker.database import Database
from tests.broker.machine import OPTIONS, UNIT_MS, choices, queues
from tests.broker.model import Message
from tests.broker.rig import takes_of, timeless
from tests.broker.test_invariant import Held, consumers, copy_of, run_broker_machine
from tests.broker.test_limits_invariant import LimitsMachine
from tests.search import may_search_for_long

#: A message waits for so long together. So one that is left again in the next unit comes back in the unit
#: after that, and one that is left later than that comes back at once.
WAIT_MS = UNIT_MS * 5 // 4

assert COMES_BACK_MS < UNIT_MS // 4

knowledge = st.sampled_from([("even",), ("odd",), ("even", "odd")])


def task_of(message: Message) -> str:
    return ("even", "odd")[int(message.id[1:]) % 2]


class UnknownMachine(LimitsMachine):
    def new_consumer(self) -> Held:
        held = super().new_consumer()
        options = replace(OPTIONS, unknown_task_wait=WAIT_MS / 1000)
        held.consumer = self.rig.consumer(held.consumer.name, options=options)
        return held

    @precondition(lambda self: self.holds_any())
    @rule(who=consumers, which=choices)
    def defer_unknown(self, who: int, which: int) -> None:
        consumer, delivery, message = self.one_delivery(who, which)
        # No two begin to wait at the same moment.
        self.database.advance(1)
        for _ in range(2):
            consumer.defer_unknown(delivery.queue, delivery.tag, message.id, task_of(message))
            consumer.confirm_acks()
        number, now = next(self.numbers), self.model.now
        if message.unknown is None:
            message.unknown, message.left = now, number
        queue = self.model.queues[delivery.queue]
        # Those whose time is up come after those that have just begun to wait, and all of them before what is
        # scheduled for the same unit.
        is_last = message.unknown < now
        message.due = message.unknown + 2 if is_last else now + 1
        message.number = message.left - 10**6 if is_last else number - 2 * 10**6
        queue.schedule(message, message.id)
        if queue.control.interval:
            queue.control.full_at = max(now, queue.control.full_at - queue.control.interval)

    @rule(who=consumers, limit=st.integers(1, 6), queue=queues, tasks=knowledge, is_lost=st.booleans())
    def fetch(self, who: int, limit: int, queue: str, tasks: Sequence[str], is_lost: bool) -> None:
        held = self.consumers[who]
        if held.unseen:
            return
        known = self.known(held.consumer, queue, tasks)
        request = Request(self.consumed, limit, polled=[queue], also_woken=False, known=known)
        if is_lost:
            reply = self.rig.exchange(held.consumer, request)
            deliveries = takes_of(copy_of(held.consumer), request.queues).taken(request, reply).deliveries
            held.unseen = self.fetched(deliveries, queue, limit, tasks)
            if not deliveries:
                takes_of(held.consumer, request.queues).taken(request, reply)
        else:
            deliveries = held.consumer.take(request).deliveries
            held.deliveries += self.fetched(deliveries, queue, limit, tasks)

    @staticmethod
    def known(consumer: Consumer, queue: str, tasks: Sequence[str]) -> dict[str, list[Waiting]]:
        found = takes_of(consumer, [queue]).waiting_tasks({}).get(queue) or ([], "")
        return {queue: [each for each in found[0] if is_known(each.task, tasks)]}

    def fetched(
        self, deliveries: Sequence[Delivery], name: str, limit: int, tasks: Sequence[str]
    ) -> list[tuple[Delivery, Message]]:
        """Each is the first of those that are ready, or the first of those of a task that wait."""
        queue, model, taken = self.model.queues[name], self.model, []
        queue.migrate(model.now)
        allowed = queue.control.allowed(model.now, model.held(name), acked=True)

        def candidates() -> list[Message]:
            for step in model.steps:
                waiting = queue.waiting(step)
                each = [[m for m in waiting if task_of(m) == task] for task in tasks]
                if found := [some[0] for some in (queue.ready[step], *each) if some]:
                    return found
            return []

        for delivery in deliveries:
            text = timeless(delivery.payload.decode())
            [message] = [m for m in candidates() if (m.step, m.text) == (delivery.step, text)]
            (queue.scheduled if message in queue.scheduled else queue.ready[message.step]).remove(message)
            queue.control.full_at += queue.control.interval
            taken.append((delivery, message))
        is_last = bool(taken) and taken[-1][1].deliveries >= OPTIONS.isolated_after
        assert len(taken) <= min(limit, allowed)
        assert is_last or len(taken) == min(limit, allowed) or not candidates()
        return taken


@may_search_for_long
@pytest.mark.in_all_orders
def test_what_waits_for_a_worker_that_knows_it_is_in_one_place(database: Database) -> None:
    run_broker_machine(UnknownMachine, database)
