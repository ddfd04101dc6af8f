"""The parts of the run that can be tried without doing harm for long."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Semaphore
from typing import ClassVar
from unittest.mock import ANY

import pytest
from redis import Redis

from tests.chaos.cluster import Shards
from tests.chaos.damage import Damage
from tests.chaos.environment import Environment
from tests.chaos.fleet import Fleet
from tests.chaos.inflict import Inflictor
from tests.chaos.ledger import ACK, END, START, TAKE, Entry, Ledger
from tests.chaos.producer import Submission
from tests.chaos.report import failures
from tests.chaos.resumption import Resumption, resumptions
from tests.chaos.run import Result
from tests.chaos.schedule import FAILOVERS, SERVERS_INTERVAL, Harm, Planned, plan
from tests.chaos.sentinels import Sentinels
from tests.chaos.single import Single
from tests.chaos.site import Course, Site, in_use
from tests.chaos.transports import TRANSPORTS
from tests.chaos.upheavals import Upheavals
from tests.chaos.verdict import AFTERMATH_LEASES, Cause, Judge, Verdict
from tools.harness.process import wait_until
from tools.harness.proxy import Proxy
from tools.harness.redis_server import RedisServer

LEASE = 3.0


def test_a_seed_makes_the_same_schedule_and_a_short_run_has_every_harm() -> None:
    schedule = plan(1, 30, Single.others)

    assert schedule == plan(1, 30, Single.others)
    assert schedule != plan(2, 30, Single.others)
    assert {each.harm for each in schedule} == {Harm.KILL, *Single.others}
    assert sum(each.harm is Harm.KILL for each in schedule) == 30
    assert {each.harm for each in plan(1, 30)} == {Harm.KILL}


def test_kills_are_spread_over_the_failovers_and_other_changes_come_in_between() -> None:
    schedule = plan(1, 30, shared=Shards.shared, failovers=8, kinds=Shards.failovers, changes=Shards.changes)

    harms = Counter(each.harm for each in schedule)
    assert harms == {
        Harm.KILL: 30,
        Harm.PRIMARY_KILL: 2,
        Harm.PRIMARY_STOP: 2,
        Harm.PRIMARY_CUT: 2,
        Harm.PRIMARY_PARTITION: 2,
        **dict.fromkeys(Shards.changes, ANY),
        **dict.fromkeys(Shards.shared, ANY),
    }
    assert sum(harms[change] for change in Shards.changes) == 4
    kills = [each.at for each in schedule if each.harm is Harm.KILL]
    others = [each.at for each in schedule if each.harm in (*FAILOVERS, *Shards.changes)]
    assert kills[-1] - kills[0] == pytest.approx(others[-1] - others[0], abs=SERVERS_INTERVAL)


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
        ("damage", "cause"),
        [
            # Its ack had arrived, or may not have.
            ([], Cause.UNEXPLAINED),
            ([Damage(Harm.STOP, ("b",), 9, 10)], Cause.UNEXPLAINED),
            ([Damage(Harm.STOP, ("a",), 6, 9.5)], Cause.KILLED),
            ([Damage(Harm.SILENCE, ("a",), 11, 15)], Cause.KILLED),
        ],
    )
    def test_who_was_killed_long_after_it_had_acked(self, damage: list[Damage], cause: Cause) -> None:
        entries = [*done(10), *(entry(event, 14, "b") for event in (TAKE, START))]
        assert judge(entries, damage=[*damage, kill("a", 12)]).causes == {cause: 1}
        assert judge(entries, damage=[*damage, kill("a", 10.9)]).causes == {Cause.KILLED: 1}

    def test_an_ack_into_a_silence_is_not_forgotten_by_a_failover(self) -> None:
        entries = [entry(TAKE, 6), *done(10)[1:], *(entry(event, 20, "b") for event in (TAKE, START))]
        damage = [failover(at=10, until=16), Damage(Harm.SILENCE, ("a", "b"), 10.5, 15)]
        assert judge(entries, damage=damage).causes == {Cause.UNREACHABLE: 1}

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
        entries = [*done(10), *[entry(event, 14, worker="b") for event in (TAKE, START)]]
        assert judge(entries, damage=[damage]).causes == {cause: 1}

    @pytest.mark.parametrize(
        ("acked_at", "taken_by", "given_back_at", "redelivered", "cause"),
        [
            (12, "a", 14, True, Cause.UNREACHABLE),
            # The server had the ack, the lease had not ended yet, who had it was not out of reach, or it was
            # not given back.
            (10.5, "a", 14, True, Cause.UNEXPLAINED),
            (12, "a", 13, True, Cause.UNEXPLAINED),
            (12, "c", 14, True, Cause.UNEXPLAINED),
            (12, "a", 14, False, Cause.UNEXPLAINED),
        ],
    )
    def test_who_was_out_of_reach_is_not_to_blame_for_everything(
        self, acked_at: float, taken_by: str, given_back_at: float, redelivered: bool, cause: Cause
    ) -> None:
        again = [entry(event, given_back_at, "b") for event in (TAKE, START)]
        entries = [
            entry(TAKE, 10, taken_by),
            entry(START, 10, taken_by),
            entry(ACK, acked_at, taken_by),
            *(replace(each, redelivered=redelivered) for each in again),
        ]
        silence = Damage(Harm.SILENCE, ("a", "b"), 12, 16)
        assert judge(entries, damage=[silence]).causes == {cause: 1}

    def test_a_copy_in_the_memory_of_who_was_out_of_reach(self) -> None:
        entries = [entry(TAKE, 10), entry(TAKE, 15, "b"), entry(START, 15, "b"), entry(START, 17)]
        silence = Damage(Harm.SILENCE, ("a", "b"), 12, 16)
        assert judge(entries, damage=[silence]).causes == {Cause.UNREACHABLE: 1}

    def test_a_copy_that_was_on_its_way_to_who_was_stopped(self) -> None:
        entries = [entry(TAKE, 13, "b"), entry(START, 13, "b"), entry(TAKE, 13.6), entry(START, 13.6)]
        assert judge(entries, damage=[Damage(Harm.STOP, ("a",), 9, 13.5)]).causes == {Cause.STOPPED: 1}
        assert judge(entries, damage=[Damage(Harm.STOP, ("c",), 9, 13.5)]).causes == {Cause.UNEXPLAINED: 1}

    def test_what_came_back_waits_as_long_as_others(self) -> None:
        at = 13.5 + AFTERMATH_LEASES * LEASE + 100
        entries = [*done(10), *(entry(event, at, "b") for event in (TAKE, START))]
        judge = Judge([Damage(Harm.STOP, ("a",), 9, 13.5)], LEASE)
        for waited, cause in [(90, Cause.UNEXPLAINED), (101, Cause.STOPPED)]:
            submissions = [
                Submission(task, True, sent_at, 0, "q", confirmed=True)
                for task, sent_at in [("task", 9), ("other", at - waited)]
            ]
            other = [replace(each, task="other") for each in done(at + 1)]
            assert judge.judge(submissions, [*entries, *other]).causes == {cause: 1}

    def test_who_gets_it_next_may_die_before_it_starts(self) -> None:
        late = 13.5 + AFTERMATH_LEASES * LEASE + 1
        entries = [*done(10), entry(TAKE, 14, "b"), *(entry(event, late, "c") for event in (TAKE, START))]
        for harm, cause in [(Harm.STOP, Cause.STOPPED), (Harm.SILENCE, Cause.UNREACHABLE)]:
            damage = [Damage(harm, ("a",), 9, 13.5), kill("b", 14.5)]
            assert judge(entries, damage=damage).causes == {cause: 1}

    @pytest.mark.parametrize(
        ("ended_at", "cause"),
        [(10.2, Cause.UNEXPLAINED), (16, Cause.OUTLIVED)],
    )
    def test_a_rerun_of_what_nobody_acked_before(self, ended_at: float, cause: Cause) -> None:
        entries = [
            entry(TAKE, 10),
            entry(START, 10),
            entry(END, ended_at),
            *[entry(event, 14, worker="b") for event in (TAKE, START, ACK)],
        ]
        assert judge(entries, damage=[Damage(Harm.RESTART, ("a",), 10.1, 10.5)]).causes == {cause: 1}

    @pytest.mark.parametrize(
        ("acked_at", "killed_at", "cause"),
        [
            (10, None, Cause.ACK_FORGOTTEN),
            # It had been replicated, or the new primary has it.
            (7, None, Cause.UNEXPLAINED),
            (14, None, Cause.UNEXPLAINED),
            # It may not have been sent again, or it was, where that was needed.
            (10, 12, Cause.KILLED),
            (10, 17, Cause.ACK_FORGOTTEN),
        ],
    )
    def test_a_rerun_after_a_failover_that_lost_the_ack(
        self, acked_at: float, killed_at: float | None, cause: Cause
    ) -> None:
        entries = [
            entry(TAKE, 6),
            entry(START, 6),
            entry(END, acked_at),
            entry(ACK, acked_at),
            entry(TAKE, 30, worker="b"),
            entry(START, 30, worker="b"),
        ]
        damage = [failover(at=10, until=16)]
        if killed_at is not None:
            damage.append(kill("a", killed_at))
        assert judge(entries, damage=damage).causes == {cause: 1}

    def test_an_ack_that_was_lost_does_not_explain_what_ran_after_that(self) -> None:
        again = [
            entry(event, at, worker=worker)
            for at, worker in [(20, "b"), (30, "c")]
            for event in (TAKE, START)
        ]
        verdict = judge([*done(10), *again], damage=[failover(at=10, until=16), kill("a", 12), kill("b", 25)])
        assert verdict.causes == {Cause.KILLED: 2}

    def test_an_ack_of_what_another_one_has_by_now_is_not_lost(self) -> None:
        entries = [
            entry(TAKE, 6),
            entry(START, 6),
            entry(TAKE, 9, worker="b"),
            entry(START, 9, worker="b"),
            entry(ACK, 10),
        ]
        damage = [Damage(Harm.STOP, ("a",), 5, 10), failover(at=10, until=16)]
        assert judge(entries, damage=damage).causes == {Cause.STOPPED: 1}

    @pytest.mark.parametrize(
        ("taken_at", "redelivered", "cause"),
        [
            (10, False, Cause.TAKE_FORGOTTEN),
            (7, False, Cause.UNEXPLAINED),
            # What was forgotten cannot come back from who had it.
            (10, True, Cause.UNEXPLAINED),
        ],
    )
    def test_a_rerun_after_a_failover_that_lost_the_take(
        self, taken_at: float, redelivered: bool, cause: Cause
    ) -> None:
        again = [entry(event, 12, worker="b") for event in (TAKE, START)]
        entries = [
            entry(TAKE, taken_at),
            entry(START, 11),
            *(replace(each, redelivered=redelivered) for each in again),
        ]
        assert judge(entries, damage=[failover(at=10, until=16)]).causes == {cause: 1}

    def test_what_a_failover_has_forgotten_may_wait_for_long(self) -> None:
        again = [entry(event, 99) for event in (TAKE, START)]
        entries = [entry(TAKE, 10), entry(START, 11), *again]
        assert judge(entries, damage=[failover(at=10, until=16)]).causes == {Cause.TAKE_FORGOTTEN: 1}

    def test_early(self) -> None:
        assert judge([entry(START, 10, due=10.001), entry(END, 11, due=10.001)]).early == ["task"]


def test_what_happens_to_servers_happens_one_after_the_other_and_is_noted() -> None:
    fleet, site = Fleet((), lambda _kind, name: Environment("", Path(), name), None), NoServers([])
    with ThreadPoolExecutor(1) as executor:
        upheavals = Upheavals(fleet, site, executor)
        assert upheavals.are_over()
        upheavals.begin(Harm.MOVE, 0.5)
        upheavals.begin(Harm.GROW, 0.5)
        assert not upheavals.are_over()
        site.go_on.release(2)
        wait_until(upheavals.are_over, 30, "the end")
        first, second = fleet.damage
        assert (first.harm, second.harm) == (Harm.MOVE, Harm.GROW)
        assert first.until <= second.at

        upheavals.begin(Harm.DOWN, 0.5)
        with pytest.raises(ValueError, match="not today"):
            wait_until(upheavals.are_over, 30, "the end")


def test_connections_are_harmed_by_one_at_a_time() -> None:
    fleet, site = Fleet((), lambda _kind, name: Environment("", Path(), name), None), NoServers([])
    with ThreadPoolExecutor(1) as executor, Proxy(1) as proxy:
        inflictor = Inflictor(fleet, site, Upheavals(fleet, site, executor), LEASE)
        silence, reset = Planned(0, Harm.SILENCE, 0.5), Planned(0, Harm.RESET, 0.5)
        assert not inflictor.do(silence), "there is none"
        site.proxies = [proxy]
        with in_use(proxy):
            assert not inflictor.do(silence), "its server is being failed over"
        assert inflictor.do(silence)
        assert not inflictor.do(reset)
        assert not proxy.use.acquire(blocking=False), "its server must not be failed over"
        inflictor.end_what_is_over(everything=True)
        assert inflictor.do(reset)
        assert [each.harm for each in fleet.damage] == [Harm.SILENCE, Harm.RESET]


class NoServers(Site):
    """It says when what happens is over."""

    servers: ClassVar[list[RedisServer]] = []
    proxies: list[Proxy] = []  # noqa: RUF012  # each test sets its own
    go_on = Semaphore(0)

    def url(self, scheme: str, *, proxied: bool = False) -> str:
        return ""

    def client(self) -> Redis:
        return Redis()

    def befall(self, harm: Harm, pick: float) -> Course:
        if harm is Harm.DOWN:
            raise ValueError("not today")
        self.go_on.acquire()
        return Course(forgetful_until=0)

    def _start(self) -> None:
        pass


def test_how_soon_the_last_queue_is_taken_from_again() -> None:
    submissions = [Submission(task, True, 9, 0, queue, True) for task, queue in [("1", "a"), ("2", "b")]]
    times = [("1", 9), ("1", 14.5), ("2", 13.9), ("2", 15)]
    entries = [Entry(TAKE, task, at, None, "w", 1, False) for task, at in times]

    assert resumptions([kill("a", 9), failover(at=10, until=16)], submissions, entries) == [Resumption(5, 1)]


def test_what_must_not_be_is_said() -> None:
    transport = TRANSPORTS["redisdelay"]
    well = judge([entry(START, 10), entry(END, 11)])
    lost = judge([entry(START, 10), entry(START, 11)])

    assert failures(Result(transport, well, [], [], [], [], {}, 30, 10)) == []
    assert failures(Result(transport, lost, [], [], ["a"], ["b", "c"], {"wake": 1}, 30, 10, surprises=1)) == [
        "tasks lost: 1",
        "duplicates unexplained: 1",
        "workers dead by themselves: 1",
        "workers that do not work any more: 2",
        "keys left in Redis: 1",
        "failovers that nobody planned: 1",
    ]


@pytest.mark.thorough
def test_a_failover_that_nobody_planned() -> None:
    with Sentinels(["q"]) as site:
        site.befall(Harm.PRIMARY_KILL, 0)
        assert site.surprises() == 0
        site._site.fail_over()
        site._site.wait_whole()
        site.befall(Harm.PRIMARY_STOP, 0)
        assert site.surprises() == 1


def entry(event: str, at: float, worker: str = "a", due: float | None = None) -> Entry:
    return Entry(event, "task", at, due, worker, 1, worker != "a")


def done(at: float) -> list[Entry]:
    return [entry(event, at) for event in (TAKE, START, END, ACK)]


def kill(worker: str, at: float, *, isolated: bool = False) -> Damage:
    return Damage(Harm.KILL, (worker,), at, at, isolated)


def failover(at: float, until: float) -> Damage:
    return Damage(Harm.PRIMARY_KILL, ("a", "b"), at, until, course=Course(forgetful_until=at + 1, served=14))


def judge(entries: list[Entry], *, late: bool = True, damage: list[Damage] | None = None) -> Verdict:
    submission = Submission("task", late, at=9, countdown=0, queue="q", confirmed=True)
    return Judge(damage or [], LEASE).judge([submission], entries)
