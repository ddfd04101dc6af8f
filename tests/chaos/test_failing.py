"""What is said of tasks that failed, in histories that were made up."""

from __future__ import annotations

from tests.chaos.damage import Damage
from tests.chaos.failing import judge
from tests.chaos.ledger import END, START, Entry
from tests.chaos.producer import Submission
from tests.chaos.schedule import Harm
from tests.chaos.site import Course

TASKS = [
    Submission(f"{ack}-{number}", ack == "late", 1, 0.0, "q", True, fails=True)
    for ack in ("early", "late")
    for number in (1, 2)
]
ENTRIES = [
    Entry(event, task.task, 10.0 * number, None, f"worker-{number}", 1, False)
    for number, task in enumerate(TASKS)
    for event in (START, END)
]
EACH = {task.task: 1 for task in TASKS}


def test_all_are_kept() -> None:
    found = judge(TASKS, ENTRIES, EACH, [], ())
    assert (found.failed, found.kept) == (4, 4)
    assert [found.lost, found.missing, found.unexplained, found.twice] == [[]] * 4


def test_those_that_are_gone() -> None:
    found = judge(TASKS, ENTRIES, {}, [], ["worker-1", "worker-3"])
    assert found.lost == ["late-1", "late-2"], "also if their workers were killed"
    assert (found.unexplained, found.missing) == (["early-1"], ["early-2"])


def test_a_failover_may_lose_what_it_was_told_last() -> None:
    damage = [Damage(Harm.PRIMARY_KILL, (), 0.5, 3, course=Course(forgetful_until=1))]
    found = judge(TASKS, ENTRIES, {}, damage, ())
    assert (found.unexplained, found.missing) == (["early-2"], ["early-1"])


def test_those_that_are_kept_twice() -> None:
    assert judge(TASKS, ENTRIES, {**EACH, "late-2": 2}, [], ()).twice == ["late-2"]
    # It has run twice.
    assert judge(TASKS, [*ENTRIES, ENTRIES[-1]], {**EACH, "late-2": 2}, [], ()).twice == []


def test_what_has_not_failed_need_not_be_kept() -> None:
    healthy = Submission("early-1", False, 1, 0.0, "q", True)
    started = [entry for entry in ENTRIES if entry.event == START]
    assert judge([healthy], ENTRIES, {}, [], ()).failed == 0
    assert judge(TASKS, started, {}, [], ()).failed == 0
