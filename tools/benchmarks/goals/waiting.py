"""What has to come out of waiting: how late messages are, and what they cost meanwhile."""

from __future__ import annotations

from tools.benchmarks.goals.goal import Goal
from tools.benchmarks.peers import OURS, REDIS
from tools.benchmarks.quotients import largest, measured, ours_to, quotient
from tools.benchmarks.workloads import WORKLOADS
from tools.benchmarks.workloads.lateness import CROWDED


def _waiting() -> list[Goal]:
    crowded = {
        figure: quotient(measured("lateness", CROWDED.name, figure), measured("lateness", OURS.name, figure))
        for figure in ("p50", "p99")
    }
    return [
        Goal(f"lateness, p50 : {REDIS.name}", ours_to(REDIS, "lateness", "p50"), at_most=1.25),
        Goal(f"lateness, p99 : {REDIS.name}", ours_to(REDIS, "lateness", "p99"), at_most=2),
        *(
            Goal(f"lateness, {name}, 1,000,000 scheduled : none", figure, at_most=1.1)
            for name, figure in crowded.items()
        ),
        Goal(f"ping-pong, p50 : {REDIS.name}", ours_to(REDIS, "ping-pong", "p50"), at_most=1),
        Goal(f"ping-pong, p99 : {REDIS.name}", ours_to(REDIS, "ping-pong", "p99"), at_most=1),
        *(
            Goal(
                f"a redis:// task waits, {case.name}",
                measured("foreign", case.name, "p50"),
                at_most=50,
                unit="ms",
            )
            for case in WORKLOADS["foreign"].cases
            if case.peer is OURS
        ),
    ]


def _cost() -> list[Goal]:
    return [
        Goal(
            f"Redis CPU a message, consume + ack : {REDIS.name}",
            ours_to(REDIS, "consume", "server CPU"),
            at_most=0.3,
        ),
        Goal(
            f"memory of a scheduled message : ready in {REDIS.name}",
            ours_to(REDIS, "memory-server", "server"),
            at_most=1.25,
        ),
        # A page or two that the allocator took meanwhile are no growth.
        Goal(
            "worker memory for each scheduled task",
            measured("memory-worker", OURS.name, "worker"),
            at_most=50,
            unit="bytes",
        ),
        Goal(
            "100 idle consumers, CPU of Redis",
            measured("idle", OURS.name, "server CPU"),
            at_most=1,
            unit="%",
        ),
    ]


def _growth() -> list[Goal]:
    few, *more = (case.name for case in WORKLOADS["growth"].cases)
    return [
        Goal(
            f"{figure}, up to 3,000,000 scheduled : 1,000",
            quotient(
                largest(*(measured("growth", many, figure) for many in more)),
                measured("growth", few, figure),
            ),
            at_most=1.2,
        )
        for figure in WORKLOADS["growth"].units
    ]


def _burst() -> list[Goal]:
    return [
        Goal(
            "100,000 due at once : ready before, rate",
            quotient(measured("burst", OURS.name, "due at once"), measured("burst", OURS.name, "ready")),
            # The full rate, but for the noise.
            at_least=0.9,
        ),
        *(
            Goal(what, measured("burst", OURS.name, figure), at_most=5, unit="ms")
            for figure, what in {
                "longest script": "100,000 due at once, longest script",
                "1 MB, longest script": "1 MB payloads due at once, longest script",
            }.items()
        ),
        Goal(
            "1 MB payloads, longest script that schedules one",
            measured("burst", OURS.name, "1 MB, longest publish"),
            unit="ms",
        ),
    ]


GOALS = [*_waiting(), *_cost(), *_growth(), *_burst()]
