"""Many producers of a few keys at once, and several consumers: what may run runs, and no more.

Times are those of the monotonic clock, which all processes of a machine share, in seconds.
"""

from __future__ import annotations

import heapq
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from itertools import pairwise
from multiprocessing import get_context
from random import Random
from typing import Any, NamedTuple

from kombu.connection import Connection
from kombu.entity import Queue
from kombu.messaging import Consumer, Producer
from redis import Redis

from kombu_redisdelay import unique_conflict
from kombu_redisdelay.broker.keys import redis_keys
from kombu_redisdelay.broker.unique import DONE, LATEST, MODES, WAITING
from tools.harness.process import wait_until
from tools.harness.redis_server import RedisServer

#: Of one consumer.
PREFETCH = 16

#: Seconds that a message is handled, and that it is put off, at most.
LONGEST_RUN, LONGEST_DELAY = 0.02, 0.05

#: The share of the messages that are due later.
SHARE_LATER = 0.25

#: Seconds until a message that was published last has run, and until an ack has arrived, at most.
PATIENCE, ACK_TAKES = 120.0, 1.0

#: The key that tells the consumers to end.
OVER = "over"

#: How many messages of one key there are at a time, at most: those that wait, or those that are handled, too.
MOST = {WAITING: 1, DONE: 1, LATEST: 2}


class Body(NamedTuple):
    """Which publish this is: it is the content of the message."""

    key: str
    producer: int
    number: int


class Publish(NamedTuple):
    """Attributes:
    holder: id of the message that holds the key; that of this one if it was accepted.
    """

    body: Body
    id: str
    outcome: str
    holder: str
    began: float
    ended: float


class Run(NamedTuple):
    """A message was handled."""

    body: Body
    id: str
    began: float
    ended: float


class Crowd(NamedTuple):
    """How many there are.

    Attributes:
        number: of messages of each producer.
    """

    producers: int
    number: int
    keys: int
    consumers: int


def race(crowd: Crowd, modes: Sequence[str] = MODES) -> bool:
    """Let them race, in one mode after the other. Returns whether all was as it must be."""
    is_right = True
    with RedisServer() as server:
        for mode in modes:
            began = time.monotonic()
            publishes, runs, wrong = run(server, mode, crowd)
            outcomes = Counter(each.outcome for each in publishes)
            took = time.monotonic() - began
            print(f"{mode}: {len(publishes)} published, {dict(outcomes)}, {len(runs)} ran, {took:.0f} s")
            print("\n".join(wrong[:20] or ["As it must be."]), flush=True)
            is_right = is_right and not wrong
    return is_right


def run(server: RedisServer, mode: str, crowd: Crowd) -> tuple[list[Publish], list[Run], list[str]]:
    """One race in an empty database. Returns what was published, what ran, and what is wrong with that."""
    url, keys = server.url(), redis_keys("", mode, "")
    with (
        server.client() as client,
        ProcessPoolExecutor(crowd.producers + crowd.consumers, get_context("fork")) as executor,
    ):
        client.flushdb()
        consumers = [executor.submit(consume, url, mode, seed) for seed in range(crowd.consumers)]
        wait_until(lambda: client.zcard(keys.consumers) == crowd.consumers, PATIENCE, "that all consume")
        producers = [executor.submit(produce, url, mode, seed, crowd) for seed in range(crowd.producers)]
        most = 0
        while not all(each.done() for each in producers):
            most = max(most, _there(client, mode))
            time.sleep(0.005)
        try:
            wait_until(
                lambda: _there(client, mode, with_held=True) == 0 or any(each.done() for each in consumers),
                PATIENCE,
                "the end",
            )
        finally:
            client.set(OVER, 1)
        publishes = [publish for each in producers for publish in each.result()]
        runs = [run for each in consumers for run in each.result()]
        wrong = [*judge(mode, publishes, runs)]
        if most > MOST[mode] * crowd.keys:
            wrong.append(f"{most} messages of {crowd.keys} keys were there at a time")
        left = [key for key in (keys.unique, keys.running) if client.exists(key)]
        return publishes, runs, wrong + [f"{key} is not empty" for key in left]


def _there(client: Redis, mode: str, *, with_held: bool = False) -> int:
    """How many messages there are. With "waiting", those that are handled count only for *with_held*."""
    keys = redis_keys("", mode, "")
    names: Any = client.execute_command("ZRANGE", keys.consumers, 0, -1)
    with client.pipeline() as pipe:
        pipe.llen(keys.ready)
        pipe.zcard(keys.schedule)
        if with_held or mode != WAITING:
            for name in names:
                pipe.hlen(keys.unacked(name.decode()))
        return sum(pipe.execute())


def produce(url: str, mode: str, seed: int, crowd: Crowd) -> list[Publish]:
    """Publish messages, one after the other."""
    random, publishes, conflicts = Random(seed), [], {}

    def note(id: str, holder: str, outcome: str, **_: Any) -> None:
        conflicts[id] = (outcome, holder)

    unique_conflict.connect(note)
    with Connection(url) as connection, Producer(connection) as producer:
        for number in range(crowd.number):
            body = Body(f"k{random.randrange(crowd.keys)}", seed, number)
            id = f"{seed}-{number}"
            headers: dict[str, Any] = {"id": id, "x-unique": body.key, "x-unique-while": mode}
            if random.random() < SHARE_LATER:
                headers["x-delay"] = 1000 * random.uniform(0, LONGEST_DELAY)
            began = time.monotonic()
            producer.publish(body, routing_key=mode, headers=headers)
            outcome, holder = conflicts.pop(id, ("accepted", id))
            publishes.append(Publish(body, id, outcome, holder, began, time.monotonic()))
    return publishes


def consume(url: str, mode: str, seed: int) -> list[Run]:
    """Handle messages, several at a time, until it is over."""
    random, runs = Random(seed), []
    handled: list[tuple[float, int, float, Any]] = []

    def begin(_: Any, message: Any) -> None:
        now = time.monotonic()
        heapq.heappush(handled, (now + random.uniform(0, LONGEST_RUN), id(message), now, message))

    with (
        Connection(url) as connection,
        Redis.from_url(url.replace("redisdelay:", "redis:")) as client,
        Consumer(connection.channel(), [Queue(mode)], callbacks=[begin], prefetch_count=PREFETCH),
    ):
        while not client.exists(OVER):
            pause = handled[0][0] - time.monotonic() if handled else LONGEST_DELAY
            with suppress(TimeoutError):
                connection.drain_events(timeout=max(0.001, pause))
            while handled and handled[0][0] <= time.monotonic():
                _, _, began, message = heapq.heappop(handled)
                runs.append(Run(Body(*message.payload), message.headers["id"], began, ended=time.monotonic()))
                message.ack()
    return runs


def judge(mode: str, publishes: Sequence[Publish], runs: Sequence[Run]) -> Iterator[str]:
    """What is not as it must be, each in a line."""
    accepted = {each.id for each in publishes if each.holder == each.id}
    times = Counter(each.id for each in runs)
    yield from (f"{id} was accepted, and did not run" for id in sorted(accepted - times.keys()))
    yield from (f"{id} was not accepted, and ran" for id in sorted(times.keys() - accepted))
    yield from (f"{id} ran {count} times" for id, count in times.items() if count > 1)

    by_id = {each.id: each for each in runs}
    for publish in publishes:
        holder = by_id.get(publish.holder)
        if holder is not None and _until(mode, holder) < publish.began:
            yield f"{publish.id} was {publish.outcome} for {publish.holder}, which was gone"

    of_key: defaultdict[str, list[Run]] = defaultdict(list)
    for each in sorted(runs, key=lambda each: each.began):
        of_key[each.body.key].append(each)
    if mode != WAITING:
        for key, each_run in of_key.items():
            yield from (
                f"{key}: {one.id} and {other.id} ran at a time"
                for one, other in pairwise(each_run)
                if other.began < one.ended
            )
    if mode == LATEST:
        yield from _unseen(publishes, of_key)


def _until(mode: str, run: Run) -> float:
    """Until when its message may have held the key."""
    return run.ended + ACK_TAKES if mode == DONE else run.began


def _unseen(publishes: Sequence[Publish], runs: Mapping[str, Sequence[Run]]) -> Iterator[str]:
    """The keys of which the last run had a body that another one was published after."""
    ended = {each.body: each.ended for each in publishes}
    last: dict[str, float] = {}
    for each in publishes:
        last[each.body.key] = max(each.began, last.get(each.body.key, 0))
    for key, began in last.items():
        if key not in runs or ended[runs[key][-1].body] < began:
            yield f"{key}: nobody saw the newest body"
