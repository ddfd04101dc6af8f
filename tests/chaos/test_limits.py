"""The limits of a run, and a short run with them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from tests.chaos.ledger import TAKE, Entry
from tests.chaos.limits import Limit, limits
from tests.chaos.producer import Submission
from tests.chaos.report import as_text, failures
from tests.chaos.restraint import Restraint, restraint, unseen
from tests.chaos.run import Result, Run
from tests.chaos.schedule import Harm, plan
from tests.chaos.single import Single
from tests.chaos.transports import TRANSPORTS
from tests.chaos.verdict import Judge
from tests.chaos.watch import Sample

#: Ten messages a second, two at once, of which five may be held.
LIMIT = Limit(rate=10, burst=2, concurrency=5)
NOTHING_TAKEN = Sample(at=100, held=0, ready=9, delivered=0, rate=10, burst=2, concurrency=5)


def test_queues_are_limited_in_every_way_to_less_than_what_comes() -> None:
    each = limits(["a", "b", "c", "d"], 40)

    assert each["a"] == each["d"] == Limit(rate=8, burst=5)
    assert each["b"] == Limit(concurrency=3)
    assert each["c"] == Limit(rate=8, burst=5, concurrency=4)


@pytest.mark.parametrize(
    ("delivered", "over"),
    [
        ([0, 2, 3, 4, 5], 0),
        # All that the rate allows, and the burst with it.
        ([0, 3, 4, 5, 6], 0),
        ([0, 1, 2, 3, 7], 1),
        # No more over the whole time, but in a part of it.
        ([0, 0, 0, 4, 4], 1),
    ],
)
def test_no_time_may_have_more_than_the_rate_and_the_burst(delivered: Sequence[int], over: float) -> None:
    # One message every 0.1 s.
    samples = [
        replace(NOTHING_TAKEN, at=100 + number / 10, delivered=count)
        for number, count in enumerate(delivered)
    ]
    assert judge(samples).over_rate == pytest.approx(over, abs=0.01)


def test_what_two_servers_have_counted_is_not_compared() -> None:
    before, behind, after = (replace(NOTHING_TAKEN, delivered=count) for count in (9, 0, 9))
    assert judge([before, behind, after]).over_rate > 0
    assert judge([before, replace(behind, server=b"other"), after]).over_rate == 0


def test_what_is_held() -> None:
    found = judge([replace(NOTHING_TAKEN, held=held) for held in (2, 7, 4)])
    assert (found.most_held, found.over_concurrency) == (7, 2)


def test_what_is_taken_during_one_pause() -> None:
    def taken(*pauses_and_counts: tuple[int | None, int]) -> int:
        samples = [
            replace(NOTHING_TAKEN, paused_ms=paused, delivered=count) for paused, count in pauses_and_counts
        ]
        return judge(samples).while_paused

    assert taken((None, 0), (1, 1), (1, 1), (None, 2)) == 0
    assert taken((1, 0), (2, 1)) == 0, "it was resumed between the two"
    assert taken((1, 0), (1, 1), (1, 3)) == 3


def test_a_limit_that_is_gone() -> None:
    without = [replace(NOTHING_TAKEN, rate=None), replace(NOTHING_TAKEN, concurrency=None), NOTHING_TAKEN]
    assert judge(without).unlimited == 2


def test_how_much_of_the_rate_was_used_while_messages_waited() -> None:
    by_rate = Limit(rate=10, burst=2)
    spent = replace(NOTHING_TAKEN, full_at=100.2)
    # Two were allowed since then, and one was taken. Then the other one and the next one were.
    one_left = replace(NOTHING_TAKEN, at=100.2, full_at=100.3, delivered=1)
    emptied = replace(NOTHING_TAKEN, at=100.3, full_at=100.5, delivered=3, ready=0)
    # Five were allowed since then. The burst is two: the others are lost.
    full = replace(NOTHING_TAKEN, at=100.5, full_at=100.2)

    assert restraint("q", by_rate, [spent, one_left, emptied]).share == pytest.approx(1)
    assert restraint("q", by_rate, [spent, full]).share == 0
    assert restraint(
        "q", by_rate, [spent, replace(one_left, at=100.5, full_at=100.6)]
    ).share == pytest.approx(1 / 4)
    assert restraint("q", LIMIT, [spent, full]).share is None, "it may have been the other limit"
    assert restraint("q", by_rate, [emptied, replace(emptied, at=100.6)]).share is None, "nothing waited"


def test_how_long_nobody_took_what_could_be_taken() -> None:
    def idle(**changes: Any) -> float:
        samples = [
            NOTHING_TAKEN,
            replace(NOTHING_TAKEN, at=100.2),
            replace(NOTHING_TAKEN, at=100.4, **changes),
            replace(NOTHING_TAKEN, at=100.6, delivered=9),
        ]
        return judge(samples).idle

    assert idle() == pytest.approx(0.4)
    for reason in ({"held": 5}, {"ready": 0}, {"paused_ms": 1}, {"full_at": 100.55}, {"delivered": 1}):
        assert idle(**reason) == pytest.approx(0.2), reason


def test_a_server_that_was_replaced_may_have_been_cut_off() -> None:
    stale = [replace(NOTHING_TAKEN, at=100 + number / 10) for number in range(9)]
    new = replace(NOTHING_TAKEN, at=101, delivered=1, server=b"new")

    assert judge([*stale, new]).idle == pytest.approx(0)
    assert judge([*stale, replace(new, server=b"")]).idle == pytest.approx(0.8)


def test_what_workers_got_must_have_been_counted() -> None:
    queues = {"q": "q", "q#1": "q"}
    rounds = [{"q": NOTHING_TAKEN, "q#1": replace(NOTHING_TAKEN, at=100.1, delivered=1)}]
    submissions = [Submission(task, True, 9, 0, "q", True) for task in "abc"]
    entries = [Entry(TAKE, task, at, None, "w", 1, False) for task, at in [("a", 99), ("b", 99), ("c", 101)]]

    assert unseen(queues, rounds, submissions, entries) == 1
    assert unseen(queues, rounds, submissions, entries[1:]) == 0


def test_what_must_not_be_is_said() -> None:
    well = Restraint("q", 9, 0, 5, 0, 0, 0, 1.1, 0.1)
    badly = Restraint("q", 9, 0.5, 5, 1, 2, 3, 0.8, 30)
    nothing_ran = Judge([], 3).judge([], [])
    result = Result(TRANSPORTS["redisdelay"], nothing_ran, [], [], [], [], {}, 30, 10, [well])

    assert failures(result) == []
    assert failures(replace(result, restraints=[well, badly], unseen=7)) == [
        "messages taken and not counted: 7",
        "queues taken from faster than allowed: 1",
        "queues of which more was held than allowed: 1",
        "queues taken from while paused: 1",
        "queues without their limit: 1",
        "queues that nobody took from: 1",
        "queues that were not taken from as fast as allowed: 1",
    ]


@pytest.mark.thorough
def test_workers_that_are_killed_keep_to_the_limits_and_use_them() -> None:
    rate, queues = 30, ["by rate", "by concurrency", "by both"]
    schedule = plan(1, 8, [Harm.TERMINATE, Harm.CLIENT_KILL])
    result = Run(TRANSPORTS["redisdelay"], schedule, 1, rate, Single(queues), None, limits(queues, rate))()

    said = as_text(result)
    # How fast that is depends on the machine: `tox -e chaos` judges it.
    assert [each for each in failures(result) if "as fast as allowed" not in each] == [], said
    assert result.pauses >= len(queues), said
    # Two of the limits were reached. In the third queue, either of its limits may hold messages back.
    by_rate, by_concurrency, _ = result.restraints
    assert by_rate.share is not None, said
    assert by_concurrency.most_held == 3, said


def judge(samples: Sequence[Sample]) -> Restraint:
    return restraint("q", LIMIT, samples)
