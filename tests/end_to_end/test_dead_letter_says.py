"""What is said of the messages of a real worker: who holds them, and why they died."""

from __future__ import annotations

import re

import pytest

from kombu_redisdelay import Messages, Selection
from tests.end_to_end.installation import Installation
from tools.harness.process import wait_until

OPTIONS = {"broker_transport_options": {"dead_letter": True, "unknown_task_wait": None, "keep_failed": None}}

#: What the worker says of these tasks.
EXPECTED = "Traceback|the bank is closed|ValueError|unregistered|Unrecoverable|Received|KeyError"


@pytest.mark.parametrize("pool", ["prefork", "threads", "solo", "gevent"])
def test_why_it_died_and_by_whom(site: Installation, pool: str) -> None:
    producer = site.producer()
    settings = {**OPTIONS, "task_acks_late": True, "task_acks_on_failure_or_timeout": False}
    worker = site.worker(pool=pool, settings=settings, expected=EXPECTED)
    producer.send_task("raise_late", ["failing"])
    producer.send_task("refuse", ["refused"])
    producer.send_task("nobody.has.this")
    with Messages(producer) as queues:
        wait_until(lambda: queues.count(Selection(state="dead")) == 3, 20, "all are dead letters")
        reasons = {letter.task: letter.reason for letter in queues.select(Selection(state="dead"))}
    who = rf"rejected by {worker.name}@\S+"
    # Celery rejects these later, when nobody knows why any more.
    assert re.fullmatch(who, reasons["raise_late"])
    assert re.fullmatch(who, reasons["refuse"])
    assert re.fullmatch(who + ": KeyError: 'nobody.has.this'", reasons["nobody.has.this"])


def test_who_holds_it(site: Installation) -> None:
    producer = site.producer()
    worker = site.worker(pool="threads")
    gate = site.directory / "gate"
    producer.send_task("work_late", ["held"], {"gate": str(gate)})
    site.wait_started("held")
    with Messages(producer) as queues:
        [held] = queues.select(Selection(state="unacked"))
    gate.touch()
    site.wait_ended(["held"])
    assert held.worker is not None
    assert held.worker.partition("@")[0] == worker.name
