"""What is told of fair queues, from what Redis had and from what workers noted."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from random import Random

import pytest

from kombu_redisdelay.broker.keys import Partitions
from tests.chaos.damage import Damage
from tests.chaos.fair_watch import FairSample, look
from tests.chaos.fairness import (
    GRACE,
    HEALED,
    FairVerdict,
    KeyLedger,
    exceeded,
    of_tenants,
    unfair,
    wrong,
)
from tests.chaos.ledger import ACK, TAKE, Entry
from tests.chaos.producer import Submission
from tests.chaos.report import failures
from tests.chaos.run import Result
from tests.chaos.schedule import Harm
from tests.chaos.switching import Plain
from tests.chaos.tenants import TENANTS, Tenant, pick
from tests.chaos.transports import TRANSPORTS
from tests.chaos.verdict import IN_FLIGHT, Judge
from tools.harness.redis_server import RedisServer

PAIR = Tenant("k", 1, concurrency=2)
EMPTY = FairSample(
    100, "s", True, {}, {}, {}, frozenset(), frozenset(), {"k": (0, 2)}, 8, frozenset(), frozenset(), True
)


def holding(at: float, *tags: str, key: str = "k") -> FairSample:
    """A sample in which these are held and counted."""
    held = dict.fromkeys(tags, key)
    active = {key: len(tags)} if tags else {}
    return replace(EMPTY, at=at, held=held, counted=held, active=active)


class TestSamples:
    def test_as_many_as_allowed(self) -> None:
        assert exceeded({"q": [holding(1, "a"), holding(1.1, "a", "b"), holding(1.2, "b", "c")]}) == []

    def test_more_than_allowed(self) -> None:
        before, after = holding(1, "a", "b"), holding(1.1, "a", "b", "c")
        [found] = exceeded({"q": [before, after]})
        assert "'k': 3 held, 2 may be" in found
        # They were held when the queue was plain, on another server, or that was long ago.
        assert exceeded({"q": [after, replace(after, at=1.2)]}) == []
        assert exceeded({"q": [replace(before, is_fair=False), after]}) == []
        assert exceeded({"q": [replace(before, server="other"), after]}) == []
        assert exceeded({"q": [before, replace(after, at=2)]}) == []

    def test_each_key_has_the_limit_of_all_if_it_has_none(self) -> None:
        tags = [str(number) for number in range(9)]
        assert exceeded({"q": [holding(1, *tags[:7], key="n"), holding(1.1, *tags[:8], key="n")]}) == []
        assert len(exceeded({"q": [holding(1, *tags[:8], key="n"), holding(1.1, *tags, key="n")]})) == 1
        assert len(exceeded({"q": [holding(1), replace(holding(1.1), concurrency=None)]})) == 1

    def test_taken_while_it_is_paused(self) -> None:
        paused = {"k": (5, 2)}
        before, after = replace(holding(1), own=paused), replace(holding(1.1, "a"), own=paused)
        assert len(exceeded({"q": [before, after]})) == 1
        assert exceeded({"q": [holding(1), after]}) == []
        assert exceeded({"q": [before, replace(after, own={"k": (6, 2)})]}) == []

    @pytest.mark.parametrize(
        "sample",
        [
            replace(holding(50, "a"), held={}),
            replace(holding(50, "a"), counted={}, active={}),
            replace(holding(50, "a"), active={"k": 2}),
            replace(holding(50, "a"), counted={"a": "other"}, active={"other": 1}),
            replace(holding(50, "a"), limited=frozenset("k")),
            replace(EMPTY, at=50, waiting=frozenset(["0:k"])),
            replace(EMPTY, at=50, is_number_right=False),
        ],
    )
    def test_what_is_wrong_is_found_except_for_a_while_after_a_switch(self, sample: FairSample) -> None:
        samples = {"q": [holding(49), sample]}
        assert wrong(samples, [], 0) != []
        assert wrong(samples, [Plain(40, 50 - GRACE - 1)], 0) != []
        assert wrong(samples, [Plain(40, 50 - GRACE)], 0) == []
        lasting = {"q": [sample, replace(sample, at=51 + HEALED)]}
        assert wrong(lasting, [Plain(40, 49)], 0) != []
        assert wrong(lasting, [Plain(40, 49)], 52) == []
        assert wrong({"q": [replace(sample, is_fair=False)]}, [], 0) == []

    def test_an_ack_of_who_does_not_know_that_it_counts(self) -> None:
        """It was taken before the queue was made fair for the last time."""
        sample = replace(holding(50, "me\x1e30000000"), held={})
        assert wrong({"q": [sample]}, [Plain(31, 40)], 0) == []
        assert wrong({"q": [sample, replace(sample, at=51 + HEALED)]}, [Plain(31, 40)], 0) != []
        assert wrong({"q": [sample]}, [Plain(10, 29 - GRACE)], 0) != []

    def test_when_a_queue_was_not_fair(self) -> None:
        states = [True, False, False, True, True, False]
        samples = [replace(EMPTY, at=at, is_fair=state) for at, state in enumerate(states)]
        assert unfair(samples) == [Plain(0, 3), Plain(4, 5)]

    def test_a_key_that_waits_with_a_reason(self) -> None:
        for sample in (
            replace(holding(1, "a", "b"), limited=frozenset("k"), waiting=frozenset(["0:k"])),
            replace(EMPTY, limited=frozenset("k"), alarms=frozenset("k")),
            replace(EMPTY, limited=frozenset("k"), own={"k": (5, 0)}),
            replace(EMPTY, waiting=frozenset(["0:k"]), in_turn=frozenset(["0:k"])),
        ):
            assert wrong({"q": [sample]}, [], 0) == []

    def test_a_look(self, server: RedisServer) -> None:
        client, base = server.client(), "redisdelay:{q}:"
        stored = "0:" + json.dumps({"body": "", "headers": {"x-key": "k"}})
        client.hset(f"{base}control", mapping={"fair": "on", "key_concurrency": 4})
        client.hset(f"{base}unacked:me", mapping={"1": stored, "2": "0:" + json.dumps({"headers": {}})})
        client.hset(f"{base}unacked-keys", "me\x1e1", "k")
        client.hset(f"{base}active", "k", 1)
        client.hset(f"{base}limited", "x", "0 7 ")
        client.hset(f"{base}key-limits", "k", "12.0 3 0 0")
        client.hset(f"{base}fair", mapping={"n:0": 2, "clock:0": 5})
        client.lpush(f"{base}:x", "one", "two")
        client.zadd(f"{base}turns:0", {"y": 1})
        client.zadd(f"{base}alarms", {"z": 1})
        found = look(client, "q")
        assert found == FairSample(
            found.at,
            client.info("server")["run_id"],
            True,
            {"me\x1e1": "k", "me\x1e2": ""},
            {"me\x1e1": "k"},
            {"k": 1},
            frozenset("x"),
            frozenset("z"),
            {"k": (12, 3)},
            4,
            frozenset(["0:x"]),
            frozenset(["0:y"]),
            True,
        )
        client.hset(f"{base}control", "counting", 1)
        client.hset(f"{base}fair", "n:0", 3)
        assert (look(client, "q").is_fair, look(client, "q").is_number_right) == (False, False)


def of_task(name: str, take: float, ack: float | None, worker: str = "a") -> list[Entry]:
    events = [(TAKE, take), *([] if ack is None else [(ACK, ack)])]
    return [Entry(event, name, at, None, worker, 1, False) for event, at in events]


class TestLedger:
    tasks = "xyz"

    def judge(
        self,
        *entries: list[Entry],
        damage: Damage | None = None,
        plain: Plain | None = None,
        unfair: Mapping[str, Sequence[Plain]] | None = None,
    ) -> int:
        """How many keys have had more than they may."""
        submissions = [Submission(task, True, 0, 0, "q", True, "k") for task in self.tasks]
        ledger = KeyLedger(
            submissions,
            [entry for some in entries for entry in some],
            [] if damage is None else [damage],
            [] if plain is None else [plain],
            Partitions({}),
            unfair=unfair,
        )
        return len(ledger.exceeded([PAIR]))

    def test_how_many_are_held(self) -> None:
        two = of_task("x", 10, 20), of_task("y", 11, 15)
        assert self.judge(*two, of_task("z", 16, 18)) == 0
        assert self.judge(*two, of_task("z", 14, 18)) == 1
        # What was plain when the last one was taken.
        assert self.judge(*two, of_task("z", 14, 18), plain=Plain(13, 14)) == 0
        assert self.judge(*two, of_task("z", 14, 18), plain=Plain(10, 12)) == 1
        # A failover has lost that it was made fair.
        for queue, count in (("q", 0), ("another", 1)):
            assert self.judge(*two, of_task("z", 14, 18), unfair={queue: [Plain(12, 15)]}) == count

    @pytest.mark.parametrize(("at", "count"), [(12, 0), (14 + IN_FLIGHT + 0.1, 1)])
    def test_what_a_worker_held_that_was_killed(self, at: float, count: int) -> None:
        held = of_task("x", 10, None), of_task("y", 11, None), of_task("z", 14, 18, "b")
        assert self.judge(*held, damage=Damage(Harm.KILL, ("a",), at, at)) == count

    def test_what_is_taken_by_another_worker_was_given_back(self) -> None:
        held = of_task("x", 10, None), of_task("y", 11, 30)
        assert self.judge(*held, of_task("x", 12, 20, "b"), of_task("z", 21, 22)) == 0
        assert self.judge(*held, of_task("x", 12, 20, "b"), of_task("z", 19, 22)) == 1

    def test_a_rate(self) -> None:
        slow = Tenant("k", 1, rate=1.0, burst=1)
        tasks = [str(number) for number in range(30)]
        submissions = [Submission(task, True, 0, 0, "q", True, "k") for task in tasks]

        def over(interval: float, plain: list[Plain], calmed_at: float = 99) -> int:
            entries = [e for n, task in enumerate(tasks) for e in of_task(task, n * interval, n * interval)]
            ledger = KeyLedger(submissions, entries, [], plain, Partitions({}), calmed_at=calmed_at)
            return len(ledger.exceeded([slow]))

        assert over(1, []) == 0
        assert over(0.5, []) == 1
        assert over(0.5, [Plain(6, 7.9)]) == 0
        assert over(0.5, [], calmed_at=6) == 0


def test_who_sends_and_how_long_each_waits() -> None:
    names = {pick(Random(number), TENANTS).key for number in range(300)}
    assert {"", "noisy", "pair", "quiet-3"} <= names
    submissions = [Submission(task, True, 1, 0, "q", True, "k") for task in "xy"]
    entries = [*of_task("x", 2, 3), *of_task("y", 5, 6), *of_task("y", 7, 8)]
    [row] = of_tenants([PAIR], submissions, entries, {"q": [holding(1, "a")]}, [])
    assert (row.submitted, row.taken, row.most_held, row.wait) == (2, 3, 1, 4)


def test_what_must_not_be_is_said() -> None:
    well = FairVerdict([], [], 1, 9, 9, [], [], [], {})
    nothing_ran = Judge([], 3).judge([], [])
    result = Result(TRANSPORTS["redisdelay"], nothing_ran, [], [], [], [], {}, 30, 10, fair=well)
    assert failures(result) == []
    badly = replace(well, exceeded=["a"], noted=["b"], wrong=["c"], left={"d": 1})
    assert failures(replace(result, fair=badly)) == [
        "limits of keys exceeded: 1",
        "limits of keys exceeded by what workers noted: 1",
        "keys counted wrongly, or without their turn: 1",
        "keys of fair queues left when all is done: 1",
    ]
