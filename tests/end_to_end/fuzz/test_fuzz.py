"""No Celery message stops a worker for ever, and none is lost, whatever is wrong with it.

``REDISDELAY_FUZZ_CASES`` says how many messages are wrong, in all pools together. ``REDISDELAY_FUZZ_SEED``
makes those of another run again, which has printed its seed.
"""

from __future__ import annotations

import os
import random

import pytest

from tests.end_to_end.fuzz.account import ends, faults, is_settled
from tests.end_to_end.fuzz.generator import Case, cases
from tests.end_to_end.installation import QUEUE, Installation

POOLS = {"prefork": 2, "solo": 1, "threads": 2, "gevent": 10}
#: The workers import it. Here, it would change every channel of this process.
NOTING = "tests.end_to_end.fuzz.noting"

CASES = int(os.environ.get("REDISDELAY_FUZZ_CASES", "200"))
SEED = int(os.environ.get("REDISDELAY_FUZZ_SEED", random.randrange(10**6)))

#: Seconds for one pool. A message that ends its worker takes as long as the next one needs to start.
TIMEOUT = 60 + CASES / len(POOLS) * 3

SETTINGS = {
    # Celery's own setting: it notes what becomes of each message.
    "imports": [NOTING],
    "broker_transport_options": {"delivery_limit": 3, "dead_letter_limit": 10**6},
    "accept_content": ["json"],
}


@pytest.mark.timeout(TIMEOUT + 60)
@pytest.mark.parametrize("pool", POOLS)
def test_every_message_is_accounted_for(site: Installation, pool: str) -> None:
    ours = cases(f"{SEED} {pool}", -(-CASES // len(POOLS)))
    print(f"seed {SEED}: {len(ours)} messages for {pool}")
    put(site, ours)
    try:
        workers = site.supervise(
            lambda: is_settled(site, ours),
            TIMEOUT,
            "the end of everything",
            pool=pool,
            concurrency=POOLS[pool],
            settings=SETTINGS,
            # Whatever a worker says when it goes down.
            expected=".",
        )
    except TimeoutError as error:
        pytest.fail("\n".join([str(error), *faults(site, ours)]))
    print(f"{len(workers)} workers; {ends(site, ours)}")


def put(site: Installation, messages: list[Case]) -> None:
    """As a foreign producer does, which checks nothing."""
    with site.redis.pipeline(transaction=False) as pipe:
        for case in messages:
            pipe.execute_command("LPUSH", QUEUE, case.entry)
        pipe.execute()
