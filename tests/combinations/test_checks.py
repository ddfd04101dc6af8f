"""Each check finds what it is for in a history that was made up, and nothing in one that is as it must be."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.chaos.damage import Damage
from tests.chaos.ledger import ACK, END, START, TAKE, Entry
from tests.chaos.producer import Submission
from tests.chaos.schedule import Harm
from tests.chaos.site import Course
from tests.combinations.attempts import UNPUBLISHED
from tests.combinations.checks import CHECKS, Observed, problems
from tests.combinations.dimensions import DIMENSIONS, Row
from tests.combinations.expected import without_replicas
from tests.combinations.history import History, Window
from tests.combinations.plan import CALLBACK_ERROR, Plan, Send
from tests.combinations.settings import LEASE

BEGAN = 1_000_000.0
TASKS = 100
KEY = "tenant 0"
ROW: Row = {name: values[0] for name, values in DIMENSIONS.items()} | {"acks": "late", "middle": "nothing"}
Change = Callable[[Observed], Observed]


def run_of(task: str, at: float, worker: str = "worker-1", lasts: float = 0.01) -> list[Entry]:
    """A task that is taken, begins, ends and is acked."""
    times = {TAKE: at, START: at, END: at + lasts, ACK: at + lasts}
    return [Entry(event, task, when, None, worker, 1, False) for event, when in times.items()]


def as_it_must_be(wait: float = 0.01) -> History:
    """Tasks that waited for so many seconds each."""
    times = [BEGAN + 2 + number / 20 for number in range(TASKS)]
    sends = [
        Send(at - BEGAN, "healthy", f"healthy-{n}", [0.01, False], "q0", True) for n, at in enumerate(times)
    ]
    submissions = [
        Submission(send.id, True, at, 0.0, "q0", True) for send, at in zip(sends, times, strict=True)
    ]
    entries = [entry for each in submissions for entry in run_of(each.task, each.at + wait)]
    return History(Plan(9.0, ["q0"], sends), submissions, entries, [], BEGAN, BEGAN + 12)


def observed(**values: str) -> Observed:
    return Observed({**ROW, **values}, as_it_must_be(), as_it_must_be())


def ours(observed: Observed, **changes: object) -> Observed:
    return replace(observed, ours=replace(observed.ours, **changes))  # type: ignore[arg-type]


def a_task_is_missing() -> Observed:
    base = observed()
    return ours(base, entries=[entry for entry in base.ours.entries if entry.task != "healthy-7"])


def a_retry_is_missing() -> Observed:
    base = observed()
    sends = [replace(send, args=[0.01, send.id == "healthy-7"]) for send in base.ours.plan.sends]
    return ours(base, plan=replace(base.ours.plan, sends=sends))


def what_was_refused_ran() -> Observed:
    base = observed(bound="yes")
    return ours(base, submissions=base.ours.submissions[1:])


def what_is_wrong_has_vanished() -> Observed:
    base = observed(beside="unknown")
    wrong = Submission("wrong-unknown-0", True, BEGAN + 2, 0.0, "q0", True)
    submissions = [*base.ours.submissions, wrong]
    return ours(base, submissions=submissions, wrong={wrong.task: ("gone", "")})


def a_failed_task_is_not_kept() -> Observed:
    base = observed(beside="fails")
    wrong = Submission("wrong-fails-0", True, BEGAN + 2, 0.0, "q0", True)
    return ours(base, submissions=[*base.ours.submissions, wrong], wrong={wrong.task: ("gone", "")})


def what_was_revoked_ran() -> Observed:
    base = observed(beside="revoked")
    return ours(base, entries=[*base.ours.entries, *run_of("wrong-revoked-0", BEGAN + 5)])


def a_task_began_early() -> Observed:
    base = observed()
    first, *rest = base.ours.entries
    begun = next(entry for entry in rest if entry.event == START)
    entries = [replace(entry, due=entry.at + 1) if entry is begun else entry for entry in rest]
    return ours(base, entries=[first, *entries])


def a_task_ran_again() -> Observed:
    base = observed()
    return ours(base, entries=[*base.ours.entries, *run_of("healthy-3", BEGAN + 9, "worker-2")])


def tasks_waited() -> Observed:
    base = observed()
    return replace(base, ours=as_it_must_be(wait=0.4))


def tasks_did_not_begin() -> Observed:
    base = observed()
    entries = [entry for entry in base.ours.entries if not entry.task.startswith("healthy-9")]
    return ours(base, entries=entries)


def slow_where_stock_lost_tasks() -> Observed:
    """What kombu's transport could not run is no excuse."""
    base = tasks_waited()
    assert base.stock is not None
    entries = [entry for entry in base.stock.entries if "9" not in entry.task]
    return replace(base, stock=replace(base.stock, entries=entries))


LINE = "[2026-11-25 00:00:00,500: {}/MainProcess] {}"
TRACEBACK = """
Traceback (most recent call last):
  File "/x/kombu_redisdelay/transport/channel.py", line 1, in basic_ack
{}
"""


def a_traceback_of_ours() -> Observed:
    log = LINE.format("ERROR", "Something went wrong") + TRACEBACK.format("KeyError: 'x'")
    return ours(observed(), logs={"worker-1": log})


def a_lost_connection_that_nobody_harmed() -> Observed:
    log = LINE.format("WARNING", "Connection lost") + TRACEBACK.format("redis.exceptions.ConnectionError: x")
    return ours(observed(), logs={"worker-1": log})


def refused(base: Observed, began: float, ended: float) -> Observed:
    return ours(base, damage=[Damage(Harm.REFUSED, ("worker-1", "worker-2"), began, ended)])


def a_task_ran_again_after_a_refusal() -> Observed:
    """All were refused, for longer than the lease. The worker could have acked afterwards."""
    base = observed(trouble="MISCONF")
    again = [*base.ours.entries, *run_of("healthy-3", BEGAN + 9 + LEASE, "worker-2")]
    return refused(ours(base, entries=again), BEGAN + 1, BEGAN + 6 + LEASE)


def a_worker_ended_because_it_was_refused() -> Observed:
    return ours(refused(observed(trouble="MISCONF"), BEGAN + 3, BEGAN + 5), died=["worker-1"])


def tasks_waited_long_after_a_refusal() -> Observed:
    base = observed(trouble="MISCONF")
    entries = [entry for each in base.ours.submissions for entry in run_of(each.task, BEGAN + 11)]
    return refused(ours(base, entries=entries), BEGAN + 2, BEGAN + 4)


def a_worker_ended() -> Observed:
    return ours(observed(), died=["worker-2"])


def a_worker_hung() -> Observed:
    return ours(observed(), hung=["worker-2"])


def a_worker_is_idle() -> Observed:
    return ours(observed(), idle=["worker-2"])


def a_worker_is_not_ready() -> Observed:
    return ours(observed(), unready=["worker-2 is not ready"])


def a_key_is_left() -> Observed:
    return ours(observed(), left=["redisdelay:{q0}:unacked:x (hash)"])


def taken_in_a_pause() -> Observed:
    return ours(observed(control="pause"), paused=[Window("q0", BEGAN + 2.5, BEGAN + 4, BEGAN + 4)])


def faster_than_the_rate() -> Observed:
    at = BEGAN + 3
    base = observed(control="rate")
    submissions = [replace(each, at=at) for each in base.ours.submissions]
    entries = [entry for each in submissions for entry in run_of(each.task, at)]
    return ours(base, submissions=submissions, entries=entries)


def more_at_once_than_may() -> Observed:
    base = observed(control="concurrency")
    entries = [e for each in base.ours.submissions for e in run_of(each.task, each.at, lasts=0.5)]
    return ours(base, entries=entries)


def taken_in_a_pause_of_its_key() -> Observed:
    base = with_key(observed(fair="limited"))
    paused = [Window("q0", BEGAN + 2.5, BEGAN + 4, BEGAN + 4, KEY)]
    return ours(base, paused=paused)


def more_of_a_key_at_once_than_may() -> Observed:
    base = with_key(observed(fair="limited"))
    entries = [e for each in base.ours.submissions for e in run_of(each.task, each.at, lasts=0.5)]
    return ours(base, entries=entries)


def with_key(base: Observed) -> Observed:
    return ours(base, submissions=[replace(each, key=KEY) for each in base.ours.submissions])


def a_result_is_missing() -> Observed:
    return ours(observed(backend="redis"), results={"healthy-1": "PENDING", "healthy-2": "SUCCESS"})


FAULTS: dict[Callable[[], Observed], set[str]] = {
    a_task_is_missing: {"lost"},
    a_retry_is_missing: {"lost"},
    what_is_wrong_has_vanished: {"misplaced"},
    what_was_refused_ran: {"refused"},
    a_failed_task_is_not_kept: {"misplaced"},
    what_was_revoked_ran: {"misplaced"},
    a_task_began_early: {"early"},
    a_task_ran_again: {"twice"},
    tasks_waited: {"slow"},
    tasks_did_not_begin: {"lost", "slow"},
    slow_where_stock_lost_tasks: {"slow"},
    a_traceback_of_ours: {"logged"},
    a_lost_connection_that_nobody_harmed: {"logged"},
    a_task_ran_again_after_a_refusal: {"twice"},
    a_worker_ended_because_it_was_refused: {"ended"},
    tasks_waited_long_after_a_refusal: {"slow"},
    a_worker_ended: {"ended"},
    a_worker_hung: {"ended"},
    a_worker_is_idle: {"ended"},
    a_worker_is_not_ready: {"ended"},
    a_key_is_left: {"left"},
    taken_in_a_pause: {"unpaused"},
    faster_than_the_rate: {"unlimited"},
    more_at_once_than_may: {"unlimited"},
    taken_in_a_pause_of_its_key: {"unpaused"},
    more_of_a_key_at_once_than_may: {"unfair"},
    a_result_is_missing: {"forgotten"},
}


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_a_fault_is_found(fault: Callable[[], Observed]) -> None:
    assert problems(fault()).keys() == FAULTS[fault]


def test_each_check_was_seen_to_find_something() -> None:
    assert {name for names in FAULTS.values() for name in names} == {check.__name__ for check in CHECKS}


def test_nothing_is_found_where_all_is_as_it_must_be() -> None:
    assert problems(observed()) == {}


@pytest.mark.parametrize(
    "values",
    [
        {"keep_failed": "none"},
        {"keep_failed": "one"},
        {"acks": "early", "middle": "SIGKILL"},
        {"trouble": "OOM"},
    ],
    ids=["none", "one", "killed", "full"],
)
def test_a_failed_task_need_not_be_kept(values: dict[str, str]) -> None:
    base = a_failed_task_is_not_kept()
    assert problems(replace(base, row={**base.row, **values})) == {}


def damaged(base: Observed, harm: Harm, worker: str, at: float, until: float) -> Observed:
    return ours(base, damage=[Damage(harm, (worker,), at, until)])


def test_a_kill_explains_that_its_task_ran_again() -> None:
    base = observed(middle="SIGKILL")
    killed = [entry for entry in base.ours.entries if entry.task != "healthy-3"]
    begun = run_of("healthy-3", BEGAN + 5)[:2]
    entries = [*killed, *begun, *run_of("healthy-3", BEGAN + 6, "worker-2")]
    again = ours(base, entries=entries)
    assert problems(again).keys() == {"twice"}
    assert problems(damaged(again, Harm.KILL, "worker-1", BEGAN + 5.1, BEGAN + 5.2)) == {}


def test_a_task_that_a_kill_ran_again_may_have_published_its_retry_again() -> None:
    base = observed(middle="SIGKILL", sending="retry")
    sends = [replace(send, args=[0.01, send.id == "healthy-3"]) for send in base.ours.plan.sends]
    first = [entry for entry in base.ours.entries if entry.task != "healthy-3"]
    entries = [
        *first,
        *run_of("healthy-3", BEGAN + 5)[:3],
        *run_of("healthy-3", BEGAN + 6, "worker-2"),
        *run_of("healthy-3+1", BEGAN + 6.1, "worker-2"),
        *run_of("healthy-3+1", BEGAN + 7, "worker-2"),
    ]
    again = ours(base, entries=entries, plan=replace(base.ours.plan, sends=sends))
    assert problems(again).keys() == {"twice"}
    assert problems(damaged(again, Harm.KILL, "worker-1", BEGAN + 5.1, BEGAN + 5.2)) == {}


def test_an_ack_that_was_refused_until_its_worker_had_ended_explains_that_a_task_ran_again() -> None:
    base = observed(trouble="MISCONF", middle="SIGTERM")
    before = [entry for entry in base.ours.entries if entry.task != "healthy-3"]
    done, again = run_of("healthy-3", BEGAN + 5), run_of("healthy-3", BEGAN + 9, "worker-2")
    again = [replace(entry, redelivered=True) for entry in again]
    stopped = Damage(Harm.TERMINATE, ("worker-1",), BEGAN + 4.9, BEGAN + 7)
    ran = ours(base, entries=[*before, *done, *again], damage=[stopped])
    assert problems(ran).keys() == {"twice"}
    refusal = Damage(Harm.REFUSED, ("worker-1", "worker-2"), BEGAN + 4.5, BEGAN + 8)
    assert problems(ours(ran, damage=[stopped, refusal])) == {}


def test_a_refusal_explains_that_tasks_waited() -> None:
    base = observed(trouble="MISCONF")
    entries = [entry for each in base.ours.submissions for entry in run_of(each.task, BEGAN + 9.3)]
    late = ours(base, entries=entries)
    assert problems(late).keys() == {"slow"}
    assert problems(refused(late, BEGAN + 1, BEGAN + 7)) == {}


def test_a_refusal_explains_that_connections_are_lost() -> None:
    at = time.mktime(time.strptime("2026-11-25", "%Y-%m-%d"))
    assert problems(refused(a_lost_connection_that_nobody_harmed(), at, at + 2)) == {}


def test_a_task_that_could_not_publish_its_retry_comes_back() -> None:
    base = observed(middle="failover", sending="retry")
    sends = [replace(send, args=[0.01, send.id == "healthy-3"]) for send in base.ours.plan.sends]
    others = [entry for entry in base.ours.entries if entry.task != "healthy-3"]
    begun = run_of("healthy-3", BEGAN + 5)[:2]
    entries = [
        *others,
        *begun,
        *run_of("healthy-3", BEGAN + 6),
        # The first one was published, but the answer was lost.
        *run_of("healthy-3+1", BEGAN + 7),
        *run_of("healthy-3+1", BEGAN + 7.1),
    ]
    again = ours(base, entries=entries, plan=replace(base.ours.plan, sends=sends))
    assert problems(again).keys() == {"twice"}
    unpublished = replace(begun[-1], event=UNPUBLISHED, at=BEGAN + 5.5)
    assert problems(ours(again, entries=[*entries, unpublished])) == {}
    # It came back, and could not publish its retry again.
    once_more = replace(unpublished, at=BEGAN + 6.5)
    assert problems(ours(again, entries=[*entries, unpublished, once_more])) == {}


def test_a_pause_explains_that_tasks_waited() -> None:
    slow = observed(control="pause")
    entries = [entry for each in slow.ours.submissions for entry in run_of(each.task, BEGAN + 9.3)]
    assert problems(ours(slow, entries=entries)).keys() == {"slow"}
    assert problems(ours(slow, entries=entries, paused=[Window("q0", BEGAN + 1, BEGAN + 8, BEGAN + 9)])) == {}


def test_a_pause_of_a_key_explains_that_its_tasks_waited() -> None:
    slow = with_key(observed(fair="limited"))
    entries = [entry for each in slow.ours.submissions for entry in run_of(each.task, BEGAN + 9.3)]
    pause = Window("q0", BEGAN + 1, BEGAN + 8, BEGAN + 9, KEY)
    late = ours(slow, entries=entries, paused=[pause])
    assert "slow" not in problems(late)
    assert "slow" in problems(ours(late, paused=[replace(pause, key="another")]))


@pytest.mark.parametrize("control", ["nothing", "rate"])
def test_a_failover_explains_that_tasks_waited(control: str) -> None:
    base = observed(middle="failover", control=control)
    outage = [each.task for each in base.ours.submissions if each.at > BEGAN + 3]
    entries = [entry for entry in base.ours.entries if entry.task not in outage]
    entries += [e for n, task in enumerate(outage) for e in run_of(task, BEGAN + 10 + n / 400)]
    waited = ours(base, entries=entries, ended=BEGAN + 20)
    assert problems(waited).keys() == {"slow"}
    course = Course(forgetful_until=BEGAN + 3, served=BEGAN + 6)
    damage = [Damage(Harm.PRIMARY_KILL, ("worker-1",), BEGAN + 3, BEGAN + 9, course=course)]
    assert problems(ours(waited, damage=damage)) == {}
    entries = [replace(each, at=each.at + 3) for each in waited.ours.entries]
    later = ours(waited, damage=damage, entries=entries)
    # Not so late, unless the queue has a limit.
    assert ("slow" in problems(later)) is (control == "nothing")


def test_harm_to_connections_explains_that_they_are_lost_and_nothing_else() -> None:
    at = time.mktime(time.strptime("2026-11-25", "%Y-%m-%d"))
    lost = damaged(a_lost_connection_that_nobody_harmed(), Harm.CLIENT_KILL, "worker-1", at, at)
    assert problems(lost) == {}
    assert problems(damaged(a_traceback_of_ours(), Harm.CLIENT_KILL, "worker-1", at, at)).keys() == {"logged"}
    late = damaged(a_lost_connection_that_nobody_harmed(), Harm.CLIENT_KILL, "worker-1", at - 99, at - 98)
    assert problems(late).keys() == {"logged"}


def test_what_a_callback_was_told_to_raise_may_be_logged() -> None:
    log = LINE.format("ERROR", "Failed") + TRACEBACK.format(f"RuntimeError: {CALLBACK_ERROR}")
    assert problems(ours(observed(beside="raises"), logs={"worker-1": log})) == {}
    assert problems(ours(observed(), logs={"worker-1": log})).keys() == {"logged"}


def test_a_traceback_elsewhere_is_none_of_ours() -> None:
    log = LINE.format("ERROR", "x") + TRACEBACK.format("KeyError: 'x'").replace("kombu_redisdelay", "celery")
    assert problems(ours(observed(), logs={"worker-1": log})) == {}


def test_what_was_not_published_need_not_be_anywhere() -> None:
    base = what_is_wrong_has_vanished()
    *healthy, wrong = base.ours.submissions
    assert problems(ours(base, submissions=[*healthy, replace(wrong, confirmed=False)])) == {}


def test_nobody_else_is_compared_with_where_there_is_no_stock() -> None:
    assert problems(replace(tasks_waited(), stock=None)) == {}


def test_a_failover_may_lose_what_no_replica_was_asked_for() -> None:
    course = Course(forgetful_until=BEGAN + 5)
    damage = [Damage(Harm.PRIMARY_KILL, ("worker-1",), BEGAN + 5, BEGAN + 5 + LEASE, course=course)]
    before, just_before, after = (
        Submission(name, True, BEGAN + at, 0.0, "q0", True)
        for name, at in (("before", 3.9), ("just before", 4.5), ("after", 5.1))
    )
    confirmed = without_replicas([before, just_before, after], damage)
    assert [each.confirmed for each in confirmed] == [True, False, True]
