"""Consume with a prefetch count of 16, and ack each message in its callback.

Beside it the most that can be had if each ack is with the server when its callback returns.
"""

from __future__ import annotations

import json
from time import perf_counter
from typing import Any

from kombu.connection import Connection
from kombu.entity import Exchange, Queue
from kombu.messaging import Producer
from redis.connection import Connection as RawConnection

from benchmarks.peers import MEMORY, OURS, RABBITMQ, REDIS, REDIS_PLUS
from benchmarks.redis_info import cpu_seconds
from benchmarks.site import BODY, Drain, Site
from benchmarks.workload import Measured, Sizes, Workload, cases

PREFETCH = 16

#: Kombu's own part, and the least that has to be done for it with a Redis server.
LIMIT = "limit"


def limit(site: Site, count: int) -> float:
    """Messages a second if nothing is done but kombu's part, in this process (``memory://``), and what cannot
    be left out with a Redis server: for each ack a command that is sent when its callback returns, and its
    reply; reading the messages, as many at a time as may be held; decoding them. The queue must be filled."""
    raw = RawConnection(port=site.redis_port, db=site.database)
    ack = raw.pack_command("HDEL", "unacked", "1")
    seen = 0

    def on_message(body: Any, message: Any) -> None:
        nonlocal seen
        message.ack()
        raw.send_packed_command(ack)
        seen += 1
        if seen % PREFETCH == 0:
            raw.send_command("LRANGE", site.queue, 0, PREFETCH - 1)
            for _ in range(PREFETCH):
                raw.read_response()
            for payload in raw.read_response():
                json.loads(payload)

    with Connection("memory://") as connection:
        queue = Queue(site.queue, Exchange(site.queue))(connection.default_channel)
        queue.declare()
        producer = Producer(connection.default_channel, queue.exchange)
        for _ in range(count):
            producer.publish(BODY)
        with connection.Consumer([queue], callbacks=[on_message], prefetch_count=PREFETCH):
            began = perf_counter()
            while seen < count:
                connection.drain_events(timeout=1)
            seconds = perf_counter() - began
    raw.disconnect()
    return count / seconds


def measure(site: Site, sizes: Sizes) -> Measured:
    warm, count = sizes["warm"], site.scaled(sizes["messages"])
    with site.connect() as connection, site.redis() as redis:
        site.fill(warm + count)
        figures = {LIMIT: limit(site, count)} if site.transport is OURS else {}
        drain = Drain(site, connection, prefetch=PREFETCH)
        with drain.consumer:
            drain.until(warm)
            cpu = cpu_seconds(redis)
            began = perf_counter()
            drain.until(warm + count)
            seconds = perf_counter() - began
            cpu = cpu_seconds(redis) - cpu
        drain.channel.close()
        queue = site.declare(connection)
        if queue.get(no_ack=True) is not None:
            raise RuntimeError("all messages were acked, and there is one left")
        queue.delete()
    figures["rate"] = count / seconds
    if site.transport.server == "redis":
        figures["server CPU"] = cpu / count * 1e6
    return Measured(figures)


WORKLOAD = Workload(
    name="consume",
    about=f"consume with prefetch {PREFETCH}, ack each message in its callback",
    cases=cases(OURS, REDIS, REDIS_PLUS, RABBITMQ, MEMORY),
    units={"rate": "messages/s", LIMIT: "messages/s", "server CPU": "us/message"},
    measure=measure,
    sizes={"warm": 50, "messages": 800},
    quick_sizes={"warm": 50, "messages": 400},
)
