"""Makes and leaves queues in every way that there is, and waits until nothing of them is left in Redis."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing

from kombu.connection import Connection
from kombu.entity import Exchange, Queue
from kombu.messaging import Producer
from redis import Redis

from kombu_redisdelay import Messages, Selection
from kombu_redisdelay.broker.keys import known_queues, redis_keys
from kombu_redisdelay.broker.known_queues import forget_unused
from tests.soak.consumer import ConsumerProcess
from tools.harness.redis_server import RedisServer

#: The queue of the consumer that looks after those of the others.
IDLE = "idle"

#: What the keys of kombu itself begin with, which it keeps.
BINDINGS = b"_kombu.binding"

#: Seconds after which it is known that something stays.
PATIENCE = 600.0

#: Queues of one process that is killed.
QUEUES_PER_PROCESS = 250

#: An hour, so that nothing is due meanwhile.
LATER = {"x-delay": 3_600_000}

EXCHANGE = Exchange("soak")


def make_and_leave(number: int) -> bool:
    """Make and leave so many queues. Returns whether nothing is left of them."""
    with ExitStack() as exit_:
        server = exit_.enter_context(RedisServer())
        client = exit_.enter_context(server.client())
        idle = exit_.enter_context(ConsumerProcess(server.url(), [IDLE]))
        for index, (how, leave) in enumerate(LEAVING.items()):
            names = [f"{how} {number}" for number in range(index, number, len(LEAVING))]
            began = time.monotonic()
            leave(server, names)
            print(f"{len(names)} queues {how}: {time.monotonic() - began:.0f} s", flush=True)
        _wait(client, lambda: not _left(client, besides=IDLE), "until only the idle consumer is left")
        idle.stop()
        with Connection(server.url()) as connection, closing(connection.channel()) as channel:
            _wait(
                client,
                lambda: not deque(forget_unused(channel.store)) and not _left(client),
                "until it is forgotten",
            )
        left = _left(client) | {key for key in _histories(client) if client.ttl(key) < 0}
        print("\n".join(["Left:", *map(repr, sorted(left)[:20])] if left else ["Nothing is left."]))
        return not left


def _delete(server: RedisServer, names: Sequence[str]) -> None:
    with Connection(server.url()) as connection, connection.Producer(exchange=EXCHANGE) as producer:
        for name in names:
            queue = _declare(connection, name)
            _publish(producer, name)
            queue.delete()


def _let_expire(server: RedisServer, names: Sequence[str]) -> None:
    with Connection(server.url()) as connection, connection.Producer(exchange=EXCHANGE) as producer:
        for name in names:
            _declare(connection, name, expires=2)
            _publish(producer, name)


def _kill_consumers(server: RedisServer, names: Sequence[str]) -> None:
    for first in range(0, len(names), QUEUES_PER_PROCESS):
        with ConsumerProcess(server.url(), names[first : first + QUEUES_PER_PROCESS]) as process:
            process.kill()


def _cancel(server: RedisServer, names: Sequence[str]) -> None:
    with (
        Connection(server.url()) as connection,
        connection.Producer() as producer,
        Messages(connection) as delayed,
    ):
        for name in names:
            _publish(producer, name, ready=False)
            delayed.cancel(Selection(state="scheduled", queue=name))


LEAVING: dict[str, Callable[[RedisServer, Sequence[str]], None]] = {
    "deleted": _delete,
    "expiring": _let_expire,
    "of killed consumers": _kill_consumers,
    "cancelled": _cancel,
}


def _declare(connection: Connection, name: str, expires: float | None = None) -> Queue:
    queue = Queue(name, EXCHANGE, name, expires=expires, channel=connection.default_channel)
    queue.declare()
    return queue


def _publish(producer: Producer, name: str, *, ready: bool = True) -> None:
    """Leave a message for an hour, and one that is ready."""
    if ready:
        producer.publish("now", routing_key=name)
    producer.publish("later", routing_key=name, headers=LATER)


def _left(client: Redis, besides: str = "") -> set[bytes]:
    """The keys that should not be there, and the queues that are still known, but for one. What has happened
    in a queue is kept for a week at most."""
    keys: list[bytes] = client.execute_command("KEYS", "*")
    known: list[bytes] = client.execute_command("ZRANGE", known_queues(""), 0, -1)
    found = {key for key in keys if not key.startswith(BINDINGS)} - _histories(client) | set(known)
    if not besides:
        return found
    own = f"{{{besides}}}".encode()
    return {key for key in found if own not in key} - {besides.encode(), known_queues("").encode()}


def _histories(client: Redis) -> set[bytes]:
    keys: list[bytes] = client.execute_command("KEYS", redis_keys("", "*", "").history)
    return set(keys)


def _wait(client: Redis, condition: Callable[[], bool], what: str) -> None:
    """Wait, and tell how long that takes and how many commands the others send meanwhile."""
    keys, commands, looks, began = client.dbsize(), _commands(client), 0, time.monotonic()
    while not condition() and time.monotonic() - began < PATIENCE:
        looks += 1
        # Each look is work for the server, whose other clients are measured.
        time.sleep(1)
    took = time.monotonic() - began
    rate = (_commands(client) - commands) / max(took, 1)
    print(f"{keys} keys: {took:.0f} s {what}, {rate:.0f} commands a second, with {looks} looks", flush=True)


def _commands(client: Redis) -> int:
    return int(client.info("stats")["total_commands_processed"])
