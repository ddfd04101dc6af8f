"""Connections, consumers and a look into Redis for the tests of the kombu layer."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import datetime, timedelta, timezone
from typing import Any

from kombu.asynchronous import Hub
from kombu.connection import Connection
from kombu.entity import Exchange, Queue
from kombu.messaging import Consumer, Producer

from kombu_redisdelay.broker.keys import RedisKeys, redis_keys
from tests.dead import dead_letters
from tools.harness.cluster import Cluster

#: Long enough for two slow cores, never waited for when things are right.
PATIENCE = 30.0

#: Where a wait for messages lasts so long, one that comes within our patience was noticed.
LONG_POLL = 3 * PATIENCE

#: kombu's, between the name of a queue and a priority step.
SEPARATOR = "\x06\x16"


def drain(
    connection: Connection, until: Callable[[], object], timeout: float = PATIENCE, each: float = 0.05
) -> None:
    """Drain events until the condition holds, *each* time for so many seconds at most."""
    deadline = time.monotonic() + timeout
    while not until():
        if time.monotonic() > deadline:
            raise TimeoutError(f"after {timeout:g} s of draining events")
        with suppress(socket.timeout):
            connection.drain_events(timeout=each)


def drain_for(connection: Connection, seconds: float) -> None:
    """Drain events for so long, to show that something does not come."""
    end = time.monotonic() + seconds
    while (remaining := end - time.monotonic()) > 0:
        with suppress(socket.timeout):
            connection.drain_events(timeout=remaining)


def event_loop(connection: Connection) -> Iterator[object]:
    """kombu's event loop, as a Celery worker runs it, with the channels of the *connection*."""
    hub = Hub()
    connection.register_with_event_loop(hub)
    loop: Iterator[object] = hub.create_loop()
    return loop


def turn(loop: Iterator[object], until: Callable[[], object]) -> None:
    """Run the event loop until the condition holds."""
    deadline = time.monotonic() + PATIENCE
    while not until():
        assert time.monotonic() < deadline, "the event loop does not get there"
        next(loop)


def waits(channel: Any) -> bool:
    """Whether *channel* has asked to be woken, for all its queues."""
    return all(fetcher.is_waiting and not fetcher.is_taking for fetcher in channel.intake.fetchers)


def look_after_queues(channel: Any) -> None:
    """Have *channel* make a whole round of its queues, now."""
    assert channel.consumer
    channel._maintenance._known.clear()
    channel._maintenance.queues_have_changed()
    while channel.look_after_queues():
        pass


def publish(channel: Any, *bodies: str, queue: str = "q", **options: Any) -> None:
    """Publish to *queue* through the default exchange, or wherever *options* say."""
    producer = Producer(channel)
    if isinstance(options.get("exchange"), Exchange):
        options["declare"] = [options["exchange"]]
    for body in bodies:
        producer.publish(body, **{"exchange": "", "routing_key": queue, **options})


def in_seconds(seconds: float) -> datetime:
    return datetime.now(timezone.utc) + timedelta(seconds=seconds)


class Inbox:
    """A consumer that keeps what it is given."""

    def __init__(
        self,
        channel: Any,
        *queues: str | Queue,
        prefetch: int = 0,
        no_ack: bool = False,
        on_message: Callable[[Any], object] | None = None,
    ) -> None:
        self.messages: list[Any] = []
        self._on_message = on_message
        channel.basic_qos(0, prefetch, False)
        self.consumer = Consumer(
            channel,
            [Queue(queue) if isinstance(queue, str) else queue for queue in queues or ("q",)],
            on_message=self._receive,
            no_ack=no_ack,
        )
        self.consumer.consume()

    def _receive(self, message: Any) -> None:
        self.messages.append(message)
        if self._on_message is not None:
            self._on_message(message)

    @property
    def bodies(self) -> list[str]:
        return [message.payload for message in self.messages]

    def __len__(self) -> int:
        return len(self.messages)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.messages)


class Site:
    """A server or a *cluster*, the connections to it, and what is in there.

    Attributes:
        redis: redis-py's client. On a cluster, it is about all servers.
    """

    def __init__(self, url: str, client: Any, cluster: Cluster | None = None) -> None:
        self.url = url
        self.redis = client
        self.cluster = cluster
        self._is_cluster = "-cluster://" in url
        self._connections: list[Connection] = []

    def another(self) -> Site:
        """The same, with connections of its own."""
        return Site(self.url, self.redis, self.cluster)

    def connect(self, url: str | None = None, **options: Any) -> Any:
        connection = Connection(url or self.url, transport_options=options)
        self._connections.append(connection)
        return connection

    def channel(self, **options: Any) -> Any:
        """A channel on a connection of its own."""
        return self.connect(**options).channel()

    def close(self) -> None:
        for connection in self._connections:
            connection.release()

    def keys(self, queue: str = "q", prefix: str = "") -> RedisKeys:
        return redis_keys(prefix, queue, SEPARATOR, in_slots=self._is_cluster)

    def bindings(self, exchange: str) -> str:
        """The key of the bindings of *exchange*."""
        return f"{{_kombu.binding}}.{exchange}" if self._is_cluster else f"_kombu.binding.{exchange}"

    def all_keys(self, pattern: str = "*") -> list[bytes]:
        """All keys that there are."""
        if self.cluster is None:
            return list(self.redis.keys(pattern))
        return [key for node in self.cluster.primaries for key in node.call("KEYS", pattern)]

    def client_of(self, queue: str = "q") -> Any:
        """A client of the server that has *queue*."""
        if self.cluster is None:
            return self.redis
        return self.redis.get_redis_connection(self.redis.get_node_from_key(self.keys(queue).wake))

    def flush(self) -> None:
        """Remove everything."""
        if self.cluster is None:
            self.redis.flushall()
        else:
            self.cluster.flush()

    def listeners(self) -> int:
        """To how many channels and patterns of PUB/SUB somebody listens."""
        if self.cluster is None:
            return int(self.redis.pubsub_numpat()) + len(self.redis.pubsub_channels())
        return sum(
            node.call("PUBSUB", "NUMPAT") + len(node.call("PUBSUB", "CHANNELS"))
            for node in self.cluster.primaries
        )

    def kill_connections(self) -> None:
        """Have the servers close all connections of others."""
        if self.cluster is None:
            self.redis.client_kill_filter(_type="normal", skipme=True)
        else:
            self.cluster.everywhere("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")

    def ready(self, queue: str = "q") -> int:
        return int(self.redis.llen(self.keys(queue).ready))

    def scheduled(self, queue: str = "q") -> int:
        return int(self.redis.zcard(self.keys(queue).schedule))

    def unacked(self, queue: str = "q") -> int:
        """How many messages are held in Redis, once the acks so far have come there."""
        for connection in self._connections:
            for channel in (connection.connected and connection.transport.channels) or ():
                if getattr(channel, "_consumer", None) is not None:
                    channel.consumer.confirm_acks()
        keys = self.all_keys(self.keys(queue).unacked("*"))
        return sum(self.redis.hlen(key) for key in keys)

    def dead(self, queue: str = "q") -> list[bytes]:
        """Dead letters, the newest first."""
        return dead_letters(self.redis, self.keys(queue))[::-1]

    def end_leases(self, queue: str = "q") -> None:
        """Write that the lease of every consumer of *queue* has ended. Ours learn of it, as they would if
        they had not renewed it."""
        key = self.keys(queue).consumers
        for consumer in self.redis.zrange(key, 0, -1):
            self.redis.zadd(key, {consumer: 1})
        for connection in self._connections:
            for channel in (connection.connected and connection.transport.channels) or ():
                if getattr(channel, "_consumer", None) is not None:
                    channel.consumer._lease._ends[key] = 1.0
