"""What has to come out where there are many queues, many consumers, a long line, or much at once."""

from __future__ import annotations

from tools.benchmarks.goals.goal import Goal
from tools.benchmarks.peers import MEMORY, OURS, REDIS, Peer
from tools.benchmarks.quotients import Figure, measured, quotient
from tools.benchmarks.workloads import fleet, line, queues, together


def _queues() -> list[Goal]:
    def figure(peer: Peer, count: int, name: str) -> Figure:
        return measured("queues", queues.case(peer, count), name)

    def many_to_one(name: str) -> Figure:
        return quotient(figure(OURS, 500, name), figure(OURS, 1, name))

    return [
        Goal("consume + ack, 500 queues : 1", many_to_one("rate"), at_least=0.7),
        Goal(
            f"consume + ack, 500 queues : {REDIS.name}",
            quotient(figure(OURS, 500, "rate"), figure(REDIS, 500, "rate")),
        ),
        Goal("Redis CPU a message, 500 queues : 1", many_to_one("server CPU"), at_most=1.5),
        Goal("lone message, 500 queues : 1", many_to_one("lone message"), at_most=1.3),
        Goal(
            f"lone message, 500 queues : {REDIS.name}",
            quotient(figure(OURS, 500, "lone message"), figure(REDIS, 500, "lone message")),
            at_most=1,
        ),
        Goal("1,000 queues, longest script", figure(OURS, 1000, "longest script"), at_most=5, unit="ms"),
    ]


def _line() -> list[Goal]:
    def to_redis(ms: int, name: str) -> Figure:
        ours, theirs = (measured("line", line.case(peer, ms), name) for peer in (OURS, REDIS))
        return quotient(ours, theirs)

    return [
        *(Goal(f"consume + ack, line of {ms} ms : {REDIS.name}", to_redis(ms, "rate")) for ms in (1, 5, 20)),
        Goal(
            f"200 queues, line of 20 ms, stand-still of the event loop : {REDIS.name}",
            to_redis(20, "stands still"),
            at_most=1,
        ),
    ]


def _together() -> list[Goal]:
    def group(name: str, ms: int, figure: str = "group") -> Figure:
        return measured("batch", together.case(name, ms), figure)

    def allowed(ms: int) -> Figure:
        """1.3 times what it takes without a server, and ten round trips."""
        memory = group(MEMORY.name, 0)
        return lambda results: {round_: 1.3 * took + 10 * ms for round_, took in memory(results).items()}

    return [
        *(
            Goal(
                f"batch(app), line of {ms} ms : 1.3 x {MEMORY.name} + 10 round trips",
                quotient(group(together.BLOCK, ms), allowed(ms)),
                at_most=1,
            )
            for ms in (1, 5)
        ),
        *(
            Goal(
                f"{REDIS.name} : batch(app), line of {ms} ms",
                quotient(group(REDIS.name, ms), group(together.BLOCK, ms)),
                at_least=least,
            )
            for ms, least in {1: 10, 5: 20}.items()
        ),
        Goal(
            f"batch(app), scheduled : {REDIS.name}, ready",
            quotient(group(together.BLOCK, 0, "group, countdown"), group(REDIS.name, 0)),
            at_most=1,
        ),
    ]


def _fleet() -> list[Goal]:
    lost = {"back after the lease": (5, "s"), "longest script": (5, "ms"), "longest answer": (10, "ms")}
    return [
        *(
            Goal(
                f"{consumers:,} idle consumers of {count} queue(s), CPU of Redis for 100",
                measured("fleet-idle", fleet.case(consumers, count, OURS.name), "for 100"),
                at_most=1.5,
                unit="%",
            )
            for consumers, count in fleet.FLEETS
        ),
        *(
            Goal(
                f"200 consumers die, {figure}",
                measured("fleet-lost", OURS.name, figure),
                at_most=most,
                unit=unit,
            )
            for figure, (most, unit) in lost.items()
        ),
    ]


GOALS = [*_queues(), *_line(), *_together(), *_fleet()]
