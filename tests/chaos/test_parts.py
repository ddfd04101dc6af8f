"""The parts of the run that can be tried without doing harm for long."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.damage import Damage
from tests.chaos.ledger import ACK, END, START, Entry, Ledger
from tests.chaos.producer import Submission
from tests.chaos.report import failures
from tests.chaos.run import Result
from tests.chaos.schedule import Harm, plan
from tests.chaos.transports import TRANSPORTS
from tests.chaos.verdict import Cause, Judge, Verdict

LEASE = 3.0


def test_a_seed_makes_the_same_schedule_and_a_short_run_has_every_harm() -> None:
    schedule = plan(1, 30, only_kills=False)

    assert schedule == plan(1, 30, only_kills=False)
    assert schedule != plan(2, 30, only_kills=False)
    assert {each.harm for each in schedule} == set(Harm)
    assert sum(each.harm is Harm.KILL for each in schedule) == 30
    assert {each.harm for each in plan(1, 30, only_kills=True)} == {Harm.KILL}


def test_the_ledger_does_not_read_a_line_that_is_being_written(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger")
    assert ledger.entries() == []
    entries = [entry(START, 1.5), entry(END, 2.5, due=1.0)]
    for each in entries:
        ledger.write(each)
    with ledger.path.open("a") as file:
        file.write('{"event": "st')

    assert ledger.entries() == entries


class TestVerdict:
    def test_once(self) -> None:
        verdict = judge([entry(START, 10), entry(END, 11), entry(ACK, 11)])
        assert (verdict.once, verdict.lost, verdict.reruns, verdict.early) == (1, [], [], [])

    @pytest.mark.parametrize("entries", [[], ["start"], ["start", "ack"]])
    def test_late_ack_is_lost_unless_it_ended(self, entries: list[str]) -> None:
        assert judge([entry(event, 10) for event in entries], damage=[kill("a", 11)]).lost == ["task"]

    def test_early_ack_is_not_lost_once_it_started(self) -> None:
        verdict = judge([entry(ACK, 10), entry(START, 10)], late=False, damage=[kill("a", 11)])
        assert (verdict.lost, verdict.never_started, verdict.interrupted) == ([], [], 1)

    def test_early_ack_is_the_workers_loss_once_a_worker_that_died_has_acked_it(self) -> None:
        verdict = judge([entry(ACK, 10)], late=False, damage=[kill("a", 11)])
        assert (verdict.lost, verdict.never_started) == ([], ["task"])

    @pytest.mark.parametrize("damage", [[], [Damage(Harm.KILL, ("b",), 11, 11)]])
    def test_early_ack_is_lost_if_no_dead_worker_acked_it(self, damage: list[Damage]) -> None:
        assert judge([entry(ACK, 10)], late=False, damage=damage).lost == ["task"]

    def test_a_rerun_after_a_kill_is_explained_and_timed(self) -> None:
        verdict = judge(
            [entry(START, 10), entry(START, 14, worker="b"), entry(END, 15, worker="b")],
            damage=[kill("a", 12, isolated=True)],
        )
        assert verdict.causes == {Cause.KILLED: 1}
        assert verdict.recovery_times(isolated=True) == [2]
        assert verdict.recovery_times(isolated=False) == []

    @pytest.mark.parametrize(
        "damage",
        [
            [],
            # It held another one, it did not hold it yet, or any more.
            [Damage(Harm.KILL, ("c",), 12, 12)],
            [Damage(Harm.KILL, ("a",), 9, 9)],
            [Damage(Harm.KILL, ("a",), 15, 15)],
            [Damage(Harm.STOP, ("c",), 11, 13)],
            [Damage(Harm.RESET, ("a",), 13, 13)],
        ],
    )
    def test_a_rerun_without_a_cause_is_unexplained(self, damage: list[Damage]) -> None:
        entries = [entry(START, 10), entry(END, 10), entry(ACK, 10), entry(START, 14, worker="b")]
        assert judge(entries, damage=damage).causes == {Cause.UNEXPLAINED: 1}

    @pytest.mark.parametrize(
        ("damage", "cause"),
        [
            (Damage(Harm.STOP, ("a",), 9, 13.5), Cause.STOPPED),
            (Damage(Harm.SILENCE, ("a",), 9, 13.5), Cause.UNREACHABLE),
            (Damage(Harm.RESTART, ("a",), 10.1, 10.5), Cause.ACK_LOST),
        ],
    )
    def test_a_rerun_after_other_harm(self, damage: Damage, cause: Cause) -> None:
        entries = [entry(START, 10), entry(END, 10), entry(ACK, 10), entry(START, 14, worker="b")]
        assert judge(entries, damage=[damage]).causes == {cause: 1}

    def test_early(self) -> None:
        assert judge([entry(START, 10, due=10.001), entry(END, 11, due=10.001)]).early == ["task"]


def test_what_must_not_be_is_said() -> None:
    transport = TRANSPORTS["redisdelay"]
    well = judge([entry(START, 10), entry(END, 11)])
    lost = judge([entry(START, 10), entry(START, 11)])

    assert failures(Result(transport, well, [], [], [], {}, 30, 10)) == []
    assert failures(Result(transport, lost, [], ["a"], ["b", "c"], {"wake": 1}, 30, 10)) == [
        "tasks lost: 1",
        "duplicates unexplained: 1",
        "workers dead by themselves: 1",
        "workers that do not work any more: 2",
        "keys left in Redis: 1",
    ]


def entry(event: str, at: float, worker: str = "a", due: float | None = None) -> Entry:
    return Entry(event, "task", at, due, worker, 1, worker != "a")


def kill(worker: str, at: float, *, isolated: bool = False) -> Damage:
    return Damage(Harm.KILL, (worker,), at, at, isolated)


def judge(entries: list[Entry], *, late: bool = True, damage: list[Damage] | None = None) -> Verdict:
    submission = Submission("task", late, at=9, countdown=0, confirmed=True)
    return Judge(damage or [], LEASE).judge([submission], entries)
