"""The most that can be had, measured in one process: kombu's part, which ``memory://`` shows, and beside it
what cannot be left out with a Redis server, with nothing of anybody's transport around it.

That is less than the two of them measured apart would let expect: a core that has waited for a reply goes on
slowly.
"""

from __future__ import annotations

import json
from itertools import count
from time import perf_counter
from typing import Any

from kombu.connection import Connection
from kombu.entity import Exchange, Queue
from kombu.messaging import Producer
from redis.connection import Connection as RawConnection

from tools.benchmarks.site import BODY, Site

#: In the names of figures, for the most that can be had.
LIMIT = "limit"

#: As long as :data:`~benchmarks.site.BODY` is as a message.
_MESSAGE = 400 * b"m"


def consume_rate(site: Site, messages: int, *, batch: int, acks: bool) -> float:
    """Messages a second if they are read, *batch* at a time, and decoded, and for each ack a command is sent
    before the callback returns, whose reply is read later. Nobody ever waits for Redis: messages are asked
    for a whole batch ahead. The queue must be filled."""
    raw = RawConnection(port=site.redis_port, db=site.database)
    ack = raw.pack_command("HDEL", "unacked", "1")
    read = raw.pack_command("LRANGE", site.queue, 0, batch - 1)
    seen = 0

    def on_message(body: Any, message: Any) -> None:
        nonlocal seen
        if acks:
            message.ack()
            raw.send_packed_command(ack)
        seen += 1
        if seen % batch == 0:
            for payload in raw.read_response():
                json.loads(payload)
            for _ in range(batch if acks else 0):
                raw.read_response()
            raw.send_packed_command(read)

    with Connection("memory://") as connection:
        queue = Queue(site.queue, Exchange(site.queue))(connection.default_channel)
        queue.declare()
        producer = Producer(connection.default_channel, queue.exchange)
        for _ in range(messages):
            producer.publish(BODY)
        consumer = connection.Consumer([queue], callbacks=[on_message], no_ack=not acks, prefetch_count=batch)
        with consumer:
            raw.send_packed_command(read)
            began = perf_counter()
            while seen < messages:
                connection.drain_events(timeout=1)
            seconds = perf_counter() - began
    raw.disconnect()
    return messages / seconds


class PublishLimits:
    """The least that has to be done to publish, for who counts how often a second it can be.

    Arguments:
        memory: to publish into, of ``memory://``.
    """

    def __init__(self, site: Site, memory: Connection) -> None:
        self._raw = RawConnection(port=site.redis_port, db=site.database)
        # Nobody consumes; but kombu keeps no message of an exchange that is not bound.
        self._producer = Producer(memory.default_channel, Exchange("nowhere", "direct"))
        self._ids = map(str, count())

    def round_trip(self) -> int:
        """A command that does nothing, and its reply. Returns how many there were, as the others do."""
        self._raw.send_command("PING")
        self._raw.read_response()
        return 1

    def publish(self) -> int:
        """Kombu's part, and a round trip."""
        self._producer.publish(BODY, routing_key="nowhere")
        return self.round_trip()

    def schedule(self) -> int:
        """Kombu's part, and a round trip with what stores a message by its id and its due time: two commands,
        and nobody sees to it that they are done together."""
        self._producer.publish(BODY, routing_key="nowhere")
        message_id = next(self._ids)
        stored, due = ("HSETNX", "messages", message_id, _MESSAGE), ("ZADD", "due", 1, message_id)
        self._raw.send_packed_command(self._raw.pack_commands([stored, due]))
        for _ in (stored, due):
            self._raw.read_response()
        return 1

    def close(self) -> None:
        self._raw.disconnect()
