"""Gives back all messages of a consumer: our own when we stop, and those of lost consumers.

The work is done in portions. Each takes one round trip, for many queues together. Between two round trips, a
consumer does other things.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from kombu_redisdelay.broker.message import ids_to_schedule
from kombu_redisdelay.broker.options import Options
from kombu_redisdelay.broker.portions import BYTES_PER_CALL, MESSAGES_PER_CALL, RoundTrips, portions
from kombu_redisdelay.broker.report import report_dead, report_dropped
from kombu_redisdelay.broker.server.scripts import RECOVER, ScriptCall, run_each
from kombu_redisdelay.broker.server.wire import answers
from kombu_redisdelay.broker.store import Store

#: Holders of one round trip.
HOLDERS_AT_ONCE = 50


class Holder(NamedTuple):
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

    holder: Holder
    tags: list[bytes] = field(default_factory=list)
    ids: Mapping[bytes, str] = field(default_factory=dict)
    given_back: int = 0
    done: bool = False
    briefs: list[bytes] = field(default_factory=list)


class Recovery:
    """Gives back messages in *store*."""

    def __init__(self, store: Store, options: Options) -> None:
        self._store = store
        self._options = options

    def give_back(
        self, holders: Sequence[Holder], how: str, keep: Collection[str] = ()
    ) -> RoundTrips[dict[Holder, Returned]]:
        """Give back what *holders* hold, except the delivery tags in *keep*. Returns the result for each.

        Arguments:
            how: "returned" or "lost" (``lua/include/give_back.lua``).
        """
        outcome: dict[Holder, Returned] = {}
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
                self._give_back_some(some, how)
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

    def _give_back_some(self, returns: Sequence[_Return], how: str) -> None:
        replies = run_each(self._store.server, [self._call(each, how) for each in returns])
        for each, reply in zip(returns, replies, strict=True):
            looked_at, acted_on, dead, dropped, done, lost, dead_briefs, unnamed = reply
            each.ids = ids_to_schedule(unnamed)
            if each.ids:
                self._store.remember(each.holder.queue)
            each.tags[:looked_at] = each.ids
            each.given_back += acted_on - dead
            each.done = bool(done)
            each.briefs = each.briefs or lost
            report_dead(self._store, self._options, each.holder.queue, dead, dead_briefs)
            report_dropped(self._options, each.holder.queue, dropped)

    def _call(self, each: _Return, how: str) -> ScriptCall:
        queue, consumer, lease_counts = each.holder
        k, options = self._store.keys(queue), self._options
        keys = (k.consumers, k.unacked(consumer), k.ready, k.wake, k.dead, *k.scheduling)
        tags = each.tags[:MESSAGES_PER_CALL]
        return (
            RECOVER,
            keys,
            RECOVER.arguments(
                (text for tag in tags for text in (tag, each.ids.get(tag, ""))),
                consumer=consumer,
                is_lost=int(not lease_counts),
                how=how,
                byte_limit=BYTES_PER_CALL,
                separator=k.separator,
                delivery_limit=options.delivery_limit or 0,
                dead_limit=options.dead_letter_limit,
                isolated_from=options.isolated_after,
                expires_ms=self._store.expires_ms.get(queue, 0),
                retry_wait_ms=options.retry_wait_ms,
                count=len(tags),
            ),
        )


def _weight(each: _Return) -> int:
    """About how long its script takes, in messages: Redis turns to others only after all scripts of a packet.
    A script without messages takes as long as four."""
    return 4 + min(len(each.tags), MESSAGES_PER_CALL)
