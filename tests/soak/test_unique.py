"""Many producers of a few keys at once: a small race, and what is told of one that went wrong."""

from __future__ import annotations

import pytest

from kombu_redisdelay.broker.unique import DONE, LATEST, MODES, WAITING
from tests.soak.unique import Body, Crowd, Publish, Run, judge, run
from tools.harness.redis_server import RedisServer

SMALL = Crowd(producers=3, number=60, keys=4, consumers=2)


def publish(number: int, began: float, holder: int | None = None, outcome: str = "dropped") -> Publish:
    id = str(number if holder is None else holder)
    outcome = "accepted" if holder is None else outcome
    return Publish(Body("k", 0, number), str(number), outcome, id, began, began + 0.1)


def ran(number: int, began: float, ended: float, body: int | None = None) -> Run:
    return Run(Body("k", 0, number if body is None else body), str(number), began, ended)


@pytest.mark.parametrize("mode", MODES)
def test_a_small_race(server: RedisServer, mode: str) -> None:
    publishes, runs, wrong = run(server, mode, SMALL)
    assert len(publishes) == 180
    assert len({each.outcome for each in publishes}) > 1
    assert runs
    assert wrong == []


class TestJudge:
    def test_all_is_well(self) -> None:
        both = [publish(1, 0.0), publish(2, 0.5)]
        assert list(judge(LATEST, both, [ran(1, 0.2, 1.0), ran(2, 1.1, 2.0)])) == []

    def test_what_was_accepted_runs_once(self) -> None:
        assert list(judge(WAITING, [publish(1, 0.0)], [])) == ["1 was accepted, and did not run"]
        twice = [ran(1, 0.2, 1.0), ran(1, 1.2, 2.0)]
        assert list(judge(WAITING, [publish(1, 0.0)], twice)) == ["1 ran 2 times"]

    def test_what_was_dropped_does_not_run(self) -> None:
        dropped = [publish(1, 0.0), publish(2, 0.1, holder=1)]
        runs = [ran(1, 0.2, 1.0), ran(2, 1.2, 2.0)]
        assert list(judge(WAITING, dropped, runs)) == ["2 was not accepted, and ran"]

    @pytest.mark.parametrize(("mode", "began"), [(WAITING, 0.3), (DONE, 2.1)])
    def test_nobody_is_dropped_for_what_is_gone(self, mode: str, began: float) -> None:
        dropped = [publish(1, 0.0), publish(2, began, holder=1)]
        assert list(judge(mode, dropped, [ran(1, 0.2, 1.0)])) == ["2 was dropped for 1, which was gone"]

    @pytest.mark.parametrize("mode", [DONE, LATEST])
    def test_two_at_a_time(self, mode: str) -> None:
        both = [publish(1, 0.0), publish(2, 0.1)]
        runs = [ran(1, 0.2, 1.0), ran(2, 0.9, 2.0)]
        assert list(judge(mode, both, runs)) == ["k: 1 and 2 ran at a time"]
        assert list(judge(WAITING, both, runs)) == []

    def test_the_newest_body(self) -> None:
        both = [publish(1, 0.0), publish(2, 0.5, holder=1, outcome="replaced")]
        assert list(judge(LATEST, both, [ran(1, 0.7, 1.0, body=2)])) == []
        assert list(judge(LATEST, both, [ran(1, 0.7, 1.0)])) == ["k: nobody saw the newest body"]
