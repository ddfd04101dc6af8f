"""What kombu's own users do, in whatever order: every message that was published and not acked is in exactly
one place, in Redis, and nobody holds more than its prefetch count allows or than it will ever deliver."""

from __future__ import annotations

import json
from base64 import b64decode
from contextlib import suppress
from itertools import chain, count
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)
from kombu.entity import Queue
from kombu.messaging import Consumer

from kombu_redisdelay import QueueFull, requeue
from kombu_redisdelay.broker.message import split_stored
from kombu_redisdelay.transport.admission import forget_lengths
from tests.search import may_search_for_long, run_machine
from tests.transport.kit import Site, drain, publish

QUEUES = ("q", "r")
#: Of the first queue, for a producer that declares it so.
BOUND = 24

some_queues = st.sampled_from((("q",), ("r",), ("q", "r")))
prefetch_counts = st.sampled_from((0, 1, 2, 5, 8))
choices = st.integers(0, 1000)


class Reader:
    """A channel of its own with a consumer, and what was delivered to it and is not settled."""

    def __init__(self, site: Site, queues: tuple[str, ...], prefetch: int) -> None:
        self.connection = site.connect(max_batch=4)
        self.channel = self.connection.channel()
        self.prefetch = prefetch
        self.held: list[Any] = []
        self.channel.basic_qos(0, prefetch, False)
        self.consumer = Consumer(self.channel, [Queue(name) for name in queues], on_message=self.held.append)
        self.consumer.consume()

    def unacked_key(self, queue: str) -> str:
        key: str = self.channel.store.keys(queue).unacked(self.channel.consumer.name)
        return key

    def holds_in_redis(self, redis: Any, queue: str) -> int:
        self.channel.consumer.confirm_acks()
        return int(redis.hlen(self.unacked_key(queue)))


class ChannelMachine(RuleBasedStateMachine):
    """Some readers, each on a connection of its own, and what hypothesis has them do."""

    shared_site: Site

    def __init__(self) -> None:
        super().__init__()
        self.shared_site.flush()
        self.site = self.shared_site.another()
        self.redis = self.site.redis
        self.readers: list[Reader] = []
        self.ids = count()
        #: What was published, and neither acked nor rejected.
        self.unsettled: set[str] = set()
        self.producer = self.site.channel()
        for queue in QUEUES:
            Queue(queue)(self.producer).declare()
        self.bounded_producer = self.site.channel()
        arguments = {"x-max-length": BOUND, "x-overflow": "reject-publish"}
        Queue(QUEUES[0], queue_arguments=arguments)(self.bounded_producer).declare()

    def teardown(self) -> None:
        """What was not acked comes to the next consumer, and is all there is."""
        for reader in self.readers:
            reader.connection.release()
        last = Reader(self.site, QUEUES, 0)
        drain(last.connection, lambda: len(last.held) >= len(self.unsettled))
        assert sorted(message.payload for message in last.held) == sorted(self.unsettled)
        self.site.close()

    @initialize(queues=some_queues, prefetch=prefetch_counts)
    def begin_with_something_to_do(self, queues: tuple[str, ...], prefetch: int) -> None:
        for queue in QUEUES:
            self.publish(queue, 20, 0)
        self.begin(queues, prefetch)

    @rule(queue=st.sampled_from(QUEUES), messages=st.integers(1, 12), priority=st.sampled_from((0, 6)))
    def publish(self, queue: str, messages: int, priority: int) -> None:
        bodies = [f"{queue} {next(self.ids)}" for _ in range(messages)]
        publish(self.producer, *bodies, queue=queue, priority=priority)
        self.unsettled.update(bodies)

    @rule(messages=st.integers(1, 12))
    def publish_below_a_bound(self, messages: int) -> None:
        """What is refused is nowhere, and what is accepted stays."""
        forget_lengths()
        for _ in range(messages):
            body = f"bounded {next(self.ids)}"
            with suppress(QueueFull):
                publish(self.bounded_producer, body, queue=QUEUES[0])
                self.unsettled.add(body)

    @precondition(lambda self: len(self.readers) < 3)
    @rule(queues=some_queues, prefetch=prefetch_counts)
    def begin(self, queues: tuple[str, ...], prefetch: int) -> None:
        self.readers.append(Reader(self.site, queues, prefetch))

    @precondition(lambda self: self.readers)
    @rule(which=choices, events=st.integers(1, 8), then_ack=st.booleans())
    def drain(self, which: int, events: int, then_ack: bool) -> None:
        reader = self._reader(which)
        for _ in range(events):
            with suppress(TimeoutError):
                reader.connection.drain_events(timeout=0)
            if then_ack:
                self._settle(reader, -1, "ack")

    # No precondition: what readers hold depends on the time, and hypothesis must draw the same again.
    @rule(which=choices, message=choices, how=st.sampled_from(("ack", "requeue", "requeue later", "reject")))
    def settle(self, which: int, message: int, how: str) -> None:
        busy = [reader for reader in self.readers if reader.held]
        if busy:
            self._settle(busy[which % len(busy)], message, how)

    @precondition(lambda self: self.readers)
    @rule(which=choices, queue=st.sampled_from(QUEUES))
    def get_one(self, which: int, queue: str) -> None:
        message = self._reader(which).channel.basic_get(queue)
        if message is not None:
            message.ack()
            self.unsettled.remove(message.payload)

    @precondition(lambda self: self.readers)
    @rule(which=choices, queue=st.sampled_from(QUEUES))
    def cancel(self, which: int, queue: str) -> None:
        reader = self._reader(which)
        reader.consumer.cancel_by_queue(queue)
        # What it has not seen is there for others, also if it never drains events again.
        seen = sum(message.delivery_info["routing_key"] == queue for message in reader.held)
        assert reader.holds_in_redis(self.redis, queue) == seen

    @precondition(lambda self: self.readers)
    @rule(which=choices, queue=st.sampled_from(QUEUES))
    def consume_again(self, which: int, queue: str) -> None:
        consumer = self._reader(which).consumer
        consumer.add_queue(Queue(queue))
        consumer.consume()

    @precondition(lambda self: self.readers)
    @rule(which=choices)
    def close(self, which: int) -> None:
        reader = self._reader(which)
        self.readers.remove(reader)
        reader.connection.release()
        assert not self.redis.exists(*map(reader.unacked_key, QUEUES))

    @invariant()
    def every_message_is_in_one_place(self) -> None:
        for reader in self.readers:
            reader.channel.consumer.confirm_acks()
        stored = [message for queue in QUEUES for message in self.stored(queue)]
        assert sorted(map(_body, stored)) == sorted(self.unsettled)

    def stored(self, queue: str) -> list[bytes]:
        """What is in *queue*, ready, scheduled or held. It takes one transaction: what a consumer has asked
        for may be taken at any time."""
        with self.site.client_of(queue).pipeline(transaction=True) as pipe:
            for key in self.producer.store.ready_keys(queue):
                pipe.lrange(key, 0, -1)
            pipe.hvals(self.site.keys(queue).messages)
            for reader in self.readers:
                pipe.hvals(reader.unacked_key(queue))
            return list(chain.from_iterable(pipe.execute()))

    @invariant()
    def nobody_holds_more_than_it_may(self) -> None:
        for reader in self.readers:
            if reader.prefetch:
                held = sum(reader.holds_in_redis(self.redis, queue) for queue in QUEUES)
                assert held <= reader.prefetch

    def _settle(self, reader: Reader, message: int, how: str) -> None:
        if reader.held:
            settled = reader.held.pop(message % len(reader.held))
            if how == "requeue later":
                # A few of them at once, and before the test ends.
                requeue(settled, delay=0.02)
            else:
                getattr(settled, how)()
            if how in ("ack", "reject"):
                self.unsettled.remove(settled.payload)

    def _reader(self, which: int) -> Reader:
        return self.readers[which % len(self.readers)]


def _body(stored: bytes) -> str:
    message = json.loads(split_stored(stored)[1])
    return b64decode(message["body"]).decode()


@may_search_for_long
def test_every_message_is_in_one_place(site: Site) -> None:
    usual, name = (40, "server") if site.cluster is None else (20, "cluster")
    run_machine(ChannelMachine, usual, name=name, shared_site=site)
