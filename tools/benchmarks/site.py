"""Where a measurement takes place: the peer, its server, a queue."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import cycle
from typing import Any

import redis
from kombu.connection import Connection
from kombu.entity import Queue
from kombu.messaging import Consumer, Producer

from tools.benchmarks.peers import PEERS, Peer

#: What is in every message: about as much as a small task's arguments.
BODY = {"order": 12345, "customer": "Ada Lovelace", "items": ["tea", "cup"], "paid": True}


@dataclass(frozen=True)
class Site:
    """One measurement's, in the process that makes it.

    Attributes:
        peer: name of the peer.
        url: of its broker; the database is empty.
        redis_port: of the Redis server that is behind it, or might be.
        database: there.
        queue: name that nobody has used before.
    """

    peer: str
    url: str
    redis_port: int
    database: int
    queue: str

    @property
    def transport(self) -> Peer:
        return PEERS[self.peer]

    def connect(self) -> Connection:
        """A connection, through which publishing returns when the server has confirmed."""
        return Connection(self.url, transport_options=dict(self.transport.options))

    def declare(self, connection: Connection) -> Queue:
        queue = Queue(self.queue)(connection.default_channel)
        queue.declare()
        return queue

    def redis(self) -> redis.Redis:
        return redis.Redis(port=self.redis_port, db=self.database)

    def scaled(self, count: int) -> int:
        """How many messages this peer is given where kombu's redis gets *count*."""
        return count * self.transport.pace

    def fill(self, count: int, queues: Sequence[str] = ()) -> None:
        """Publish *count* messages as quickly as can be, which nobody measures: without confirms. They go to
        one of the *queues* after the other, or to the one of the measurement."""
        with Connection(self.url) as connection:
            names = queues or [self.declare(connection).name]
            producer = Producer(connection.default_channel)
            with batch(producer):
                for _, name in zip(range(count), cycle(names), strict=False):
                    producer.publish(BODY, routing_key=name)


def batch(producer: Producer) -> AbstractContextManager[Any]:
    """Publish together what is published inside, where kombu (5.7) and the transport know how to."""
    return producer.batch() if getattr(producer, "supports_batch_publish", False) else nullcontext()


class Drain:
    """Consumes from the queue of *site*, or from *queues*, and acks each message in its callback unless
    *no_ack*."""

    def __init__(
        self,
        site: Site,
        connection: Connection,
        *,
        prefetch: int,
        no_ack: bool = False,
        queues: Sequence[Queue] = (),
    ) -> None:
        self.seen = 0
        self._connection = connection
        self._no_ack = no_ack
        self.channel = connection.channel()
        self.consumer = Consumer(
            self.channel,
            queues or [Queue(site.queue)],
            callbacks=[self._on_message],
            no_ack=no_ack,
            prefetch_count=prefetch,
        )

    def _on_message(self, body: Any, message: Any) -> None:
        self.seen += 1
        if not self._no_ack:
            message.ack()

    def until(self, seen: int) -> None:
        """Go on until so many messages have been seen in all.

        Raises:
            TimeoutError: there was none for 10 seconds.
        """
        while self.seen < seen:
            self._connection.drain_events(timeout=10)
