"""No Celery message ends a worker, and none is lost, whatever is wrong with it: it runs, waits for a time
that is far away, or is a dead letter whose reason names what is wrong.

``REDISDELAY_FUZZ_CASES`` says how many messages are wrong, in all pools together. ``REDISDELAY_FUZZ_SEED``
makes those of another run again, which has printed its seed. With some pools, the queue is fair: then the
scripts read the headers, too.
"""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from kombu_redisdelay import Queues
from tests.end_to_end.fuzz.account import ends, faults, is_settled, ready_key
from tests.end_to_end.fuzz.generator import Case, cases
from tests.end_to_end.installation import QUEUE, Installation
from tests.environments import CLUSTERS
from tests.search import IS_RANDOM
from tools.harness.cluster import Cluster
from tools.harness.process import wait_until

POOLS = {"prefork": 2, "solo": 1, "threads": 2, "gevent": 10, "eventlet": 10}
#: With these pools, the queue is fair, and so few messages of a key may be unacked.
FAIR, CONCURRENCY = ("solo", "threads", "eventlet"), 3
#: The workers import it. Here, it would change every channel of this process.
NOTING = "tests.end_to_end.fuzz.noting"

CASES = int(os.environ.get("REDISDELAY_FUZZ_CASES", "200"))
SEED = int(os.environ.get("REDISDELAY_FUZZ_SEED", random.randrange(10**6) if IS_RANDOM else 1))

#: Seconds for one pool.
TIMEOUT = 90 + CASES / len(POOLS)

SETTINGS = {
    # Celery's own setting: it notes what becomes of each message.
    "imports": [NOTING],
    "broker_transport_options": {
        "delivery_limit": 3,
        "retry_wait": 0,
        "unknown_task_wait": 1,
        "dead_letter_limit": 10**6,
    },
    "accept_content": ["json"],
}


@pytest.mark.timeout(TIMEOUT + 60)
@pytest.mark.parametrize("pool", POOLS)
def test_every_message_is_accounted_for(site: Installation, pool: str) -> None:
    account_for_all(site, pool, "redisdelay", is_fair=pool in FAIR)


@pytest.mark.timeout(TIMEOUT + 90)
@pytest.mark.skipif(not CLUSTERS, reason="on a cluster only with the oldest and the newest redis-py")
def test_on_a_cluster(cluster: Cluster, tmp_path: Path) -> None:
    with Installation(cluster, tmp_path) as site:
        account_for_all(site, "prefork", "redisdelay-cluster", is_fair=True)


def account_for_all(site: Installation, pool: str, scheme: str, *, is_fair: bool) -> None:
    ours = cases(f"{SEED} {pool}", -(-CASES // len(POOLS)))
    print(f"seed {SEED}: {len(ours)} messages for {pool}")
    if is_fair:
        with Queues(site.producer(scheme)) as queues:
            queues.make_fair(QUEUE)
            queues.limit_keys(QUEUE, concurrency=CONCURRENCY)
    put(site, ours)
    worker = site.worker(
        scheme=scheme,
        pool=pool,
        concurrency=POOLS[pool],
        settings=SETTINGS,
        # Whatever a worker says of them.
        expected=".",
    )
    try:
        wait_until(lambda: is_settled(site, ours) or not worker.running, TIMEOUT, "the end of everything")
    except TimeoutError as error:
        pytest.fail("\n".join([str(error), *faults(site, ours)]))
    assert worker.running, "the worker has ended"
    print(ends(site, ours))


def put(site: Installation, messages: list[Case]) -> None:
    """As a foreign producer does, which checks nothing."""
    with site.redis.pipeline(transaction=False) as pipe:
        for case in messages:
            pipe.execute_command("LPUSH", ready_key(site), case.entry)
        pipe.execute()
