"""Gives back all that consumers hold: one's own messages at the end, and those of others that are gone.

What takes more than one round trip is done in steps, each of which is one, for many queues together: whoever
consumes does other things in between.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

from kombu_redisdelay.broker.options import Options
from kombu_redisdelay.broker.portions import BYTES_PER_CALL, MESSAGES_PER_CALL
from kombu_redisdelay.broker.report import report_dead, report_dropped
from kombu_redisdelay.broker.server.replies import checked
from kombu_redisdelay.broker.server.scripts import RECOVER, ScriptCall, run_each
from kombu_redisdelay.broker.store import Store

_Result = TypeVar("_Result")

#: Yields between two round trips. Returns what came out of them.
Steps = Generator[None, None, _Result]


def finish(steps: Steps[_Result]) -> _Result:
    """Make all round trips, one after the other. Returns what came out of them."""
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            result: _Result = stop.value
            return result


#: Holders that one step looks at.
HOLDERS_PER_STEP = 50


class Holder(NamedTuple):
    """A consumer that may hold messages of a queue.

    Attributes:
        lease_counts: whether it keeps what it holds as long as its lease lasts.
    """

    queue: str
    consumer: str
    lease_counts: bool


class Returned(NamedTuple):
    """What came of a holder.

    Attributes:
        messages: that went back, without those that are dead now.
        holds_none: whether it holds no message any more, or may keep it.
    """

    messages: int
    holds_none: bool


@dataclass
class _Return:
    """What is given back of one holder.

    Attributes:
        tags: delivery tags that are left to do, what was taken last first.
        given_back: messages so far, without those that are dead now.
        done: whether the holder holds nothing any more, or may keep it.
    """

    holder: Holder
    tags: list[bytes] = field(default_factory=list)
    given_back: int = 0
    done: bool = False


class Recovery:
    """Gives back, in *store*."""

    def __init__(self, store: Store, options: Options) -> None:
        self._store = store
        self._options = options

    def give_back(
        self, holders: Sequence[Holder], how: str, keep: Collection[str] = ()
    ) -> Steps[dict[Holder, Returned]]:
        """Give back what *holders* hold, but for the delivery tags to *keep*. Returns what came of each.

        Arguments:
            how: "returned" or "lost" (``lua/include/give_back.lua``).
        """
        outcome: dict[Holder, Returned] = {}
        kept = {tag.encode() for tag in keep}
        for first in range(0, len(holders), HOLDERS_PER_STEP):
            returns = [_Return(holder) for holder in holders[first : first + HOLDERS_PER_STEP]]
            if first:
                yield
            self._find_tags(returns, kept)
            pending = returns
            while pending:
                yield
                self._give_back_some(pending, how)
                pending = [each for each in pending if each.tags and not each.done]
            outcome |= {each.holder: Returned(each.given_back, each.done) for each in returns}
        return outcome

    def _find_tags(self, returns: Sequence[_Return], kept: Collection[bytes]) -> None:
        unacked = [self._store.keys(each.holder.queue).unacked(each.holder.consumer) for each in returns]
        replies = checked(self._store.server.call_all(*(("HKEYS", key) for key in unacked)))
        for each, tags in zip(returns, replies, strict=True):
            each.tags = [tag for tag in tags if tag not in kept]
            # What was taken last goes first, so that what was taken first is at the head in the end.
            each.tags.sort(key=lambda tag: (len(tag), tag), reverse=True)

    def _give_back_some(self, returns: Sequence[_Return], how: str) -> None:
        replies = run_each(self._store.server, [self._call(each, how) for each in returns])
        for each, (looked_at, held, dead, dropped, done) in zip(returns, replies, strict=True):
            del each.tags[:looked_at]
            each.given_back += held - dead
            each.done = bool(done)
            report_dead(self._store, self._options, each.holder.queue, dead)
            report_dropped(self._options, each.holder.queue, dropped)

    def _call(self, each: _Return, how: str) -> ScriptCall:
        queue, consumer, lease_counts = each.holder
        k, options = self._store.keys(queue), self._options
        keys = (k.consumers, k.unacked(consumer), k.ready, k.wake, k.dead)
        return (
            RECOVER,
            keys,
            (
                consumer,
                int(not lease_counts),
                how,
                BYTES_PER_CALL,
                k.separator,
                options.delivery_limit or 0,
                options.dead_letter_limit,
                options.alone_after,
                self._store.expires_ms.get(queue, 0),
                *each.tags[:MESSAGES_PER_CALL],
            ),
        )
