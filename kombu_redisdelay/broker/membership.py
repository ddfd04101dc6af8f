"""The queues that a consumer has joined: it is listed there, and its lease covers them."""

from __future__ import annotations

from collections.abc import Collection

from kombu_redisdelay.broker.lease import Lease
from kombu_redisdelay.broker.portions import MESSAGES_PER_CALL, NAME_BYTES_PER_CALL, portions
from kombu_redisdelay.broker.server.scripts import LEAVE, run_each
from kombu_redisdelay.broker.store import Store

#: A consumer tries to leave queues that it took from once and does not consume from, if there are more than
#: this.
MOST_LEFT = 100


class Membership:
    """Joins the queues that a consumer takes from, and leaves those in which it holds nothing.

    Arguments:
        consumer: name of the consumer.
        lease: of the consumer.
        consumed: the queues that are asked for again and again. The caller changes them.

    Attributes:
        queues: those that were joined and not left. Others change them only by the methods.
    """

    def __init__(self, store: Store, consumer: str, lease: Lease, consumed: Collection[str]) -> None:
        self._store = store
        self._consumer = consumer
        self._lease = lease
        self._consumed = consumed
        self.queues: set[str] = set()
        #: Those that were cancelled and not left yet.
        self._cancelled: set[str] = set()
        self._most_queues = MOST_LEFT

    def join(self, queues: frozenset[str], no_ack: Collection[str]) -> None:
        """Be a consumer of these *queues*, and keep those alive that expire.

        Arguments:
            no_ack: those whose messages are not held. They need no lease.
        """
        self._lease.tell()
        self._cancelled -= queues
        if len(self.queues) > self._most_queues + max(len(queues), len(self._consumed)):
            # Some callers get messages of new queues again and again.
            others = self.queues.difference(queues, self._consumed)
            self.leave(others)
            self._most_queues = len(others & self.queues) + MOST_LEFT
        for queue in queues.difference(self.queues, no_ack):
            self.queues.add(queue)
            self._lease.cover(self._store.keys(queue))
        for queue, expires_ms in self._store.expires_ms.items():
            if queue in queues and not self._lease.keeps_alive(self._store.keys(queue), expires_ms):
                self._lease.keep_alive(self._store.keys(queue), self._store.ready_keys(queue), expires_ms)

    def cancel(self, queue: str) -> None:
        """Stop taking from *queue*. Messages that are held stay held. Nothing is sent."""
        self._lease.let_expire(self._store.keys(queue))
        self._cancelled.add(queue)

    def was_listed_late(self, queue: str) -> None:
        """A take that was on its way when *queue* was cancelled may have listed the consumer there again,
        after it had left. It is left once more. Nothing is sent."""
        self.queues.add(queue)
        # Should it be joined before it is left.
        self._lease.cover(self._store.keys(queue))
        self._cancelled.add(queue)

    def leave_cancelled(self) -> None:
        """Stop being a consumer of those cancelled queues in which nothing is held any more."""
        if self._cancelled:
            self.leave(self._cancelled)
            self._cancelled &= self.queues

    def leave(self, queues: Collection[str]) -> None:
        """Stop being a consumer of those *queues* in which nothing is held. Held messages stay held."""
        names = [queue for queue in queues if queue in self.queues]
        for queue in queues:
            self._lease.uncover(self._store.keys(queue))
        for some in portions(names, len, MESSAGES_PER_CALL, NAME_BYTES_PER_CALL):
            keys = [self._store.keys(queue) for queue in some]
            calls = [(LEAVE, (k.consumers, k.unacked(self._consumer)), (self._consumer,)) for k in keys]
            for queue, k, has_left in zip(some, keys, run_each(self._store.server, calls), strict=True):
                if has_left:
                    self.queues.discard(queue)
                else:
                    self._lease.cover(k)

    def forget(self, queue: str) -> bool:
        """The *queue* was deleted, with what was held of it. Returns whether it had been joined."""
        k = self._store.keys(queue)
        self._lease.uncover(k)
        if queue not in self.queues:
            return False
        self.queues.remove(queue)
        self._store.server.call("ZREM", k.consumers, self._consumer)
        self._store.server.call("UNLINK", k.unacked(self._consumer))
        return True
