"""The invariant of test_invariant.py holds for queues that an operator pauses and limits, too. And nothing is
taken that is not allowed."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule

from kombu_redisdelay.broker.limits import LimitStore
from tests.broker.database import Database
from tests.broker.machine import QUEUES, UNIT_MS, queues
from tests.broker.test_invariant import BrokerMachine, run_broker_machine
from tests.search import may_search_for_long


class LimitsMachine(BrokerMachine):
    @property
    def limits(self) -> LimitStore:
        return LimitStore(self.rig.store)

    @rule(queue=queues)
    def pause(self, queue: str) -> None:
        self.limits.pause([queue])
        self.model.queues[queue].control.is_paused = True

    @rule(queue=queues)
    def resume(self, queue: str) -> None:
        self.limits.resume([queue])
        self.model.queues[queue].control.is_paused = False

    @rule(queue=queues, interval=st.integers(0, 3), burst=st.integers(1, 4), concurrency=st.integers(0, 4))
    def limit(self, queue: str, interval: int, burst: int, concurrency: int) -> None:
        interval_us = float(interval * UNIT_MS * 1000) or None
        limits = {
            "interval_us": interval_us,
            "burst": burst if interval else None,
            "concurrency": concurrency or None,
        }
        self.limits.limit([queue], limits)
        control, now = self.model.queues[queue].control, self.model.now
        if interval and control.interval:
            # What was taken counts against the new rate.
            control.full_at = now + Fraction(max(0, control.full_at - now)) * interval / control.interval
        control.interval, control.burst, control.concurrency = interval, burst if interval else 1, concurrency
        if not interval:
            control.full_at = 0

    @invariant()
    def the_control_is_as_it_was_set(self) -> None:
        for queue, found in zip(QUEUES, self.limits.get(QUEUES), strict=True):
            control = self.model.queues[queue].control
            assert (found.paused_ms is not None) == control.is_paused
            assert found.interval_us == (control.interval * UNIT_MS * 1000 or None)
            assert found.burst == (control.burst if control.interval else None)
            assert found.concurrency == (control.concurrency or None)


@may_search_for_long
@pytest.mark.in_all_orders
def test_nothing_is_taken_that_is_not_allowed(database: Database) -> None:
    run_broker_machine(LimitsMachine, database)
