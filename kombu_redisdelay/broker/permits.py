"""Permits to take from queues with a limited concurrency, of the queue or of its keys: each unacked message
has one."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from kombu_redisdelay.broker.delivery import Taken
from kombu_redisdelay.broker.server.line import Ack
from kombu_redisdelay.broker.server.scripts import ACK
from kombu_redisdelay.broker.store import Store


class Permits:
    """Tracks which queues of a consumer have a concurrency limit. When a message of one is settled, it wakes
    a consumer, because a permit is free."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._limited: set[str] = set()

    def note(self, hot: Collection[str], left_out: Collection[str], taken: Taken) -> None:
        """Note what the reply to a take from the queues *hot* has said. Nothing of those that it may have
        *left_out*."""
        if taken.with_permits or self._limited:
            self._limited.difference_update(set(hot).difference(left_out))
            self._limited.update(taken.with_permits)

    def is_limited(self, queue: str) -> bool:
        """Whether the concurrency of *queue* is limited."""
        return queue in self._limited

    def ack(self, queue: str, consumer: str, tag: str) -> Ack:
        """The ack of a message. In a limited queue, it wakes a consumer, too."""
        keys = self._store.keys(queue)
        if queue not in self._limited:
            return Ack(queue, tag, ("HDEL", keys.unacked(consumer), tag))
        used = (keys.unacked(consumer), keys.wake)
        return ACK.as_ack(self._store.server, queue, tag, used, (tag,))

    def leave(self, queues: Iterable[str]) -> None:
        """Wake a consumer of each of *queues* that is limited: messages of it are settled."""
        self._store.wake(*self._limited.intersection(queues))
