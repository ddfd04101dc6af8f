"""The lease of a consumer: the queues that it has joined, and the heartbeat.

A consumer is listed in its queues, and its lease covers them. The heartbeat keeps the lease for as long as
the process lives, and lets the mover work.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from time import monotonic

from redis.exceptions import RedisError

from kombu_redisdelay.broker.keys import RedisKeys
from kombu_redisdelay.broker.lease_policy import SHORTEST_RENEWAL_INTERVAL, LeasePolicy
from kombu_redisdelay.broker.mover import Mover
from kombu_redisdelay.broker.portions import MESSAGES_PER_CALL, NAME_BYTES_PER_CALL, portions
from kombu_redisdelay.broker.processes import Lock, NativeEvent, Thread
from kombu_redisdelay.broker.server.scripts import RENEW, UNLIST, run_each, try_each
from kombu_redisdelay.broker.server.server import Server, by_slot
from kombu_redisdelay.broker.server.wire import Command, checked
from kombu_redisdelay.broker.store import Store

logger = logging.getLogger(__name__)

#: Queues whose leases one script renews.
QUEUES_PER_SCRIPT = 100

#: Seconds that closing a consumer waits for its heartbeat.
JOIN_TIMEOUT = 1.0

#: A consumer tries to leave queues that it took from once and does not consume from, if there are more than
#: this.
MOST_LEFT = 100


@dataclass
class _Failure:
    """Renewals that have failed, one after the other.

    Attributes:
        why: what was wrong with the first one.
        since, until: seconds of the monotonic clock; *until* is ``None`` while they fail.
        is_told: whether it was logged that they fail.
    """

    why: str
    since: float
    until: float | None = None
    is_told: bool = False


class Lease:
    """Renews a consumer's lease from a thread of its own and over a connection of its own.

    In a solo worker, and with plain kombu, a task or callback blocks the thread that consumes. With
    greenlets, a task that computes blocks all of them.

    A queue that expires is in use while it has a living consumer. So its keys are kept alive, too.

    The thread also has the *mover* move what is due while the consumer cannot. A renewal comes first.

    Arguments:
        server: only the thread may use it. The thread closes its connections at the end.
        consumer: name of the consumer that has the lease.
        policy: how long the lease lasts, and when it is renewed.
        mover: uses the same *server*.
    """

    def __init__(self, server: Server, consumer: str, policy: LeasePolicy, mover: Mover) -> None:
        self._server = server
        self._consumer = consumer
        self._policy = policy
        self._mover = mover
        #: For each queue, in the order in which they came: key of its consumers -> key of our unacked hash.
        self._covered: dict[str, str] = {}
        #: For queues that expire: key of consumers -> commands that keep the queue alive.
        self._refreshing: dict[str, tuple[Command, ...]] = {}
        #: For the same queues: key of consumers -> x-expires in ms.
        self._expires_ms: dict[str, int] = {}
        #: Key of consumers -> when the lease ends by the latest renewal, ms since the epoch. A take may have
        #: renewed it since then.
        self._ends: dict[str, float] = {}
        #: Keys of consumers where a renewal has come after that.
        self._ended: set[str] = set()
        self._renewing = Lock()
        self._stopped = NativeEvent()
        #: Set to make the thread renew at once.
        self._changed = NativeEvent()
        self._thread: Thread | None = None
        self._failure: _Failure | None = None
        self._served_since = float("-inf")

    @property
    def served_since(self) -> float:
        """Since when the server has taken each renewal, seconds of the monotonic clock; infinite while it
        does not."""
        return self._served_since

    def cover(self, keys: RedisKeys) -> None:
        """Renew the lease in this queue too, from now on."""
        if keys.consumers not in self._covered:
            self._covered[keys.consumers] = keys.unacked(self._consumer)
            self._start()
            self._changed.set()

    def keeps_alive(self, keys: RedisKeys, expires_ms: int) -> bool:
        """Whether this was asked for before."""
        return self._expires_ms.get(keys.consumers) == expires_ms

    def keep_alive(self, keys: RedisKeys, ready_keys: Sequence[str], expires_ms: int) -> None:
        """Keep a queue with ``x-expires`` from expiring, from now on.

        Arguments:
            ready_keys: its ready lists.
            expires_ms: its ``x-expires`` in ms.
        """
        unacked_ttl_ms = self._policy.unacked_ttl_ms(expires_ms)
        queue = (*ready_keys, *keys.waiting, keys.wake, keys.history)
        self._refreshing[keys.consumers] = (
            *(("PEXPIRE", key, expires_ms) for key in queue),
            *(("PEXPIRE", key, unacked_ttl_ms) for key in (keys.consumers, keys.unacked(self._consumer))),
        )
        self._expires_ms[keys.consumers] = expires_ms
        self._start()
        self._changed.set()

    def let_expire(self, keys: RedisKeys) -> None:
        """Stop keeping a queue from expiring."""
        self._refreshing.pop(keys.consumers, None)
        self._expires_ms.pop(keys.consumers, None)

    def uncover(self, keys: RedisKeys) -> None:
        """Stop renewing the lease in this queue. When this returns, no renewal can follow."""
        with self._renewing:
            self._covered.pop(keys.consumers, None)
            self._ends.pop(keys.consumers, None)
            self._ended.discard(keys.consumers)
            self.let_expire(keys)

    def may_have_ended(self, keys: RedisKeys, now_ms: float) -> bool:
        """Whether the lease may have ended in this queue since this was asked before. If not, nobody was
        given what the consumer holds.

        Arguments:
            now_ms: the server's clock, ms since the epoch.
        """
        key = keys.consumers
        has_ended = key in self._ended or now_ms >= self._ends.get(key, 0.0)
        self._ended.discard(key)
        return has_ended

    def _start(self) -> None:
        if self._thread is None:
            self._thread = Thread(self._run)

    def tell(self) -> None:
        """Log why the lease could not be renewed, that it is renewed again, and what the mover has to tell,
        unless that was logged.

        The heartbeat's thread must not call this: log handlers have locks, and those of eventlet do not work
        across threads.
        """
        failure = self._failure
        if failure is not None:
            self._tell_of(failure)
        self._mover.tell()

    def _tell_of(self, failure: _Failure) -> None:
        until = failure.until
        if until is None:
            if not failure.is_told:
                failure.is_told = True
                logger.warning("Could not renew the lease of this consumer, trying on: %s", failure.why)
            return
        self._failure = None
        if failure.is_told:
            logger.warning("The lease of this consumer is renewed again.")
        else:
            # A task may have kept the caller busy. What has happened since then may be in the log already.
            logger.warning(
                "Could not renew the lease of this consumer for %.1f s, until %.1f s ago: %s",
                until - failure.since,
                monotonic() - until,
                failure.why,
            )

    def stop(self, server: Server) -> None:
        """End the lease: leave the queues in which the consumer holds nothing. In the others it runs out.

        Arguments:
            server: of the caller. The queues are left over its connections if the heartbeat hangs: a failover
                may have left the heartbeat with a server that does not answer any more.
        """
        self._stopped.set()
        self._changed.set()
        if self._thread is not None:
            self._thread.join(timeout=JOIN_TIMEOUT)
            if not self._thread.ended.is_set():
                # A renewal that hangs may still reach the server later. It can only list a consumer that
                # holds nothing, and that is not worth a longer wait.
                self._leave(server)
        self.tell()

    def _run(self) -> None:
        failing = False
        #: Seconds of the monotonic clock.
        renewed_at = float("-inf")
        while not self._stopped.is_set():
            interval = self._interval(failing)
            if monotonic() >= renewed_at + interval:
                failing = not self._try_to_renew(failing)
                renewed_at = monotonic()
                continue
            pause = interval if failing else self._mover.step()
            self._changed.wait(max(0.0, min(pause, renewed_at + interval - monotonic())))
            if self._changed.is_set():
                # On a cluster, a consumer joins its queues one by one.
                self._stopped.wait(SHORTEST_RENEWAL_INTERVAL)
                self._changed.clear()
                renewed_at = float("-inf")
        # After the last renewal, which could undo an earlier leave.
        self._leave(self._server)
        self._server.disconnect()

    def _try_to_renew(self, failing: bool) -> bool:
        """Renew the lease. Returns whether that succeeded.

        Arguments:
            failing: whether the renewal before has failed.
        """
        try:
            with self._renewing:
                self._renew()
        except Exception as exc:
            # Whatever went wrong may be over at the next renewal.
            if not failing:
                self._failure = _Failure(str(exc), monotonic())
            self._served_since = float("inf")
            return False
        if failing:
            self._served_since = monotonic()
            if self._failure is not None:
                self._failure.until = self._served_since
        return True

    def _leave(self, server: Server) -> None:
        calls = [(UNLIST, item, (self._consumer,)) for item in list(self._covered.items())]
        # If this fails, others forget this consumer when its lease has ended.
        with suppress(RedisError, OSError):
            for first in range(0, len(calls), QUEUES_PER_SCRIPT):
                try_each(server, calls[first : first + QUEUES_PER_SCRIPT])

    def _interval(self, failing: bool) -> float:
        """Seconds from the latest renewal, which may have failed, to the next."""
        expires_ms = tuple(self._expires_ms.values())
        if failing:
            return self._policy.retry_interval(expires_ms)
        return self._policy.renewal_interval(expires_ms, beside_looks=self._mover.is_needed)

    def _renew(self) -> None:
        args = (self._consumer, self._policy.lease_ms)
        each = by_slot(self._server, tuple(self._covered), str, QUEUES_PER_SCRIPT)
        ends = run_each(self._server, [(RENEW, keys, args) for keys in each])
        for keys, end_ms in zip(each, ends, strict=True):
            for key in keys:
                if end_ms - self._policy.lease_ms >= self._ends.get(key, end_ms):
                    self._ended.add(key)
                self._ends[key] = end_ms
        refreshing = [command for commands in list(self._refreshing.values()) for command in commands]
        if refreshing:
            checked(self._server.call_all(*refreshing))


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
            calls = [(UNLIST, (k.consumers, k.unacked(self._consumer)), (self._consumer,)) for k in keys]
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
