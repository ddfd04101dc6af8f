"""What has to come out of messages that are published and consumed one after the other."""

from __future__ import annotations

from tools.benchmarks.goals.goal import Goal
from tools.benchmarks.limits import LIMIT
from tools.benchmarks.peers import MEMORY, OURS, RABBITMQ, REDIS, REDIS_PLUS
from tools.benchmarks.quotients import Figure, measured, ours_to, publish_limit, quotient
from tools.benchmarks.workloads.publish import AFTER_KOMBU, NAMED, SCHEDULE_AFTER_KOMBU


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


GOALS = [*_consume(), *_publish(), *_worker(), *_acks()]
