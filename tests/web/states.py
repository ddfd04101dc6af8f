"""Puts messages into each state."""

from __future__ import annotations

from typing import Any

from kombu.connection import Connection

from kombu_redisdelay.broker.known_queues import record
from kombu_redisdelay.operations import fair
from kombu_redisdelay.operations.states import STATES
from tests.cli.site import QUEUE, Site
from tests.failed import keep_failed
from tests.finished import keep_finished

SCHEDULED, READY, HELD, FAILED, DEAD = "scheduled", "ready", "unacked", "failed", "dead"

LONG = "reports.with.a.very.long.name.that.somebody.has.chosen.in.a.hurry"

#: A key of 256 bytes.
UGLY = "🔑<script>document.title = 'evil'</script>" + 212 * "x"

#: A key of a fair queue, of 64 bytes.
UGLY_KEY = "🔑<script>document.title = 'evil'</script>" + 20 * "x"

#: All pages of a broker that has :func:`messages_in_each_state`.
PAGES = (
    "/",
    "/messages",
    *(f"/messages?state={state}" for state in STATES if state != SCHEDULED),
    "/messages?before=soon",
    "/message?id=s1",
    "/message?id=blocked",
    "/failed",
    "/failed?queue=celery",
    "/message?id=f1",
    "/message?id=done",
    "/message?id=s59",
    "/message?id=nothing",
    "/queue?name=celery",
    f"/queue?name={LONG}",
    "/keys?name=celery",
    f"/keys?name={LONG}",
    "/memory",
    "/doctor",
    "/nothing",
)


def messages_in_each_state(site: Site) -> None:
    delivered(site, "x1", "x2", "x3")
    scheduled(site, *(f"s{number}" for number in range(60)))
    scheduled(site, "long", queue=LONG, task="<script>document.title = 'evil'</script>" + "x" * 500)
    keyed(site)
    ready(site, "r1", "r2")
    held(site, "h1")
    for id in ("holder", "blocked"):
        site.send("shop.sync", task_id=id, headers={"x-unique": UGLY, "x-unique-while": "latest"})
    failed(site, "f1", "f2")
    keep_finished(site.store, QUEUE, "done", "s59")
    keep_finished(site.store, LONG, UGLY, task=UGLY.replace(" ", ""), outcome="failed", error="KeyError")
    dead(site, "dead1")


def keyed(site: Site) -> None:
    """A fair queue, and keys of it: an ugly one, one that is paused, some without anything special, none."""
    fair.make_fair(site.store, [LONG])
    fair.limit_keys(site.store, LONG, rate="100/m", concurrency=2)
    fair.limit_key(site.store, LONG, UGLY_KEY, rate="1000000/h", burst=1_000_000)
    fair.pause_key(site.store, LONG, "paused")
    for key in (UGLY_KEY, "paused", *(f"tenant-{number}" for number in range(12)), ""):
        site.send(headers={"x-key": key}, queue=LONG)


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


def failed(site: Site, *ids: str, task: str = "shop.close", queue: str = QUEUE, **noted: Any) -> None:
    for id in ids:
        keep_failed(site.store, queue, id, payload(site, id, task), task, **noted)


def held(site: Site, *ids: str) -> None:
    """By one worker."""
    site.add_consumer("worker", 60_000)
    for id in ids:
        key = site.store.keys(QUEUE).unacked("worker")
        site.redis.hset(key, id, f"0:{payload(site, id, 'shop.close')}")


def delivered(site: Site, *ids: str) -> None:
    """Delivered and acked some time ago, which the history of the queue tells."""
    with Connection(site.app.conf.broker_url) as connection:
        channel = connection.channel()
        record(site.store, [QUEUE])
        for id in ids:
            site.send("shop.close", task_id=id)
            message = channel.basic_get(QUEUE)
            assert message is not None
            message.ack()
            record(site.store, [QUEUE])
    history = site.store.keys(QUEUE).history
    for unit, seconds in (("minute", 600), ("hour", 3 * 3600)):
        _, *totals = site.redis.hget(history, unit).split()
        began_s = site.now_ms() // 1000 - seconds
        site.redis.hset(history, unit, " ".join([str(began_s), *("0" for _ in totals)]))
    record(site.store, [QUEUE])


def payload(site: Site, id: str, task: str) -> str:
    site.send(task, args=[id], task_id=id, queue="elsewhere")
    return str(site.redis.lpop("elsewhere"))
