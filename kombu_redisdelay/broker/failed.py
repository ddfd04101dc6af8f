"""Failed tasks: how a consumer keeps them, and what an operator does with them: look, requeue, remove."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any

from kombu_redisdelay.broker.by_time import Part, Row, find_all, id_bytes, read_pages
from kombu_redisdelay.broker.failure import Failure
from kombu_redisdelay.broker.kept import REQUEUE, take_out
from kombu_redisdelay.broker.message import split_stored
from kombu_redisdelay.broker.options import KeepFailed
from kombu_redisdelay.broker.portions import RoundTrips, portions
from kombu_redisdelay.broker.report import report_failed_dropped, report_not_kept
from kombu_redisdelay.broker.server.line import Ack
from kombu_redisdelay.broker.server.replies import answers, checked
from kombu_redisdelay.broker.server.scripts import FAIL, REMOVE_FAILED, TRIM_FAILED, run_each
from kombu_redisdelay.broker.server.wire import Argument, Command
from kombu_redisdelay.broker.store import Store
from kombu_redisdelay.broker.unique import size_with_key

#: One script takes out no more than this.
TASKS_PER_CALL = 50
BYTES_PER_CALL = 256 * 1024

#: Failed tasks of a queue that one script drops, or counts anew.
TRIMMED_PER_CALL = 100

#: From so many on that were dropped because too many were kept, the log says so: for each queue at most once
#: in so many seconds, by one of the workers.
TOLD_FROM, TOLD_EVERY = 10, 600

#: Heads that are read together. One may have 100 KB, where a traceback is not in English.
HEADS_PER_CALL = 20

#: How many bytes of a head are read to know the task and the error. Most names are shorter; a head whose
#: names are longer is read whole.
BEGINNING = 256

#: Groups that are read together.
GROUPS_PER_CALL = 500

#: The name of a group has these: task and exception.
_WORDS = 2

#: What is counted of a group. Longer numbers are not ours.
_GROUP = re.compile(rb"(\d{1,15}) (\d{1,15}) (\d{1,15})")

#: What fail.lua returns for a task that is not kept.
_NOT_KEPT = 2

#: No process starts a task as late as this, in seconds since the epoch.
_LATEST = 1e11

#: A head, or its beginning (lua/include/failed.lua). Longer numbers are not ours.
_HEAD = re.compile(rb"(\d{1,18}) (\d{1,18}) (\S+) (\S+) (\S+) (.*)", re.DOTALL)


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
    """What acks a message whose task has failed for good, and keeps it.

    Arguments:
        copy: if it was acked before, the message as it was stored; else empty.
        is_limited: whether the queue has a limited concurrency.
    """

    def told(reply: Any) -> None:
        if reply == _NOT_KEPT:
            report_not_kept(queue, failure)

    keys = store.keys(queue)
    args = FAIL.arguments(
        tag=tag,
        id=failure.id,
        group=failure.group,
        details=failure.details,
        copy=copy,
        is_limited=int(is_limited),
        count=keep.count,
        age_ms=keep.age_ms,
        bytes=keep.bytes,
        most_trimmed=TRIMMED_PER_CALL,
    )
    used = (keys.unacked(consumer), keys.wake)
    # A copy that is sent again after the task was requeued would have it fail once more.
    return FAIL.as_ack(store.server, queue, tag, used, args, is_once=bool(copy), told=told)


@dataclass(frozen=True)
class FailedTask:
    """A failed task as it is kept.

    Attributes:
        name: the name that it has there: its id, unless another one had that before.
        since_ms: when it failed, ms since the epoch, with a fraction.
        head: what is noted of its failure, as it is in Redis; empty if it is gone.
        stored: the message as it is in Redis, with its priority step; empty if it was too large to be kept.
    """

    queue: str
    name: bytes
    since_ms: float
    head: bytes
    stored: bytes

    @cached_property
    def payload(self) -> bytes:
        return split_stored(self.stored)[1]

    @property
    def is_whole(self) -> bool:
        """Whether the message was kept, too, so that it can be requeued."""
        return bool(self.stored)

    @property
    def id(self) -> str:
        return id_in(self.name).decode(errors="replace")

    @cached_property
    def failure(self) -> Failure:
        """What is noted of its failure. Another program may have written anything: what is not right is
        missing."""
        found = _HEAD.fullmatch(self.head)
        if found is None:
            return Failure(self.id, "-", "-", "", "", "", 0, None)
        _, _, task, error, _, details = found.groups()
        try:
            noted = json.loads(details)
        except (ValueError, RecursionError):
            noted = {}
        noted = noted if isinstance(noted, dict) else {}
        texts = (noted.get(name) for name in ("text", "traceback", "worker"))
        text, traceback, worker = (each if isinstance(each, str) else "" for each in texts)
        tries, started = noted.get("tries"), noted.get("started")
        return Failure(
            self.id,
            task.decode(errors="replace"),
            error.decode(errors="replace"),
            text,
            traceback,
            worker,
            tries if isinstance(tries, int) else 0,
            started if isinstance(started, (int, float)) and 0 <= started < _LATEST else None,
        )

    @property
    def failures(self) -> int:
        """How many deliveries of it had failed before."""
        found = _HEAD.fullmatch(self.head)
        return 0 if found is None else int(found[2])


def id_in(name: bytes) -> bytes:
    """The id in the name of a failed task."""
    return name.partition(b"\x1f")[0]


def group_of(head: bytes) -> tuple[str, str] | None:
    """The task and the error in a head, or in the beginning of one; ``None`` if they are not there."""
    found = _HEAD.match(head)
    return None if found is None else (found[3].decode(errors="replace"), found[4].decode(errors="replace"))


@dataclass(frozen=True, slots=True)
class Group:
    """Failed tasks of one name with one class of exceptions.

    Attributes:
        count: how many are kept.
        first_ms, last_ms: when the first and the last one failed, ms since the epoch. The first one may not
            be there any more.
    """

    task: str
    error: str
    count: int
    first_ms: int
    last_ms: int


class FailedTasks:
    """The failed tasks in *store*, queue by queue."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def counts(
        self, queues: Sequence[str], from_ms: float | None = None, before_ms: float | None = None
    ) -> list[int]:
        """How many each of *queues* has that have failed from *from_ms* on and before *before_ms*, in ms
        since the epoch. ``None`` is no limit."""
        low: Argument = "-inf" if from_ms is None else from_ms
        high = "+inf" if before_ms is None else f"({before_ms}"
        return answers(
            self._store.server, (("ZCOUNT", self._store.keys(q).failed, low, high) for q in queues)
        )

    def iter(self, queue: str, part: Part) -> Iterator[FailedTask]:
        """The failed tasks of *queue*, read page by page, in the order in which they failed."""
        for rows in read_pages(self._store.server, self._keys(queue), part):
            yield from self._with_heads(queue, rows)

    def heads(self, queue: str, part: Part) -> Iterator[list[Row]]:
        """The failed tasks of *queue*, page by page, with the beginnings of their heads in place of messages.
        This reads much less."""
        keys = self._store.keys(queue)
        return read_pages(self._store.server, (keys.failed, keys.failed_heads, ""), part, BEGINNING)

    def named(self, queue: str, names: Sequence[bytes]) -> dict[bytes, FailedTask]:
        """The failed tasks of *queue* with these names, as far as they are there, by their names."""
        found = find_all(self._store.server, self._keys, [queue], names)
        # A name may be the id of others, too.
        rows = [row for _, name, row in found if row.name == name]
        return {task.name: task for task in self._with_heads(queue, rows)}

    def groups(self, queue: str) -> list[Group]:
        """The failed tasks of *queue* by task and exception."""
        key, cursor = self._store.keys(queue).failed_groups, ""
        found: dict[bytes, Group] = {}
        while cursor != "0":
            scan: Command = ("HSCAN", key, cursor or "0", "COUNT", GROUPS_PER_CALL)
            [(position, fields)] = answers(self._store.server, [scan])
            cursor = position.decode()
            for kind, line in zip(fields[::2], fields[1::2], strict=True):
                words, numbers = kind.split(b" "), _GROUP.fullmatch(line)
                # Another program may have written anything.
                if len(words) == _WORDS and numbers is not None:
                    task, error = (word.decode(errors="replace") for word in words)
                    found[kind] = Group(task, error, *map(int, numbers.groups()))
        return list(found.values())

    def find_all(self, queues: Sequence[str], ids: Sequence[str]) -> Iterator[FailedTask]:
        """The failed tasks of *queues* with these ids."""
        for queue, _, row in find_all(self._store.server, self._keys, queues, [*map(id_bytes, ids)]):
            yield from self._with_heads(queue, [row])

    def take_out(
        self,
        queue: str,
        how: str,
        tasks: Iterable[FailedTask],
        renewed: Callable[[bytes], bytes] = bytes,
        stays: Callable[[FailedTask, str], object] = lambda task, holder: None,
    ) -> Iterator[FailedTask]:
        """Do what *how* says, :data:`~kombu_redisdelay.broker.kept.REQUEUE` or ``REMOVE``, with *tasks* of
        *queue*. Yields those that were still there.

        Arguments:
            renewed: makes of a message the one to requeue.
            stays: called with each one that is not requeued because another message holds its key, and the id
                of that message; and with each one that was kept without its message, and no id.
        """
        keys = self._store.keys(queue)
        used = (keys.failed, keys.ready, keys.wake)

        def movable() -> Iterator[FailedTask]:
            for task in tasks:
                if how == REQUEUE and not task.is_whole:
                    stays(task, "")
                else:
                    yield task

        def of_each(task: FailedTask) -> tuple[Argument, ...]:
            step, payload = split_stored(task.stored)
            again = b"%d:%b" % (step, renewed(payload)) if how == REQUEUE else b""
            return task.name, task.head, again

        parts = portions(movable(), _size, TASKS_PER_CALL, BYTES_PER_CALL)
        begin = (how, keys.separator)
        return take_out(self._store.server, REMOVE_FAILED, used, begin, parts, of_each, stays)

    def clear(self, queue: str) -> int:
        """Remove all failed tasks of *queue*. Returns how many there were."""
        keys = self._store.keys(queue)
        # The server runs both before it turns to other clients.
        count, _ = checked(self._store.server.call_all(("ZCARD", keys.failed), ("UNLINK", *keys.all_failed)))
        return int(count)

    def _keys(self, queue: str) -> tuple[str, str, str]:
        tasks, messages, duplicates, *_ = self._store.keys(queue).all_failed
        return tasks, messages, duplicates

    def _with_heads(self, queue: str, rows: Sequence[Row]) -> Iterator[FailedTask]:
        if not rows:
            return
        key = self._store.keys(queue).failed_heads
        names = [row.name for row in rows]
        some = [names[first : first + HEADS_PER_CALL] for first in range(0, len(names), HEADS_PER_CALL)]
        found = answers(self._store.server, [("HMGET", key, *each) for each in some])
        for row, head in zip(rows, chain.from_iterable(found), strict=True):
            yield FailedTask(queue, row.name, row.at_ms, head or b"", row.stored)


def _size(task: FailedTask) -> int:
    return len(task.head) + size_with_key(task.stored)


def trim_failed(store: Store, keep: KeepFailed | None, queues: Sequence[str]) -> RoundTrips[None]:
    """Drop the failed tasks of *queues* that are too old, or too many, and what is left of them where
    Redis has evicted a part. If this process keeps none, it does nothing: others may keep some."""
    left = list(queues) if keep else []
    if keep and left:
        counts = answers(store.server, (("EXISTS", *store.keys(queue).all_failed) for queue in left))
        left = [queue for queue, exists in zip(left, counts, strict=True) if exists]
    while keep and left:
        yield
        args = (*(keep.count, keep.age_ms, keep.bytes, TRIMMED_PER_CALL), *(TOLD_FROM, TOLD_EVERY))
        done = run_each(store.server, [(TRIM_FAILED, (store.keys(queue).failed,), args) for queue in left])
        for queue, (_, dropped) in zip(left, done, strict=True):
            report_failed_dropped(queue, keep, dropped)
        left = [queue for queue, (count, _) in zip(left, done, strict=True) if count == TRIMMED_PER_CALL]
