"""Finds consumers that are lost, and gives back their messages."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Container, Mapping, Sequence
from functools import cache
from time import monotonic

from kombu_redisdelay import metrics
from kombu_redisdelay.broker.message import task_and_id, which
from kombu_redisdelay.broker.options import Options
from kombu_redisdelay.broker.portions import RoundTrips
from kombu_redisdelay.broker.printable import printable
from kombu_redisdelay.broker.processes import has_ended, host_and_pid, process_of
from kombu_redisdelay.broker.recovery import Holder, Recovery, Returned
from kombu_redisdelay.broker.server.scripts import CONSUMERS, run_each
from kombu_redisdelay.broker.server.server import by_slot
from kombu_redisdelay.broker.store import Store

logger = logging.getLogger(__name__)

#: Consumers that one look asks after, in all its queues together. If a queue has more, each look asks after a
#: random part of them. So the cost of a fleet does not grow with the square of its size.
CONSUMERS_PER_LOOK = 500

#: The same for the first look, and for each script: after a worker was killed, its successor gets its
#: messages back at once.
CONSUMERS_PER_FIRST_LOOK = 5000

#: The same for each queue, and for consumers that should have renewed their leases. There are some only
#: after a failure.
ENDING_PER_LOOK = 500

#: Queues that one script looks at.
QUEUES_PER_SCRIPT = 10


class LeaseWatch:
    """Finds the leases that are not renewed any more.

    It is not enough that a lease has ended. When the server's clock jumps ahead, or Redis was away or has
    refused to write for longer than a lease lasts, the leases of living consumers have ended, too, until they
    can renew them. So only the time counts in which the watching consumer could renew its own.

    Arguments:
        seconds: how long a living consumer may need to renew its lease
            (:attr:`~kombu_redisdelay.broker.lease_policy.LeasePolicy.watch_time`).
        clock: a clock in seconds that cannot be set.
        served_since: since when the watching consumer could renew its own, by *clock*.
    """

    def __init__(
        self,
        seconds: float,
        clock: Callable[[], float] = monotonic,
        served_since: Callable[[], float] = lambda: float("-inf"),
    ) -> None:
        self._seconds = seconds
        self._served_since = served_since
        self._clock = clock
        #: queue -> consumer -> the end of its lease, and since when that end has not changed.
        self._seen: dict[str, dict[str, tuple[int, float]]] = {}

    def keep_only(self, queues: Container[str]) -> None:
        """Forget what was seen of other queues."""
        self._seen = {queue: seen for queue, seen in self._seen.items() if queue in queues}

    @property
    def sees_any(self) -> bool:
        """Whether any lease is watched."""
        return bool(self._seen)

    def unrenewed(self, queue: str, lease_ends: Mapping[str, int]) -> set[str]:
        """The consumers of *queue* that were watched for long enough and have not renewed their leases.

        Arguments:
            lease_ends: consumer -> when its lease ends, ms since the epoch. Only for consumers that should
                have renewed it.
        """
        now = self._clock()
        before = self._seen.get(queue, {})
        seen = {}
        for name, lease_end in lease_ends.items():
            lease_end_before, since = before.get(name, (None, now))
            seen[name] = (lease_end, since if lease_end == lease_end_before else now)
        if seen:
            self._seen[queue] = seen
        else:
            self._seen.pop(queue, None)
        served_since = self._served_since()
        return {name for name, (_, since) in seen.items() if now - max(since, served_since) >= self._seconds}


class Recoverer:
    """Gives back what lost consumers hold in *store*.

    Arguments:
        name: the consumer on whose behalf it does so. It ignores the lease of this consumer.
        watch: watches the leases of the other consumers.

    Attributes:
        name: that consumer.
    """

    def __init__(self, store: Store, name: str, options: Options, watch: LeaseWatch) -> None:
        self._store = store
        self.name = name
        self._options = options
        self._unrenewed_ms = options.lease_policy.unrenewed_ms
        self._watch = watch
        self._recovery = Recovery(store, options)

    def keep_only(self, queues: Container[str]) -> None:
        """Forget what was seen of other queues."""
        self._watch.keep_only(queues)

    @property
    def is_watching(self) -> bool:
        """Whether there are leases that should have been renewed."""
        return self._watch.sees_any

    def recover(self, queues: Sequence[str], *, is_first: bool = False) -> RoundTrips[int]:
        """Give back what lost consumers hold in *queues*. Returns the number of messages.

        A consumer is lost if its lease has ended and was not renewed while we watched it, or if its process
        was on this machine and provably does not exist any more. Call this again and again.

        Arguments:
            is_first: whether this is the first look at these queues. It asks after all their consumers.
        """
        count = max(1, len(queues))
        most = CONSUMERS_PER_LOOK // count
        if is_first:
            most = CONSUMERS_PER_FIRST_LOOK // min(count, QUEUES_PER_SCRIPT)
        args = (self._unrenewed_ms, random.random(), most, ENDING_PER_LOOK)
        server, key = self._store.server, self._consumers_key
        together = by_slot(server, queues, key, QUEUES_PER_SCRIPT)
        replies = run_each(server, [(CONSUMERS, list(map(key, some)), args) for some in together])
        # Each process is looked at once, however many consumers and queues it has.
        is_over = cache(has_ended)
        holders = [
            holder
            for some, (now_ms, found) in zip(together, replies, strict=True)
            for queue, (ending, members) in zip(some, found, strict=True)
            for holder in self._lost(queue, now_ms, ending, members, is_over)
        ]
        if not holders:
            return 0
        # Others find them at the same time. In a random order, each does a part of the work.
        random.shuffle(holders)
        yield
        outcome = yield from self._recovery.give_back(holders, "lost")
        for holder, returned in outcome.items():
            if returned.messages:
                metrics.recovered(holder.queue, returned.messages)
                _report_recovered(holder, returned)
        return sum(returned.messages for returned in outcome.values())

    def _consumers_key(self, queue: str) -> str:
        return self._store.keys(queue).consumers

    def _lost(
        self,
        queue: str,
        now_ms: int,
        ending: Sequence[bytes | int],
        members: Sequence[bytes],
        is_over: Callable[[str], bool],
    ) -> list[Holder]:
        # A member that is not the name of a consumer holds nothing.
        names = [member.decode(errors="replace") for member in members]
        lease_ends = {
            bytes(member).decode(errors="replace"): int(end)
            for member, end in zip(ending[::2], ending[1::2], strict=True)
        }
        unrenewed = self._watch.unrenewed(queue, lease_ends)
        holders = []
        for name in dict.fromkeys((*names, *lease_ends)):
            if is_over(process_of(name)):
                holders.append(Holder(queue, name, lease_counts=False))
            elif name in unrenewed and lease_ends[name] <= now_ms and name != self.name:
                holders.append(Holder(queue, name, lease_counts=True))
        return holders


def _report_recovered(holder: Holder, returned: Returned) -> None:
    host, pid = host_and_pid(holder.consumer)
    logger.warning(
        "Recovered %d message(s) of queue %r from process %s on %s (consumer %r), because %s%s",
        returned.messages,
        holder.queue,
        "?" if pid is None else pid,
        printable(host or "an unknown host"),
        holder.consumer,
        "its lease has ended" if holder.lease_counts else "the process is gone",
        which(map(task_and_id, returned.briefs), returned.messages),
    )
