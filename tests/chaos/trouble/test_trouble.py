"""Servers in trouble: what is planned and judged, and three rounds."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from kombu_redisdelay.refusals import REFUSALS
from tests.chaos.damage import Damage
from tests.chaos.ledger import ACK, END, START, TAKE, Entry
from tests.chaos.producer import Submission
from tests.chaos.schedule import Harm
from tests.chaos.trouble.report import as_text, failures
from tests.chaos.trouble.rounds import EVERY_LONG, LONG, POOLS, Meanwhile, Round, rounds
from tests.chaos.trouble.rows import ALL, ROWS, rows
from tests.chaos.trouble.run import LEASE, run
from tests.chaos.trouble.sites import SITES
from tests.chaos.verdict import Cause, Judge


def test_each_row_of_the_table_befalls_servers() -> None:
    # A script that was forgotten is sent again at once.
    of_the_table = {row.reason for row in REFUSALS if row.is_for_a_while} - {"noscript"}
    assert {row.reason for row in ROWS} == {*of_the_table, None}
    assert {*SITES} == {*ALL}


def test_the_rounds_have_all_pools_and_rows_and_the_same_for_the_same_seed() -> None:
    some = rows("single")
    planned = rounds(1, 100, POOLS, some)
    assert planned == rounds(1, 100, POOLS, some)
    assert planned != rounds(2, 100, POOLS, some)
    assert Counter(each.pool for each in planned) == dict.fromkeys(POOLS, 25)
    assert {each.row for each in planned} == {*some}
    assert {each.meanwhile for each in planned} == {*Meanwhile}
    assert sum(each.leases == LONG for each in planned) == 100 // EVERY_LONG
    assert all(each.row.is_for_some for each in planned if each.to_some)


def entry(event: str, at: float, worker: str = "a", *, redelivered: bool = False) -> Entry:
    return Entry(event, "task", at, None, worker, 1, redelivered)


def causes(damage: list[Damage], again_at: float) -> list[Cause]:
    """Why a task ran again that a had got at 10, had done at 11 and acked, and that b has got."""
    entries = [entry(TAKE, 10), entry(START, 10), entry(END, 11), entry(ACK, 11)]
    entries += [entry(event, again_at, "b", redelivered=True) for event in (TAKE, START)]
    entries += [entry(event, again_at + 1, "b", redelivered=True) for event in (END, ACK)]
    submission = Submission("task", True, 9, 0, "q", True)
    return [*Judge(damage, LEASE).judge([submission], entries).causes]


@pytest.mark.parametrize(
    ("refused", "ended", "cause"),
    [
        # It could not ack until it had ended.
        ([(10.5, 21)], 20, Cause.STOPPED_REFUSED),
        ([(10.5, 15), (15.7, 21)], 20, Cause.STOPPED_REFUSED),
        # It could have acked, before, or afterwards, or in between.
        ([(14, 21)], 20, Cause.UNEXPLAINED),
        ([(10.5, 15)], 20, Cause.UNEXPLAINED),
        ([(10.5, 15), (17, 21)], 20, Cause.UNEXPLAINED),
    ],
)
def test_a_worker_that_was_told_to_end(
    refused: list[tuple[float, float]], ended: float, cause: Cause
) -> None:
    damage = [Damage(Harm.REFUSED, ("a", "b"), *each) for each in refused]
    damage.append(Damage(Harm.TERMINATE, ("a",), 12, ended))
    assert causes(damage, 22) == [cause]


@pytest.mark.parametrize(
    ("killed_at", "cause"), [(14, Cause.KILLED), (20, Cause.UNEXPLAINED)], ids=["meanwhile", "later"]
)
def test_a_worker_that_was_killed(killed_at: float, cause: Cause) -> None:
    damage = [Damage(Harm.REFUSED, ("a", "b"), 10.5, 15), Damage(Harm.KILL, ("a",), killed_at, killed_at)]
    assert causes(damage, 22) == [cause]


@pytest.mark.parametrize(
    ("harm", "until", "cause"),
    [
        (Harm.REFUSED_SOME, 10.5 + 2 * LEASE, Cause.REFUSED),
        # Others took nothing then.
        (Harm.REFUSED, 10.5 + 2 * LEASE, Cause.UNEXPLAINED),
    ],
)
def test_a_worker_that_was_refused_for_longer_than_its_lease(harm: Harm, until: float, cause: Cause) -> None:
    assert causes([Damage(harm, ("a",), 10.5, until)], 10.5 + LEASE) == [cause]


def test_three_rows_of_the_table(tmp_path: Path) -> None:
    named = {row.name: row for row in ROWS}
    planned = [
        Round(named["MISCONF"], "threads", 1.2, False, Meanwhile.SIGTERM, 0.3, 0.2),
        Round(named["BUSY"], "threads", 0.5, False, Meanwhile.NOTHING, 0.3, 0.2),
        Round(named["NOPERM for commands"], "threads", 0.5, True, Meanwhile.NOTHING, 0.3, 0.2),
    ]
    found = run(SITES["single"](), planned, 1, tmp_path / "kept")
    assert failures(found) == [], as_text(found)
    [of_pool] = found
    assert len(of_pool.passed) == 3
    assert of_pool.verdict.once > 0
