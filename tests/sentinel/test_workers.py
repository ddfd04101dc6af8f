"""Celery workers of each pool while another server becomes the primary."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.end_to_end.installation import Installation
from tests.environments import PROXIES
from tests.faults.workers import LOST_CONNECTION
from tests.sentinel.load import Load, wait_all_work
from tools.harness.process import wait_until
from tools.harness.redis_server import RedisServer
from tools.harness.sentinel import MASTER, SentinelSite, cut_off, go_on, pause, reconnect

#: Seconds. On a busy machine, hasty sentinels may fail over once more. What this undoes, an ack or a message
#: that was given back, is done again within a minute.
DONE_AGAIN = 60.0
POOLS = ("prefork", "threads", "solo", "gevent")
SCHEME = "redisdelay-sentinel"

#: What a worker may log meanwhile. A failover may lose that it took a message.
EXPECTED = f"{LOST_CONNECTION}|The lease of this consumer was lost|Keys have vanished from Redis"

#: Seconds after a failover within which everything goes on.
SOON = 30.0

#: What happens to a primary, and what ends it. Where there are proxies, it is partitioned as well.
HARMS: dict[str, tuple[Callable[[RedisServer], object], Callable[[RedisServer], object]]] = {
    "killed": (RedisServer.kill, RedisServer.restart),
    "paused": (pause, go_on),
    "cut off": (cut_off, reconnect),
}


def test_all_go_over_by_themselves(tmp_path: Path) -> None:
    options = {"master_name": MASTER, "confirm_replicas": 1}
    with (
        SentinelSite(hasty=True, proxied=PROXIES) as sentinels,
        Installation(sentinels, tmp_path, broker_transport_options=options) as site,
    ):
        harms = {**HARMS, "partitioned": (sentinels.partition, sentinels.reunite)} if PROXIES else HARMS
        workers = [
            site.start_worker(scheme=SCHEME, pool=pool, queues=[pool], expected=EXPECTED) for pool in POOLS
        ]
        for worker in workers:
            worker.wait_ready()
        with Load(site.producer(SCHEME), POOLS) as load:
            wait_all_work(site, load, POOLS, SOON, "at first")
            for name, (harm, mend) in harms.items():
                before = sentinels.primary()
                harm(before)
                sentinels.wait_failover(before)
                wait_all_work(site, load, POOLS, SOON, f"after the primary was {name}")
                mend(before)
                sentinels.wait_whole()
                wait_all_work(site, load, POOLS, SOON, f"after the one that was {name} is back")
        site.wait_ended(load.accepted, DONE_AGAIN)
        assert site.ledger.early() == []
        wait_until(lambda: not any(map(site.unacked, POOLS)), DONE_AGAIN, "acks")
        assert all(worker.running for worker in workers)


def test_what_runs_meanwhile_stays_with_its_worker(tmp_path: Path) -> None:
    """A lease of three seconds, whose latest renewals the new primary does not know."""
    options = {"master_name": MASTER, "visibility_timeout": 3}
    with (
        SentinelSite(hasty=True) as sentinels,
        Installation(sentinels, tmp_path, broker_transport_options=options) as site,
    ):
        # Each looks for messages of consumers whose lease has ended.
        workers = [
            site.start_worker(scheme=SCHEME, pool=pool, queues=POOLS, expected=EXPECTED, concurrency=4)
            for pool in ("prefork", "gevent")
            for _ in range(2)
        ]
        for worker in workers:
            worker.wait_ready()
        producer = site.producer(SCHEME)
        tasks = [str(number) for number in range(8)]
        for number, task in enumerate(tasks):
            producer.send_task("work_late", [task, 12], queue=POOLS[number % len(POOLS)])
        site.wait_started(*tasks)
        before = sentinels.primary()
        with before.client() as client:
            assert client.wait(2, 5000) == 2
        before.kill()
        sentinels.wait_failover(before)
        site.wait_ended(tasks)
        wait_until(lambda: not any(map(site.unacked, POOLS)), DONE_AGAIN, "acks")
        assert site.ledger.run_twice() == {}
