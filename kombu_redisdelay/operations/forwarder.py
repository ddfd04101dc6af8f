"""Moves due messages to their ready lists while no worker is there.

Workers move due messages themselves. So this is for workers that an autoscaler may scale to zero. An
autoscaler watches the length of the ready lists, and would never see a scheduled task. What a queue that is
not to be fair any more has sorted by key is moved back, too.

Any number of forwarders may run side by side, and beside workers, because each move is one script. If a queue
has no consumer, a forwarder blocks on its wake zset as a consumer does. In this way it learns of a message
that is due earlier than the one it waits for. If a queue has consumers, the tokens are for them. The
forwarder then only checks the queue when it knows that a message is due, and else every
:data:`LONGEST_WAIT` seconds.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from queue import Empty, SimpleQueue
from threading import Event, Thread
from time import monotonic
from typing import Any

from redis.exceptions import RedisError, ResponseError

from kombu_redisdelay.broker import waits
from kombu_redisdelay.broker.known_queues import UNUSED_AT_ONCE, forget_unused, record
from kombu_redisdelay.broker.mover import forwarding
from kombu_redisdelay.broker.portions import NAME_BYTES_PER_CALL, finish, portions
from kombu_redisdelay.broker.server.scripts import named, try_each
from kombu_redisdelay.broker.store import Store
from kombu_redisdelay.broker.unlisted import INTERVAL, Found, report, search
from kombu_redisdelay.operations.viewers import why
from kombu_redisdelay.refusals import refusal_of

logger = logging.getLogger(__name__)

#: The longest time between two checks of a queue, in seconds. A lost token delays a message by no more than
#: this.
LONGEST_WAIT = 1.0

#: Seconds between two checks for queues that are not used.
TIDY_INTERVAL = 10.0

#: Seconds of the first pause while Redis is away or refuses. Each is twice as long as the one before, and the
#: longest is :data:`LONGEST_WAIT`.
FIRST_PAUSE = 0.1

#: Queues that are checked in one round trip.
QUEUES_PER_CALL = 50

#: Round trips in a round that search for what no key lists any more.
SEARCHES_PER_ROUND = 20

#: Seconds of pause after a token was taken. Each message that is due at once leaves a token; without a pause,
#: their producers would keep the forwarder busy.
TOKEN_PAUSE = 0.01


@dataclass(frozen=True, slots=True)
class Forwarded:
    """The messages that one call has moved to the ready lists of a queue.

    Attributes:
        messages: the number of messages.
        lateness: seconds since the first of them became due.
    """

    queue: str
    messages: int
    lateness: float


class Forwarder:
    """Forwards the due messages of some queues.

    Arguments:
        store: the queues in Redis. Two threads use its server.
        find_queues: returns the names of the queues; called every :data:`LONGEST_WAIT` seconds.
        on_forwarded: called after messages were moved.
    """

    def __init__(
        self,
        store: Store,
        find_queues: Callable[[], Iterable[str]],
        on_forwarded: Callable[[Forwarded], object],
    ) -> None:
        self._store = store
        self._find_queues = find_queues
        self._on_forwarded = on_forwarded
        self._stopped = Event()
        #: Queues whose token was taken; ``None`` only wakes :meth:`run`.
        self._tokens: SimpleQueue[str | None] = SimpleQueue()
        #: When to check each queue, and when to ask for new queues; seconds of the monotonic clock.
        self._look_at: dict[str, float] = {}
        self._find_at = 0.0
        self._tidy_at = 0.0
        self._search_at = 0.0
        self._search: Iterator[None] = iter(())
        self._found = Found()
        #: Queues that have no consumer. Read by both threads, written by one.
        self._unattended: dict[str, None] = {}
        #: Queues for which the last call failed.
        self._failing: set[str] = set()
        self._succeeded_at = monotonic()

    @property
    def failing_for(self) -> float:
        """Seconds since a round has last succeeded, :data:`LONGEST_WAIT` at most while Redis answers soon. A
        round does not succeed if every queue fails. May be read from another thread."""
        return monotonic() - self._succeeded_at

    def stop(self) -> None:
        """Make :meth:`run` return soon. May be called from a signal handler or from another thread."""
        self._stopped.set()
        self._tokens.put(None)

    def run(self) -> None:
        """Forward messages until stopped. If Redis goes away or refuses, wait until it is back."""
        token_taker = Thread(target=self._take_tokens, name="redisdelay-forwarder-tokens", daemon=True)
        token_taker.start()
        pause, is_lost = 0.0, False
        while not self._stopped.is_set():
            try:
                self._round()
            except (RedisError, OSError) as exc:
                refusal = refusal_of(exc)
                if refusal is not None and refusal.is_for_a_while:
                    waits.begin(self, refusal.reason, f"to forward what is due: {why(exc)}")
                elif not is_lost:
                    is_lost = True
                    logger.error("Lost Redis, trying again each second: %s", why(exc))
                pause = min(LONGEST_WAIT, 2 * pause or FIRST_PAUSE)
                self._stopped.wait(pause)
            else:
                pause, is_lost = 0.0, False
                waits.end(self)
                if not self._look_at or self._failing < self._look_at.keys():
                    self._succeeded_at = monotonic()
        waits.end(self, is_served=False)
        # The thread still blocks for a while, and its connection must not be closed meanwhile.
        token_taker.join(timeout=2 * LONGEST_WAIT)

    def _round(self) -> None:
        """Forward due messages, then wait until the next one may be due."""
        if self._find_at <= monotonic():
            self._find_at = monotonic() + LONGEST_WAIT
            queues = self._store.partitions.all_names(self._find_queues())
            self._look_at = {queue: self._look_at.get(queue, 0.0) for queue in queues}
            self._failing &= self._look_at.keys()
            for queue in self._unattended.keys() - self._look_at.keys():
                del self._unattended[queue]
        self._tidy()
        self._relist()
        self._forward([queue for queue, at in self._look_at.items() if at <= monotonic()])
        until = min((self._find_at, *self._look_at.values()))
        try:
            queue_with_token = self._tokens.get(timeout=max(0.0, until - monotonic()))
        except Empty:
            return
        if queue_with_token is not None:
            self._forward([queue_with_token], has_token=True)

    def _tidy(self) -> None:
        """Forget queues that are not used, and record the histories of the others. Where there are workers,
        they do the same."""
        if self._tidy_at <= monotonic():
            looked_at = finish(forget_unused(self._store))
            for some in portions(self._look_at, len, QUEUES_PER_CALL, NAME_BYTES_PER_CALL):
                record(self._store, some)
            self._tidy_at = monotonic() + (0.0 if looked_at >= UNUSED_AT_ONCE else TIDY_INTERVAL)

    def _relist(self) -> None:
        """Search for what no key lists any more, a part in each round. Where there are workers, they do the
        same for their queues; but nobody else finds queues that are not known any more."""
        if self._search_at <= monotonic():
            self._search_at = monotonic() + INTERVAL
            self._found = Found()
            self._search = search(self._store, self._found, frozenset(self._look_at))
        for _ in islice(self._search, SEARCHES_PER_ROUND):
            pass
        for queue in list(self._found.queues):
            report(queue, self._found.queues.pop(queue))

    def _forward(self, queues: Sequence[str], has_token: bool = False) -> None:
        for first in range(0, len(queues), QUEUES_PER_CALL):
            some = queues[first : first + QUEUES_PER_CALL]
            calls = [forwarding(self._store, queue, has_token) for queue in some]
            refused: ResponseError | None = None
            for queue, reply in zip(some, try_each(self._store.server, calls), strict=True):
                if not isinstance(reply, ResponseError):
                    self._has_forwarded(queue, named(reply))
                elif _is_for_all(reply):
                    refused = reply
                else:
                    self._has_failed(queue, reply)
            if refused is not None:
                raise refused

    def _has_failed(self, queue: str, error: ResponseError) -> None:
        """Note that Redis has refused the call for *queue*. Other queues may be in order."""
        if queue not in self._failing:
            logger.error("Cannot forward queue %r, trying again each second: %s", queue, why(error))
        self._failing.add(queue)
        self._look_at[queue] = monotonic() + LONGEST_WAIT

    def _has_forwarded(self, queue: str, found: Any) -> None:
        """
        Arguments:
            found: what ``lua/forward.lua`` returns.
        """
        self._failing.discard(queue)
        wait = LONGEST_WAIT if found.next_due_us < 0 else min(LONGEST_WAIT, found.next_due_us / 1_000_000)
        if found.has_more and not found.consumers:
            # Of a queue that is not to be fair any more.
            wait = 0.0
        self._look_at[queue] = monotonic() + wait
        if found.consumers:
            self._unattended.pop(queue, None)
        else:
            self._unattended[queue] = None
        if found.missing:
            logger.error("Skipped %d scheduled id(s) of queue %r that had no message", found.missing, queue)
        if found.moved:
            self._on_forwarded(Forwarded(queue, found.moved, found.late_us / 1_000_000))

    def _take_tokens(self) -> None:
        """Wait for tokens of the queues that have no consumer. Runs in a thread of its own.

        On a cluster, this would take a connection for each queue. There, a message that becomes the first one
        to be due may be late, by :data:`LONGEST_WAIT` at most.
        """
        if self._store.server.has_slots:
            return
        has_told = False
        while not self._stopped.is_set():
            wake = {self._store.keys(queue).wake: queue for queue in tuple(self._unattended)}
            if not wake:
                self._stopped.wait(LONGEST_WAIT)
                continue
            try:
                reply = self._store.server.call_apart("BZPOPMIN", *wake, LONGEST_WAIT)
                queue = reply and wake[reply[0].decode()]
            except (RedisError, OSError):
                # `run` gets the same error as soon as it has something to do, and logs it.
                self._stopped.wait(LONGEST_WAIT)
                continue
            except Exception:
                if self._stopped.is_set():
                    # `run` waits for this thread, but not for long. The connection is closed meanwhile.
                    return
                if not has_told:
                    has_told = True
                    logger.exception("Cannot wait for tokens of queues without a worker, trying on")
                self._stopped.wait(LONGEST_WAIT)
                continue
            if queue:
                self._tokens.put(queue)
                self._stopped.wait(TOKEN_PAUSE)


def _is_for_all(error: ResponseError) -> bool:
    """Whether a server that refuses in this way does not forward other queues either, for a while."""
    refusal = refusal_of(error)
    return refusal is not None and refusal.is_for_a_while and not refusal.is_for_one
