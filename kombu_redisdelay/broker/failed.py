"""Failed tasks: how a consumer keeps them, and what an operator does with them: look, requeue, remove."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any, NamedTuple

from kombu_redisdelay.broker.failure import RETURNED, Failure, report_failed_dropped, report_not_kept
from kombu_redisdelay.broker.members import size_to_move
from kombu_redisdelay.broker.message import split_stored
from kombu_redisdelay.broker.options import KeepFailed
from kombu_redisdelay.broker.paging import REQUEUE, Part, Row, find_all, id_bytes, read_pages, take_out
from kombu_redisdelay.broker.portions import Chore, Doing, RoundTrips, Upkeep, portions
from kombu_redisdelay.broker.server.line import Ack
from kombu_redisdelay.broker.server.scripts import CLEAR_FAILED, FAIL, REMOVE_FAILED, TRIM_FAILED, run_each
from kombu_redisdelay.broker.server.wire import Argument, Command, answers
from kombu_redisdelay.broker.store import Store

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

#: The name of a group has these: task and exception, and what was lost if the task has returned.
_WORDS = (2, 3)

#: What is counted of a group. Longer numbers are not ours.
_GROUP = re.compile(rb"(\d{1,15}) (\d{1,15}) (\d{1,15})")

#: What fail.lua returns for a task that is not kept.
_NOT_KEPT = 2

#: No process starts a task as late as this, in seconds since the epoch.
_LATEST = 1e11

#: A head, or its beginning (lua/include/failed.lua). Longer numbers are not ours.
_HEAD = re.compile(rb"(\d{1,18}) (\d{1,18}) (\S+) (\S+) (\S+) (.*)", re.DOTALL)

#: How what else is noted begins, of a task that has returned; and how long that may be.
_HAS_RETURNED = re.compile(rb'\{"returned": "(\w+)"')
_LONGEST_BEGINNING = 30


class Kind(NamedTuple):
    """What failed tasks are grouped by.

    Attributes:
        task, error: the names of the task, and of the class of the exception.
        returned: what was lost, as in :attr:`~kombu_redisdelay.broker.failure.Failure.returned`.
    """

    task: str
    error: str
    returned: str = ""


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
        tries, started, returned = (noted.get(name) for name in ("tries", "started", "returned"))
        return Failure(
            self.id,
            task.decode(errors="replace"),
            error.decode(errors="replace"),
            text,
            traceback,
            worker,
            tries if isinstance(tries, int) else 0,
            started if isinstance(started, (int, float)) and 0 <= started < _LATEST else None,
            returned if returned in RETURNED else "",
        )

    @property
    def failures(self) -> int:
        """How many deliveries of it had failed before."""
        found = _HEAD.fullmatch(self.head)
        return 0 if found is None else int(found[2])


def id_in(name: bytes) -> bytes:
    """The id in the name of a failed task."""
    return name.partition(b"\x1f")[0]


def kind_of(head: bytes) -> Kind | None:
    """The kind in a head, or in the beginning of one; ``None`` if that does not have all of it."""
    found = _HEAD.match(head)
    if found is None or (len(head) == BEGINNING and len(found[6]) < _LONGEST_BEGINNING):
        return None
    lost = _HAS_RETURNED.match(found[6])
    return _kind(found[3], found[4], b"" if lost is None else lost[1])


def _kind(task: bytes, error: bytes, lost: bytes = b"") -> Kind:
    returned = lost.decode(errors="replace")
    is_known = returned in RETURNED
    return Kind(task.decode(errors="replace"), error.decode(errors="replace"), returned if is_known else "")


@dataclass(frozen=True, slots=True)
class Group:
    """Failed tasks of one :class:`Kind`.

    Attributes:
        count: how many are kept.
        first_ms, last_ms: when the first and the last one failed, ms since the epoch. The first one may not
            be there any more.
    """

    task: str
    error: str
    returned: str
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
        since the epoch. ``None`` is no limit. Those that are known to have returned are among them."""
        return self._counts([self._store.keys(queue).failed for queue in queues], from_ms, before_ms)

    def returned(
        self, queues: Sequence[str], from_ms: float | None = None, before_ms: float | None = None
    ) -> list[int]:
        """The same of those alone that are known to have returned."""
        keys = [self._store.keys(queue).failed_returned for queue in queues]
        return self._counts(keys, from_ms, before_ms)

    def _counts(self, keys: Iterable[str], from_ms: float | None, before_ms: float | None) -> list[int]:
        low: Argument = "-inf" if from_ms is None else from_ms
        high = "+inf" if before_ms is None else f"({before_ms}"
        return answers(self._store.server, (("ZCOUNT", key, low, high) for key in keys))

    def iter(self, queue: str, part: Part, returned: bool = False) -> Iterator[FailedTask]:
        """The failed tasks of *queue*, read page by page, in the order in which they failed.

        Arguments:
            returned: read only what is listed as having returned. An older release may have left names there
                of others.
        """
        keys = self._keys(queue)
        if returned:
            keys = (self._store.keys(queue).failed_returned, *keys[1:])
        for rows in read_pages(self._store.server, keys, part):
            yield from self._with_heads(queue, rows)

    def heads(self, queue: str, part: Part, returned: bool = False) -> Iterator[list[Row]]:
        """The same, page by page, with the beginnings of their heads in place of messages. This reads much
        less."""
        keys = self._store.keys(queue)
        names = keys.failed_returned if returned else keys.failed
        return read_pages(self._store.server, (names, keys.failed_heads, ""), part, BEGINNING)

    def named(self, queue: str, names: Sequence[bytes]) -> dict[bytes, FailedTask]:
        """The failed tasks of *queue* with these names, as far as they are there, by their names."""
        found = find_all(self._store.server, self._keys, [queue], names)
        # A name may be the id of others, too.
        rows = [row for _, name, row in found if row.name == name]
        return {task.name: task for task in self._with_heads(queue, rows)}

    def groups(self, queue: str) -> list[Group]:
        """The failed tasks of *queue* by their kinds."""
        key, cursor = self._store.keys(queue).failed_groups, ""
        found: dict[Kind, Group] = {}
        while cursor != "0":
            scan: Command = ("HSCAN", key, cursor or "0", "COUNT", GROUPS_PER_CALL)
            [(position, fields)] = answers(self._store.server, [scan])
            cursor = position.decode()
            for name, line in zip(fields[::2], fields[1::2], strict=True):
                words, numbers = name.split(b" "), _GROUP.fullmatch(line)
                # Another program may have written anything.
                if len(words) not in _WORDS or numbers is None:
                    continue
                kind = _kind(*words)
                if bool(kind.returned) == (len(words) > _WORDS[0]):
                    found[kind] = Group(*kind, *map(int, numbers.groups()))
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
        """Do what *how* says, :data:`~kombu_redisdelay.broker.paging.REQUEUE` or ``REMOVE``, with *tasks* of
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

    def clear(self, queue: str) -> int | None:
        """Remove all failed tasks of *queue* at once. Returns how many there were; ``None`` if some are known
        to have returned: then nothing was done."""
        count: int | None = CLEAR_FAILED(self._store.server, [self._store.keys(queue).failed], ())
        return count

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
    return len(task.head) + size_to_move(task.stored)


def _trimming(keep: KeepFailed, lost_from: bytes) -> list[Argument]:
    return TRIM_FAILED.arguments(
        count=keep.count,
        age_ms=keep.age_ms,
        bytes=keep.bytes,
        at_most=TRIMMED_PER_CALL,
        told_from=TOLD_FROM,
        told_every_s=TOLD_EVERY,
        lost_from=lost_from,
    )


def trim_failed(store: Store, keep: KeepFailed | None, queues: Sequence[str]) -> RoundTrips[None]:
    """Drop the failed tasks of *queues* that are too old, or too many, and what is left of them where
    Redis has evicted a part, or an older release has taken some out. If this process keeps none, it does
    nothing: others may keep some."""
    #: Queue -> where it goes on to look for those that are gone.
    left = dict.fromkeys(queues if keep else (), b"0")
    if keep and left:
        counts = answers(store.server, (("EXISTS", *store.keys(queue).all_failed) for queue in left))
        left = {queue: b"0" for queue, exists in zip(left, counts, strict=True) if exists}
    while keep and left:
        yield
        calls = [
            (TRIM_FAILED, (store.keys(queue).failed,), _trimming(keep, cursor))
            for queue, cursor in left.items()
        ]
        done = dict(zip(left, run_each(store.server, calls), strict=True))
        for queue, (_, dropped, _) in done.items():
            report_failed_dropped(queue, keep, dropped)
        left = {
            queue: cursor for queue, (count, _, cursor) in done.items() if cursor or count == TRIMMED_PER_CALL
        }


def _trimming_all(upkeep: Upkeep) -> Doing:
    return lambda turn: trim_failed(upkeep.store, upkeep.options.kept_failed, turn.queues)


# Failed tasks are kept for days.
CHORES = (Chore("drop failed tasks that are too old, or too many", _trimming_all, rounds=6),)
