"""What is told of tasks with keys, from what was submitted and what workers did."""

from __future__ import annotations

from tests.chaos.damage import Damage
from tests.chaos.keys import AROUND, KeysVerdict, Publish, Step
from tests.chaos.keys import judge as judge_with
from tests.chaos.ledger import END, START
from tests.chaos.schedule import Harm

LEASE = 3.0


def judge(published: list[Publish], steps: list[Step], damage: list[Damage]) -> KeysVerdict:
    return judge_with(published, steps, damage, LEASE)


def publish(id: str, version: int, at: float, mode: str = "latest", *, dropped: bool = False) -> Publish:
    return Publish(f"{mode}-q-0", mode, id, version, at, dropped)


def run(
    id: str, version: int, start: float, end: float | None, worker: str = "a", mode: str = "latest"
) -> list[Step]:
    events = [(START, start), *([] if end is None else [(END, end)])]
    return [Step(event, id, f"{mode}-q-0", version, at, worker, 1) for event, at in events]


def by_time(*runs: list[Step]) -> list[Step]:
    return sorted((step for steps in runs for step in steps), key=lambda step: step.at)


def test_all_is_well() -> None:
    found = judge(
        [publish("1", 0, 0.0), publish("2", 1, 0.5), publish("2", 2, 0.6)],
        by_time(run("1", 0, 0.1, 1.0), run("2", 2, 1.1, 2.0)),
        [],
    )
    assert (found.publishes, found.runs) == (3, 2)
    assert (found.never_ran, found.unseen, found.together) == ([], [], [])


def test_an_id_that_never_ran_and_a_version_that_nobody_saw() -> None:
    found = judge([publish("1", 0, 0.0), publish("2", 1, 0.5)], run("1", 0, 0.1, 1.0), [])
    assert found.never_ran == ["2"]
    assert found.unseen == ["latest-q-0"]


def test_what_waits_for_a_run_that_begins_later() -> None:
    before, after = run("1", 0, 0.1, 1.0, mode="waiting"), run("2", 1, 0.7, 1.0, mode="waiting")
    published = [publish("1", 0, 0.0, "waiting"), publish("2", 1, 0.5, "waiting")]
    assert judge(published, before, []).unseen == ["waiting-q-0"]
    assert judge(published, by_time(before, after), []).unseen == []
    assert judge([publish("1", 0, 0.5, "done")], run("1", 0, 0.1, 1.0, mode="done"), []).unseen == []


def test_two_at_a_time() -> None:
    published = [publish("1", 0, 0.0), publish("2", 1, 0.1)]
    steps = by_time(run("1", 0, 10.0, 12.0), run("2", 1, 11.0, 13.0, worker="b"))
    assert judge(published, steps, []).together == ["latest-q-0"]
    stopped = Damage(Harm.STOP, ("a",), 9.5, 11.5)
    assert judge(published, steps, [stopped]).together == []
    assert judge(published, steps, [Damage(Harm.STOP, ("c",), 9.5, 11.5)]).together == ["latest-q-0"]
    # What was killed has no end.
    assert judge(published, by_time(run("1", 0, 10.0, None), run("2", 1, 11.0, 13.0)), []).together == []


def test_dropped_for_what_was_gone() -> None:
    for mode, until in ({"waiting": 1.0, "done": 2.0 + LEASE + AROUND}).items():
        steps = run("1", 0, 1.0, 2.0, mode=mode)
        in_time = publish("1", 1, until - 0.1, mode, dropped=True)
        too_late = publish("1", 1, until + 0.1, mode, dropped=True)
        assert judge([in_time], steps, []).too_late == []
        assert judge([too_late], steps, []).too_late == ["1"]
        # It came back, because its worker was killed.
        assert judge([too_late], steps + run("1", 0, until + 1, None, "b", mode), []).too_late == []


def test_beside_a_stock_worker() -> None:
    together = by_time(run("1", 0, 10.0, 12.0, "stock"), run("2", 1, 11.0, 13.0))
    assert judge_with([publish("2", 1, 0.0)], together, [], LEASE, {"stock"}).together == []
    dropped = publish("1", 1, 5.0, "waiting", dropped=True)
    steps = run("1", 0, 1.0, 2.0, "stock", "waiting")
    assert judge_with([dropped], steps, [], LEASE, {"stock"}).too_late == []
