"""Gives back messages: some of a consumer, all of our own when we stop, all of lost ones. It finds these."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Collection, Container, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import chain
from time import monotonic
from typing import Any, NamedTuple

from kombu_redisdelay import metrics
from kombu_redisdelay.broker.failure import report_dead, report_dropped
from kombu_redisdelay.broker.lease_policy import LONGEST_WATCHED_LOOK_INTERVAL
from kombu_redisdelay.broker.message import ids_to_schedule, task_and_id, which
from kombu_redisdelay.broker.options import Options
from kombu_redisdelay.broker.portions import (
    BYTES_PER_CALL,
    MESSAGES_PER_CALL,
    Chore,
    Doing,
    RoundTrips,
    Turn,
    Upkeep,
    portions,
)
from kombu_redisdelay.broker.processes import has_ended, host_and_pid, process_of
from kombu_redisdelay.broker.server.scripts import CONSUMERS, GIVE_BACK, ScriptCall, run_each
from kombu_redisdelay.broker.server.server import by_slot
from kombu_redisdelay.broker.server.wire import Argument, answers
from kombu_redisdelay.broker.store import Store
from kombu_redisdelay.words import printable

logger = logging.getLogger(__name__)

#: Holders of one round trip.
HOLDERS_AT_ONCE = 50

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


class HoldingConsumer(NamedTuple):
    """A consumer that may hold messages of a queue.

    Attributes:
        lease_counts: whether it keeps its messages while its lease lasts.
    """

    queue: str
    consumer: str
    lease_counts: bool


class Returned(NamedTuple):
    """The result for one holder.

    Attributes:
        messages: how many went back, without those that became dead letters.
        holds_none: whether it holds no message any more, or may keep its messages.
        briefs: of some of those that were lost and went back.
    """

    messages: int
    holds_none: bool
    briefs: Sequence[bytes]


@dataclass
class _Return:
    """What is given back of one holder.

    Attributes:
        tags: delivery tags that are left to do, the latest first.
        ids: tag -> what to schedule the message under, for those that have asked for it.
        given_back: how many messages went back so far, without those that became dead letters.
        done: whether the holder holds no message any more, or may keep its messages.
        briefs: of some of those that were lost and went back.
    """

    holder: HoldingConsumer
    tags: list[bytes] = field(default_factory=list)
    ids: Mapping[bytes, str] = field(default_factory=dict)
    given_back: int = 0
    done: bool = False
    briefs: list[bytes] = field(default_factory=list)

    @property
    def some_tags(self) -> list[bytes]:
        """Those of the next script."""
        return self.tags[:MESSAGES_PER_CALL]


class _Reply(NamedTuple):
    """What ``give_back.lua`` returns."""

    looked_at: int
    settled: int
    dead: int
    dropped: int
    done: int
    lost: list[bytes]
    briefs: list[bytes]
    unnamed: list[bytes]


class Recovery:
    """Gives back messages in *store*."""

    def __init__(self, store: Store, options: Options) -> None:
        self._store = store
        self._options = options

    def give_back(
        self, holders: Sequence[HoldingConsumer], reason: str, keep: Collection[str] = ()
    ) -> RoundTrips[dict[HoldingConsumer, Returned]]:
        """Give back what *holders* hold, except the delivery tags in *keep*. Returns the result for each.

        Arguments:
            reason: "returned" or "lost" (``lua/include/give_back.lua``).
        """
        outcome: dict[HoldingConsumer, Returned] = {}
        kept = {tag.encode() for tag in keep}
        for first in range(0, len(holders), HOLDERS_AT_ONCE):
            returns = [_Return(holder) for holder in holders[first : first + HOLDERS_AT_ONCE]]
            if first:
                yield
            self._find_tags(returns, kept)
            pending = returns
            while pending:
                yield
                some = next(portions(pending, _weight, HOLDERS_AT_ONCE, MESSAGES_PER_CALL))
                self._give_back_some(some, reason)
                unfinished = [each for each in some if each.tags and not each.done]
                pending = unfinished + pending[len(some) :]
            outcome |= {each.holder: Returned(each.given_back, each.done, each.briefs) for each in returns}
        return outcome

    def _find_tags(self, returns: Sequence[_Return], kept: Collection[bytes]) -> None:
        unacked = [self._store.keys(each.holder.queue).unacked(each.holder.consumer) for each in returns]
        replies = answers(self._store.server, (("HKEYS", key) for key in unacked))
        for each, tags in zip(returns, replies, strict=True):
            each.tags = [tag for tag in tags if tag not in kept]
            # The message taken last goes back first, so that the one taken first is at the head in the end.
            each.tags.sort(key=lambda tag: (len(tag), tag), reverse=True)

    def give_back_tags(
        self, queue: str, consumer: str, tags: Sequence[str], reason: str, delay_ms: float | None = None
    ) -> tuple[int, int]:
        """Give back some messages that *consumer* holds. Returns how many of them were held, and how many of
        those are dead letters now.

        Arguments:
            reason: "unseen", "returned" or "failed" (``lua/include/give_back.lua``).
            delay_ms: after how many ms they may be delivered again; ``None``: as the option ``retry_wait``
                says.
        """
        holder, settled, dead = HoldingConsumer(queue, consumer, lease_counts=False), 0, 0
        left: list[tuple[Argument, str]] = [(tag, "") for tag in tags]
        while left:
            _, keys, args = self._call(holder, left, reason, delay_ms, stays=True)
            reply, ids = self._read(queue, GIVE_BACK(self._store.server, keys, args))
            settled, dead = settled + reply.settled, dead + reply.dead
            left[: reply.looked_at] = ids.items()
        return settled, dead

    def _give_back_some(self, returns: Sequence[_Return], reason: str) -> None:
        calls = [
            self._call(each.holder, [(tag, each.ids.get(tag, "")) for tag in each.some_tags], reason)
            for each in returns
        ]
        for each, reply in zip(returns, run_each(self._store.server, calls), strict=True):
            some, each.ids = self._read(each.holder.queue, reply)
            each.tags[: some.looked_at] = each.ids
            each.given_back += some.settled - some.dead
            each.done = bool(some.done)
            each.briefs = each.briefs or some.lost

    def _read(self, queue: str, reply: Sequence[Any]) -> tuple[_Reply, Mapping[bytes, str]]:
        """A reply, and the ids of those messages that are still to do. Says what became a dead letter."""
        found = _Reply(*reply)
        ids = ids_to_schedule(found.unnamed)
        if ids:
            self._store.remember(queue)
        report_dead(self._store, self._options, queue, found.dead, found.briefs)
        report_dropped(self._options, queue, found.dropped)
        return found, ids

    def _call(
        self,
        holder: HoldingConsumer,
        tags_and_ids: Sequence[tuple[Argument, str]],
        reason: str,
        delay_ms: float | None = None,
        *,
        stays: bool = False,
    ) -> ScriptCall:
        """
        Arguments:
            stays: whether it is consumer of the queue also when it holds nothing.
        """
        k, options = self._store.keys(holder.queue), self._options
        keys = (k.unacked(holder.consumer), k.ready, k.wake, k.dead_index, *k.scheduling, k.consumers)
        args = GIVE_BACK.arguments(
            chain.from_iterable(tags_and_ids),
            consumer="" if stays else holder.consumer,
            lease_counts=int(holder.lease_counts),
            reason=reason,
            byte_limit=BYTES_PER_CALL,
            separator=k.separator,
            delivery_limit=options.delivery_limit or 0,
            dead_limit=options.dead_letter_limit,
            isolated_from=options.isolated_after,
            expires_ms=self._store.expires_ms.get(holder.queue, 0),
            retry_wait_ms=options.retry_wait_ms,
            delay_ms="" if delay_ms is None else delay_ms,
            count=len(tags_and_ids),
        )
        return GIVE_BACK, keys, args


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
    ) -> list[HoldingConsumer]:
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
                holders.append(HoldingConsumer(queue, name, lease_counts=False))
            elif name in unrenewed and lease_ends[name] <= now_ms and name != self.name:
                holders.append(HoldingConsumer(queue, name, lease_counts=True))
        return holders


def _weight(each: _Return) -> int:
    """About how long its script takes, in messages: Redis turns to others only after all scripts of a packet.
    A script without messages takes as long as four."""
    return 4 + len(each.some_tags)


def _report_recovered(holder: HoldingConsumer, returned: Returned) -> None:
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


def _recovering(upkeep: Upkeep) -> Doing:
    recoverer = upkeep.recoverer

    def recover(turn: Turn) -> RoundTrips[None]:
        recoverer.keep_only(turn.all_queues)
        yield from recoverer.recover(turn.queues, is_first=turn.are_new)
        if recoverer.is_watching:
            upkeep.hurry(LONGEST_WATCHED_LOOK_INTERVAL)

    return recover


CHORES = (Chore("give back what lost consumers hold", _recovering),)
