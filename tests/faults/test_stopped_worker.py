"""A worker that stands still for longer than its lease, as on a machine that swaps or migrates."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from tests.end_to_end.installation import QUEUE, Installation
from tools.harness.process import wait_until

LEASE_LOST = "The lease of this consumer was lost"


def test_what_it_held_goes_to_others_and_its_late_acks_are_said(
    installation: Installation, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    held = ["held 0", "held 1"]
    settings = {"broker_transport_options": {"visibility_timeout": 2}}
    first = installation.worker(
        pool="threads", concurrency=2, settings=settings, prefetch_multiplier=1, expected=LEASE_LOST
    )
    producer = installation.producer()
    for task in held:
        producer.send_task("work_late", [task], kwargs={"gate": str(gate)})
    installation.wait_started(*held)
    producer.send_task("work_late", ["waiting"], countdown=2)
    os.kill(first.pid, signal.SIGSTOP)

    gate.touch()
    second = installation.worker(settings=settings)
    installation.wait_ended([*held, "waiting"], timeout=30)
    # A process that exists may go on: only the end of its lease counts.
    assert "its lease has ended" in second.log()
    assert "the process is gone" not in second.log()
    wait_until(lambda: installation.unacked() == 0, 30, "acks")

    os.kill(first.pid, signal.SIGCONT)
    wait_until(lambda: len(installation.ledger.ended()) == 5, 30, "the first worker ends what it ran")
    wait_until(lambda: LEASE_LOST in first.log(), 30, "word of it")
    assert first.log().count(LEASE_LOST) == 1
    assert f"2 message(s) of queue {QUEUE!r}" in first.log()
    # Both workers work on.
    more = [f"more {number}" for number in range(20)]
    for task in more:
        producer.send_task("work_late", [task])
    installation.wait_ended(more)
    wait_until(lambda: installation.unacked() == 0, 30, "acks")
    assert installation.ready() == 0
    assert installation.ledger.run_twice() == dict.fromkeys(held, 2)
