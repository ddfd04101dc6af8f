"""Moves what is due to its ready list while a consumer cannot: it has no room, or a task keeps its thread.
What is ready in a fair queue is sorted by key, or moved back when it is not to be fair any more.

A consumer that waits for messages moves them to the millisecond. One that holds as many as it may asks for
nothing, and so does one whose thread runs a task. Without a mover, what becomes due then would stay in the
schedule, where neither ``LLEN`` nor an autoscaler sees it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import suppress
from random import uniform
from time import monotonic

from redis.exceptions import ResponseError

from kombu_redisdelay.broker.fair_keys import OFF, ON
from kombu_redisdelay.broker.portions import BYTES_PER_CALL, MESSAGES_PER_CALL
from kombu_redisdelay.broker.server.scripts import FORWARD, ScriptCall, named, try_each
from kombu_redisdelay.broker.server.server import SlotUnavailable, by_slot
from kombu_redisdelay.broker.server.wire import Command, clock_ms, first_due_ms
from kombu_redisdelay.broker.store import Store

logger = logging.getLogger(__name__)

#: Seconds from one look to the next, at most and at least. They differ, so that the consumers of a fleet do
#: not look at the same time.
LONGEST_INTERVAL, SHORTEST_INTERVAL = 0.95, 0.75

#: How many queues are looked at together. If there are more, each look covers a third of them.
FEW_QUEUES = 16
LOOKS = 3

#: The most queues that one round trip moves messages of.
QUEUES_PER_CALL = 16

#: Seconds of pause after each call of the script for a queue with more due messages, times the number of its
#: consumers: they may all do the same. So a fleet of any size makes a hundred such calls a second.
PAUSE = 0.01

#: What a queue has in the field ``fair`` of its limits if keys may have messages of it.
_FAIR = (ON.encode(), OFF.encode())


class Mover:
    """Moves what is due in the queues of one consumer.

    The heartbeat's thread calls :meth:`step`, and the thread that consumes all the rest. Neither waits for
    the other.

    Arguments:
        store: goes to the server over the connections of the heartbeat.

    Attributes:
        queues: the queues that are consumed from with acks. Replaced, never changed.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self.queues: Sequence[str] = ()
        #: Until when the consumer itself moves what is due, seconds of the monotonic clock.
        self._attended_until = float("-inf")
        self._look: Iterator[float] | None = None
        self._look_again_at = float("-inf")
        #: Where the next look begins, if there are many queues.
        self._position = 0
        #: The queues that had ids without a message, and how many, until this is told.
        self._missing: list[tuple[str, int]] = []

    @property
    def is_needed(self) -> bool:
        """Whether the consumer itself does not move what is due now."""
        return bool(self.queues) and monotonic() >= self._attended_until

    def leave_it(self, seconds: float) -> None:
        """Note that the consumer itself moves what is due, for *seconds* from now on. With 0, it does
        not."""
        self._attended_until = monotonic() + seconds if seconds else float("-inf")

    def step(self) -> float:
        """Make the next round trip, if it is time for one. Returns in how many seconds to call again.

        What fails is tried again at the next look. A consumer that is free gets the same error, and tells it:
        this must not log, because log handlers have locks, and those of eventlet do not work across threads.
        """
        if not self.is_needed:
            self._look = None
            return LONGEST_INTERVAL
        if self._look is None:
            self._look = self._look_at(self._next_queues())
            self._look_again_at = monotonic() + uniform(SHORTEST_INTERVAL, LONGEST_INTERVAL)
        # Whatever goes wrong may be over at the next look.
        with suppress(Exception):
            pause = next(self._look, None)
            if pause is not None:
                return pause
        self._look = None
        return max(0.0, self._look_again_at - monotonic())

    def tell(self) -> None:
        """Log which due times had no message. The heartbeat's thread must not call this."""
        while self._missing:
            queue, missing = self._missing.pop()
            logger.error("Skipped %d scheduled id(s) of queue %r that had no message", missing, queue)

    def _next_queues(self) -> Sequence[str]:
        queues = self.queues
        if len(queues) <= FEW_QUEUES:
            return queues
        count, first = -(-len(queues) // LOOKS), self._position % len(queues)
        self._position = first + count
        return [*queues, *queues][first : first + count]

    def _look_at(self, queues: Sequence[str]) -> Iterator[float]:
        """Move what is due in *queues*. Yields between two round trips: seconds of pause."""
        until = monotonic() + SHORTEST_INTERVAL
        due_ms: dict[str, float] = {}
        # Servers have clocks of their own.
        for some in by_slot(self._store.server, queues, self._key, len(queues)):
            # Others can be served.
            with suppress(SlotUnavailable), self._store.server.hurrying():
                due_ms |= self._due_ms(some)
            yield 0.0
        left = sorted(due_ms, key=due_ms.__getitem__)
        while left and monotonic() < until:
            some, left = left[:QUEUES_PER_CALL], left[QUEUES_PER_CALL:]
            pause = 0.0
            for queue, consumers in self._move(some).items():
                # The others have their turn first.
                left.append(queue)
                pause += PAUSE * consumers
            yield pause

    def _key(self, queue: str) -> str:
        return self._store.keys(queue).wake

    def _due_ms(self, queues: Sequence[str]) -> dict[str, float]:
        """Those of *queues*, which are in one slot, that have due messages, and since when. A fair queue may
        always have messages that are not sorted by key, or not moved back yet."""
        keys = [self._store.keys(queue) for queue in queues]
        schedules: list[Command] = [("ZRANGE", each.schedule, 0, 0, "WITHSCORES") for each in keys]
        states: list[Command] = [("HGET", each.limits, "fair") for each in keys]
        now, *replies = self._store.server.call_all(("TIME",), *schedules, *states)
        now_ms, count = clock_ms(now), len(queues)
        readable = {
            queue: first_due_ms(reply)
            for queue, reply in zip(queues, replies[:count], strict=True)
            if not isinstance(reply, ResponseError)
        }
        due_ms = {queue: ms for queue, ms in readable.items() if ms is not None and ms <= now_ms}
        fair = (queue for queue, state in zip(queues, replies[count:], strict=True) if state in _FAIR)
        return dict.fromkeys(fair, now_ms) | due_ms

    def _move(self, queues: Sequence[str]) -> dict[str, int]:
        """Move a portion of each of *queues*. Returns those of which more is due, and how many consumers they
        have."""
        more = {}
        with self._store.server.hurrying():
            replies = try_each(self._store.server, [forwarding(self._store, queue) for queue in queues])
        for queue, reply in zip(queues, replies, strict=True):
            if isinstance(reply, ResponseError):
                continue
            found = named(reply)
            if found.missing:
                self._missing.append((queue, found.missing))
            if found.next_due_us == 0 or found.has_more:
                more[queue] = found.consumers
        return more


def forwarding(store: Store, queue: str, has_token: bool = False) -> ScriptCall:
    """The call that moves what is due of *queue*.

    Arguments:
        has_token: whether the caller has taken the token of the queue.
    """
    k = store.keys(queue)
    other_steps = [ready for ready in store.ready_keys(queue) if ready != k.ready]
    keys = (k.ready, k.schedule, k.messages, k.wake, k.consumers, *other_steps)
    return FORWARD, keys, (MESSAGES_PER_CALL, BYTES_PER_CALL, store.separator, int(has_token))
