"""What has to come out, each goal as a figure computed round by round."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median

from tools.benchmarks.limits import LIMIT
from tools.benchmarks.peers import MEMORY, OURS, RABBITMQ, REDIS, REDIS_PLUS, Peer
from tools.benchmarks.quotients import Figure, among, largest, measured, ours_to, publish_limit, quotient
from tools.benchmarks.results import Results, Spread
from tools.benchmarks.workloads import (
    WORKLOADS,
    control,
    fair,
    fleet,
    kills,
    line,
    pools,
    queues,
    together,
    unique,
    unique_held,
)
from tools.benchmarks.workloads.lateness import CROWDED
from tools.benchmarks.workloads.publish import AFTER_KOMBU, NAMED, SCHEDULE_AFTER_KOMBU


@dataclass(frozen=True)
class Goal:
    """A figure that has to be *at_least* or *at_most* something.

    Attributes:
        unit: of the figure; "x" for a ratio.
    """

    what: str
    figure: Figure
    at_least: float | None = None
    at_most: float | None = None
    unit: str = "x"

    def spread(self, results: Results) -> Spread | None:
        """What came out; ``None`` where something is missing for it."""
        values = self.figure(results).values()
        return Spread.of(values) if values else None

    def met(self, results: Results) -> bool | None:
        """Whether the median is as it has to be; ``None`` where something is missing for it."""
        spread = self.spread(results)
        if spread is None:
            return None
        return (self.at_least is None or spread.median >= self.at_least) and (
            self.at_most is None or spread.median <= self.at_most
        )


def _consume() -> list[Goal]:
    goals = {REDIS: 10.0, REDIS_PLUS: 6.0, RABBITMQ: 1.5, MEMORY: 0.45}
    limit = measured("consume", OURS.name, LIMIT)
    return [
        *(
            Goal(f"consume + ack : {peer.name}", ours_to(peer, "consume", "rate"), at_least=least)
            for peer, least in goals.items()
        ),
        Goal(
            "consume + ack : limit, measured in one process",
            quotient(measured("consume", OURS.name, "rate"), limit),
        ),
        # If acks are not kept back: what nobody can be faster than.
        Goal(
            f"consume + ack, limit : {MEMORY.name}",
            quotient(limit, measured("consume", MEMORY.name, "rate")),
        ),
    ]


def _publish() -> list[Goal]:
    goals = []
    for when in ("immediate", "scheduled"):
        for figure in (when, f"{when}, {NAMED}"):
            ours, limit = measured("publish", OURS.name, figure), publish_limit(figure)
            goals += [
                Goal(f"publish, {figure} : limit", quotient(ours, limit), at_least=0.65),
                Goal(f"publish, {figure} : {REDIS.name}", ours_to(REDIS, "publish", figure), at_least=3),
            ]
    goals += [
        *(
            Goal(
                f"publish, {figure} : limit, measured in one process",
                quotient(measured("publish", OURS.name, figure), measured("publish", OURS.name, limit)),
            )
            for figure, limit in {"immediate": AFTER_KOMBU, "scheduled": SCHEDULE_AFTER_KOMBU}.items()
        ),
        # With nothing around what stores the message.
        Goal(
            "publish, scheduled, limit measured in one process : limit",
            quotient(measured("publish", OURS.name, SCHEDULE_AFTER_KOMBU), publish_limit("scheduled")),
        ),
        # Kombu needs one round trip itself there: what nobody can be faster than.
        Goal(
            f"publish, immediate, limit : {REDIS.name}",
            quotient(publish_limit("immediate"), measured("publish", REDIS.name, "immediate")),
        ),
    ]
    for figure, alone in {"batch": "immediate", "scheduled batch": "scheduled"}.items():
        ours = measured("publish", OURS.name, figure)
        goals += [
            Goal(f"publish, {figure} : one by one", quotient(ours, measured("publish", OURS.name, alone))),
            Goal(f"publish, {figure} : {REDIS.name}", ours_to(REDIS, "publish", figure)),
        ]
    return goals


def _worker() -> list[Goal]:
    return [
        Goal(f"worker, {pool} : {peer.name}", ours_to(peer, f"worker-{pool}", "rate"), at_least=least)
        for pool, times in {"solo": 5.0, "threads": 3.0, "prefork": 2.5}.items()
        for peer, least in {REDIS: times, RABBITMQ: 1.0}.items()
    ]


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


def _acks() -> list[Goal]:
    def cost(which: str) -> Figure:
        return quotient(
            measured("acks", OURS.name, f"no ack, {which}"), measured("acks", OURS.name, f"ack, {which}")
        )

    return [
        *(
            Goal(f"cost with acks : no_ack, {consumers} consumer(s)", cost(consumers), at_most=1.3)
            for consumers in ("1", "10")
        ),
        # If acks are not kept back: what the least is that they cost.
        Goal("cost with acks : no_ack, limits, measured in one process", cost(LIMIT)),
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


def _unique() -> list[Goal]:
    def to_plain(what: str, how: str) -> Figure:
        return quotient(
            measured("unique", OURS.name, f"{what}, {how}"),
            measured("unique", OURS.name, f"{what}, {unique.PLAIN}"),
        )

    consume = dict(zip(unique.MODES, (0.95, 0.85, 0.85), strict=True))
    return [
        *(
            Goal(f"publish with a key, {how} : without", to_plain("publish", how), at_least=0.82)
            for how in unique.MODES
        ),
        Goal("apply_async with a key : without", to_plain("apply_async", "with a key"), at_least=0.9),
        *(
            Goal(f"consume + ack with a key, {how} : without", to_plain("consume", how), at_least=least)
            for how, least in consume.items()
        ),
        Goal("memory of a key", measured("unique", OURS.name, "bytes of a key"), at_most=200, unit="bytes"),
        Goal(
            "memory of a key of 64 bytes, of a million",
            measured("unique-held", OURS.name, unique_held.BYTES),
            at_most=200,
            unit="bytes",
        ),
        Goal(
            "a million keys, longest script",
            largest(*(measured("unique-held", OURS.name, figure) for figure in unique_held.LONGEST.values())),
            at_most=5,
            unit="ms",
        ),
    ]


def _fair() -> list[Goal]:
    def to(what: str, case: str, other: str) -> Figure:
        return quotient(
            measured("fair", OURS.name, f"{what}, {case}"), measured("fair", OURS.name, f"{what}, {other}")
        )

    plain, thousand, many = (f"prefetch 16, {name}" for name in (fair.PLAIN, "1,000 keys", fair.MANY))
    return [
        Goal("consume + ack, 1 key : plain", to("consume", "prefetch 16, 1 key", plain), at_least=0.9),
        Goal("consume + ack, 1,000 keys : plain", to("consume", thousand, plain), at_least=0.85),
        *(
            Goal(
                f"CPU of Redis, 1,000 keys, prefetch {prefetch} : plain",
                to("CPU", f"prefetch {prefetch}, 1,000 keys", f"prefetch {prefetch}, {fair.PLAIN}"),
                at_most=1.5,
            )
            for prefetch in fair.PREFETCHES
        ),
        Goal("100,000 keys : 1,000, rate", to("consume", many, thousand), at_least=0.75),
        Goal("100,000 keys : 1,000, CPU", to("CPU", many, thousand), at_most=1.5),
        Goal("10,000 keys one at a time : plain, rate", to("consume", "one at a time", plain), at_least=0.5),
        Goal("10,000 keys one at a time : plain, CPU", to("CPU", "one at a time", plain), at_most=3),
        Goal("shares of weights", measured("fair", OURS.name, "error of shares"), at_most=1, unit="%"),
        Goal("longest script", measured("fair", OURS.name, "longest script"), at_most=5, unit="ms"),
        Goal("memory, 20 a key : plain", measured("fair", OURS.name, "memory, 20 a key"), at_most=1.05),
        Goal(
            "memory of a key with one message",
            measured("fair", OURS.name, "memory, 1 a key"),
            at_most=250,
            unit="bytes",
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


def _control() -> list[Goal]:
    def to_none(name: str, figure: str) -> Figure:
        return quotient(measured("control", name, figure), measured("control", control.NO_CONTROL, figure))

    def binding(figure: str) -> Figure:
        return measured("control-binding", OURS.name, figure)

    return [
        *(
            Goal(f"consume + ack, {name} : no control", to_none(name, "rate"), at_least=0.8)
            for name in (control.CONCURRENCY, control.RATE)
        ),
        Goal(
            "10 consumers of a paused queue, CPU of Redis",
            binding("paused, server CPU"),
            at_most=1,
            unit="%",
        ),
        Goal("taken at a rate of 200/s : 200/s", binding("share"), at_least=0.99),
        *(
            Goal(f"later than the rate allows, {figure}", binding(figure), at_most=most, unit="ms")
            for figure, most in {"p50": 1, "p99": 5}.items()
        ),
    ]


def _pools() -> list[Goal]:
    def ratios(figure: str) -> list[Figure]:
        return [
            quotient(
                measured("pools", case.name, figure), measured("pools", case.name, f"{figure}, {REDIS.name}")
            )
            for case in WORKLOADS["pools"].cases
        ]

    return [
        Goal(
            f"pools, tasks a second : {REDIS.name}, the worst of {len(ratios('rate'))}",
            among(min, *ratios("rate")),
            at_least=0.95,
        ),
        Goal(
            f"pools, tasks a second : {REDIS.name}, the one in the middle",
            among(median, *ratios("rate")),
            at_least=1.5,
        ),
        Goal(f"pools, lone task, p50 : {REDIS.name}, the worst", largest(*ratios("p50")), at_most=1.3),
        *(
            Goal(
                f"pools, a limit of {pools.LIMIT}, {case.name} : {pools.LIMIT} slots",
                measured("pools-limited", case.name, "share"),
                at_least=0.8,
            )
            for case in WORKLOADS["pools-limited"].cases
        ),
        *(
            Goal(
                f"20 kills, {case.name}, early acks, begun twice",
                measured("kills", case.name, "begun twice"),
                at_most=0 if case.name.split()[0] != "prefork" else None,
                unit="tasks",
            )
            for case in kills.WORKLOAD.cases
        ),
    ]


GOALS: list[Goal] = [
    *_consume(),
    *_publish(),
    *_worker(),
    *_waiting(),
    *_cost(),
    *_acks(),
    *_growth(),
    *_burst(),
    *_queues(),
    *_line(),
    *_together(),
    *_unique(),
    *_fair(),
    *_fleet(),
    *_control(),
    *_pools(),
]
