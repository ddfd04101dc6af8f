"""Puts messages into each state."""

from __future__ import annotations

from tests.cli.site import QUEUE, Site

SCHEDULED, READY, HELD, DEAD = "scheduled", "ready", "held", "dead"


def ready(site: Site, *ids: str, task: str = "shop.close", queue: str = QUEUE) -> None:
    for id in ids:
        site.send(task, args=[id], task_id=id, queue=queue)


def scheduled(
    site: Site, *ids: str, task: str = "shop.close", queue: str = QUEUE, seconds: float = 3600
) -> None:
    for id in ids:
        site.send(task, args=[id], task_id=id, queue=queue, countdown=seconds)


def dead(site: Site, *ids: str, task: str = "shop.close", queue: str = QUEUE) -> None:
    """As dead letters, with what they were published with."""
    for id in ids:
        site.bury(payload(site, id, task), "ValueError: it failed", queue)


def held(site: Site, *ids: str) -> None:
    """By one worker."""
    site.add_consumer("worker", 60_000)
    for id in ids:
        key = site.store.keys(QUEUE).unacked("worker")
        site.redis.hset(key, id, f"0:{payload(site, id, 'shop.close')}")


def payload(site: Site, id: str, task: str) -> str:
    site.send(task, args=[id], task_id=id, queue="elsewhere")
    return str(site.redis.lpop("elsewhere"))
