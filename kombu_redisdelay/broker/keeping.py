"""How messages that are over are kept: failed tasks and dead letters. Who reads them:
:mod:`~kombu_redisdelay.broker.archive`."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from redis.exceptions import ResponseError

from kombu_redisdelay.broker.failure import (
    FOREIGN,
    LONGEST_TEXT,
    Failure,
    kind_of_reason,
    report_dropped,
    report_failed_dropped,
    report_not_kept,
)
from kombu_redisdelay.broker.keys import ARCHIVED, FAILED
from kombu_redisdelay.broker.message import id_or_digest
from kombu_redisdelay.broker.options import KeepFailed, Options
from kombu_redisdelay.broker.portions import Chore, Doing, RoundTrips, Upkeep, next_page
from kombu_redisdelay.broker.server.line import Ack
from kombu_redisdelay.broker.server.scripts import KEEP, MOVE_DEAD, TRIM, ScriptCall, run_each
from kombu_redisdelay.broker.server.wire import Argument, Command, answers, checked
from kombu_redisdelay.broker.store import Store

#: Messages of a queue that one script drops, or counts anew.
TRIMMED_PER_CALL = 100

#: From so many failed tasks on that were dropped because too many were kept, the log says so: for each queue
#: at most once in so many seconds, by one of the workers.
TOLD_FROM, TOLD_EVERY = 10, 600

#: Dead letters of an older release that one script moves.
MOVED_PER_CALL = 50

#: What keep.lua returns for a failed task that is not kept.
_NOT_KEPT = -1

#: The first line of a dead letter in the list of an older release. Longer numbers are not ours.
_LINE = re.compile(rb"(\d{1,15}) (\d{1,15}) (\d{1,9}) ([^\n]*)\n")


def failing(
    store: Store,
    keep: KeepFailed,
    consumer: str,
    queue: str,
    tag: str,
    failure: Failure,
    copy: bytes,
    is_limited: bool,
) -> Ack:
    """What acks a message whose task has failed for good, or could not be ended though it has returned, and
    keeps it.

    Arguments:
        copy: if it was acked before, the message as it was stored; else empty.
        is_limited: whether the queue has a limited concurrency.
    """

    def told(reply: Any) -> None:
        if reply == _NOT_KEPT:
            report_not_kept(queue, failure)

    keys = store.keys(queue)
    args = KEEP.arguments(
        tag=tag,
        id=failure.id,
        group=failure.group,
        details=failure.details,
        copy=copy,
        failed_now=0,
        # Of one that was acked before, no permit is free now.
        is_limited=int(is_limited and not copy),
        count=keep.count,
        age_ms=keep.age_ms,
        bytes=keep.bytes,
    )
    used = (keys.unacked(consumer), keys.wake, keys.failed)
    # A copy that is sent again after the task was requeued would have it fail once more.
    return KEEP.as_ack(store.server, queue, tag, used, args, is_once=bool(copy), told=told)


class Undeliverable(NamedTuple):
    """A message that is to be a dead letter.

    Attributes:
        reason: why, in a line.
        payload: the message.
        copy: if it was consumed without acks, the message as it would be stored; else empty.
        failed_now: whether this delivery counts as failed.
    """

    queue: str
    tag: str
    reason: str
    payload: bytes
    copy: bytes = b""
    failed_now: bool = False


def dead_lettering(
    store: Store, limit: int, consumer: str, message: Undeliverable, is_limited: bool
) -> ScriptCall:
    """What keeps a message of *consumer* as a dead letter, one of *limit*. It returns 0 if the message was
    not held; else one more than how many older ones were dropped for it."""
    keys = store.keys(message.queue)
    args = KEEP.arguments(
        tag=message.tag,
        id=id_or_digest(message.payload),
        group=kind_of_reason(message.reason),
        details=_details(message.reason),
        copy=message.copy,
        failed_now=int(message.failed_now),
        is_limited=int(is_limited and not message.copy),
        count=limit,
        age_ms="",
        bytes="",
    )
    return KEEP, (keys.unacked(consumer), keys.wake, keys.dead_index), args


def _details(reason: str) -> str:
    return json.dumps({"text": reason[:LONGEST_TEXT]})


def trim(store: Store, options: Options | None, queues: Sequence[str]) -> RoundTrips[None]:
    """Drop the failed tasks and dead letters of *queues* that are too old, or too many, and mend what is left
    of them where Redis has evicted a part, or an older release has taken some out. If this process keeps no
    failed tasks, these stay: others may keep some. With no *options*, it mends, and drops none."""
    states = [state for state in ARCHIVED if state != FAILED or options is None or options.kept_failed]
    every = [(queue, state) for queue in queues for state in states]
    looks = (("EXISTS", *store.keys(queue).archive(state)) for queue, state in every)
    #: Where it goes on to look for what is lost or gone.
    left = {each: b"0" for each, exists in zip(every, answers(store.server, looks), strict=True) if exists}
    while left:
        yield
        calls = [_trimming(store, options, *each, cursor) for each, cursor in left.items()]
        done = dict(zip(left, run_each(store.server, calls), strict=True))
        for (queue, state), (_, dropped, _) in done.items():
            if options is None:
                continue
            if state != FAILED:
                report_dropped(options, queue, dropped)
            elif options.kept_failed:
                report_failed_dropped(queue, options.kept_failed, dropped)
        left = {
            each: cursor for each, (count, _, cursor) in done.items() if cursor or count == TRIMMED_PER_CALL
        }


def _trimming(store: Store, options: Options | None, queue: str, state: str, cursor: bytes) -> ScriptCall:
    limits: dict[str, Argument] = {"count": "", "age_ms": "", "bytes": ""}
    if options is not None and state != FAILED:
        limits["count"] = options.dead_letter_limit
    elif options is not None and (keep := options.kept_failed):
        limits = {"count": keep.count, "age_ms": keep.age_ms, "bytes": keep.bytes}
    args = TRIM.arguments(
        **limits,
        at_most=TRIMMED_PER_CALL,
        told_from=TOLD_FROM if state == FAILED else "",
        told_every_s=TOLD_EVERY,
        lost_from=cursor,
    )
    return TRIM, (store.keys(queue).archive(state).names,), args


@dataclass(frozen=True, slots=True)
class OlderLetter:
    """A dead letter in the list of an older release. What another program has written there is a message as
    it is.

    Attributes:
        entry: as it is in the list.
        since_ms: when it came, ms since the epoch; 0 if the entry is not a dead letter of ours.
        start: where its message begins.
    """

    entry: bytes
    since_ms: int
    failures: int
    step: int
    reason: str
    start: int

    @classmethod
    def of(cls, entry: bytes) -> OlderLetter:
        line = _LINE.match(entry)
        if line is None:
            return cls(entry, 0, 0, 0, FOREIGN, 0)
        since_ms, failures, step, reason = line.groups()
        return cls(
            *(entry, int(since_ms), int(failures), int(step)), reason.decode(errors="replace"), line.end()
        )

    @property
    def payload(self) -> bytes:
        return self.entry[self.start :]


def move_older(
    store: Store, queues: Sequence[str], refused: Callable[[str, ResponseError], object]
) -> RoundTrips[None]:
    """Move the dead letters of *queues* that a worker of an older release keeps in a list. Any number of
    processes may do this at the same time.

    Arguments:
        refused: called with a queue whose rest is left to the next time, and with the error of the server.
    """
    commands: list[Command] = [("LLEN", store.keys(queue).dead) for queue in queues]
    for queue, count in zip(queues, store.server.call_all(*commands), strict=True):
        try:
            [count] = checked([count])
            if count:
                yield from _move_those(store, queue, count)
        except ResponseError as exc:
            refused(queue, exc)


def _move_those(store: Store, queue: str, count: int) -> RoundTrips[None]:
    keys, size, at_us = store.keys(queue), 1, -1
    while count > 0:
        yield
        read: Command = ("LRANGE", keys.dead, -size, -1)
        [entries] = answers(store.server, [read])
        args: list[Argument] = []
        for entry in reversed(entries):
            letter = OlderLetter.of(entry)
            since_us = letter.since_ms * 1000
            # Those of a millisecond stay in their order.
            at_us = at_us + 1 if since_us <= at_us < since_us + 999 else since_us
            args += (
                *(entry, letter.start + 1, letter.step, at_us, letter.failures, id_or_digest(letter.payload)),
                *(kind_of_reason(letter.reason), _details(letter.reason)),
            )
        if not entries:
            return
        MOVE_DEAD(store.server, (keys.dead, keys.dead_index), args)
        count -= len(entries)
        size = min(MOVED_PER_CALL, next_page(size, sum(map(len, entries))))


def _moving(upkeep: Upkeep) -> Doing:
    # If that is refused, as by a full server, the rest is moved later.
    return lambda turn: move_older(upkeep.store, turn.queues, refused=lambda queue, error: None)


def _trimming_all(upkeep: Upkeep) -> Doing:
    return lambda turn: trim(upkeep.store, upkeep.options, turn.queues)


CHORES = (
    Chore("move dead letters that a worker of an older release keeps", _moving, rounds=6),
    # Failed tasks are kept for days.
    Chore("drop failed tasks that are too old, or too many", _trimming_all, rounds=6),
)
