"""What the plain path costs, in function calls and in commands of Redis: they do not depend on the machine.

A budget is raised by hand, in the commit that needs it, which says why. Who makes something cheaper lowers
it.
"""

from __future__ import annotations

import cProfile
import pstats
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kombu.entity import Queue
from kombu.messaging import Consumer, Producer

from kombu_redisdelay.broker.delivery import Request
from kombu_redisdelay.broker.server import line
from kombu_redisdelay.broker.server.wire import unpacked
from tests.environments import ENVIRONMENT, NEWEST
from tests.transport.kit import Site

#: How many calls of redis-py, kombu and Python are counted depends on their releases.
pytestmark = [
    pytest.mark.one_server,
    pytest.mark.skipif(ENVIRONMENT != NEWEST, reason="other releases make other calls"),
]

PUBLISHED: list[tuple[str, dict[str, Any]]] = [
    ("publish", {}),
    ("publish for later", {"eta": "2099-01-01T00:00:00+00:00"}),
    ("publish with a key", {"x-key": "tenant"}),
]
#: Messages that are counted together, and how often: what a busy machine does meanwhile only adds calls.
COUNT, TIMES = 160, 6

#: Function calls for each message, all of them: of Python, kombu, redis-py and ours.
CALLS = {"publish": 149, "publish for later": 174, "publish with a key": 170, "consume and ack": 178}

#: Pool -> its places, and function calls of ours that each task makes in the main process of its worker. On a
#: busy machine, the loop turns more often: some calls of that are counted, too.
CALLS_IN_A_WORKER = {"solo": (1, 39), "threads": (2, 55), "gevent": (20, 49)}

#: The files of what a plain message does not use: it comes through none of them.
OF_FEATURES = {
    *("admission", "archive", "failure", "fair_counts", "fair_keys", "finished", "keeping", "limits"),
    *("patience", "refused", "returned", "revoker", "rpc_results", "stranded", "task_keys"),
    *("unique", "unique_results", "unique_task", "unknown_tasks", "unlisted", "unusable"),
}

#: Messages that one take brings -> commands that Redis runs for it, the script itself among them.
COMMANDS = {0: 9, 1: 12, 16: 27}


def calls(do: Callable[[], object], uses: frozenset[str] = frozenset()) -> float:
    """Function calls for each of :data:`COUNT` messages, the least of :data:`TIMES` times.

    Arguments:
        uses: those of :data:`OF_FEATURES` that these messages come through.
    """
    totals = []
    for _ in range(TIMES):
        profile = cProfile.Profile()
        profile.runcall(do)
        stats: Any = pstats.Stats(profile)
        totals.append(stats.total_calls)
        often = [file for (file, _, _), (_, count, *_) in stats.stats.items() if count >= COUNT / 2]
        assert OF_FEATURES & {Path(file).stem for file in often if "/kombu_redisdelay/" in file} == uses
    return float(min(totals)) / COUNT


@pytest.fixture
def producer(site: Site) -> Any:
    channel = site.channel()
    Queue("q")(channel).declare()
    producer = Producer(channel, serializer="json")
    for _, headers in PUBLISHED[:2]:
        producer.publish({"x": "y"}, routing_key="q", headers=headers)
    return producer


def publish(producer: Any, headers: dict[str, str]) -> None:
    for _ in range(COUNT):
        producer.publish({"x": "y" * 100}, routing_key="q", headers=headers)


@pytest.mark.parametrize(("what", "headers"), PUBLISHED)
def test_publishing(producer: Any, what: str, headers: dict[str, str]) -> None:
    uses = frozenset({"fair_keys"} if "x-key" in headers else ())
    assert calls(lambda: publish(producer, headers), uses) <= CALLS[what]


def test_consuming(site: Site, producer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    # On a slow machine, the reply to each ack would be read by itself.
    monkeypatch.setattr(line, "READ_AFTER", 60.0)
    for _ in range(TIMES + 1):
        publish(producer, {})
    connection, got = site.connect(), 0

    def receive(body: object, message: Any) -> None:
        nonlocal got
        got += 1
        message.ack()

    def consume() -> None:
        until = got + COUNT
        while got < until:
            connection.drain_events(timeout=10)

    channel, queues = connection.channel(), [Queue("q")]
    with Consumer(channel, queues, callbacks=[receive], accept=["json"], prefetch_count=16):
        connection.drain_events(timeout=10)
        found = calls(consume)
    assert got == TIMES * COUNT + 1
    assert found <= CALLS["consume and ack"]


@pytest.mark.parametrize("count", COMMANDS)
def test_taking(site: Site, producer: Any, count: int) -> None:
    """The schedule has a message."""
    consumer = site.channel().consumer
    # The first one is acked, and the lease is fresh.
    [delivery] = consumer.take(Request(["q"], 1)).deliveries
    consumer.ack("q", delivery.tag)
    consumer.confirm_acks()
    for _ in range(count):
        producer.publish("m", routing_key="q")
    take = consumer.takes_in(0).ask_for(Request(["q"], count + 1))
    with site.redis.pipeline(transaction=True) as pipe:
        # Nothing else runs meanwhile.
        pipe.config_resetstat().execute_command(*unpacked(take)).info("commandstats")
        _, _, stats = pipe.execute()
    ran = {name: each["calls"] for name, each in stats.items() if not name.startswith("cmdstat_config")}
    assert ran["cmdstat_rpop" if count else "cmdstat_del"] == (count or 1)
    assert sum(ran.values()) <= COMMANDS[count], ran


@pytest.mark.parametrize("pool", CALLS_IN_A_WORKER)
def test_a_task_in_a_worker(site: Site, pool: str) -> None:
    places, budget = CALLS_IN_A_WORKER[pool]
    worker = [sys.executable, "-m", "tests.transport.worker_calls", site.url, pool, str(places)]
    done = subprocess.run(worker, capture_output=True, text=True, timeout=120, check=True)
    [(found, rooms)] = re.findall(r"^calls (\d+)\nrooms (.+)$", done.stdout, re.MULTILINE)
    assert int(found) <= budget
    assert not OF_FEATURES & {*rooms.split()}
