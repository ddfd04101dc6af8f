"""Reads the messages of queues: one reader for each state."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from hashlib import sha1
from itertools import islice
from math import inf, isfinite
from operator import attrgetter
from typing import Any, Protocol

from kombu_redisdelay.broker import members
from kombu_redisdelay.broker.archive import Kind
from kombu_redisdelay.broker.processes import has_ended, host_and_pid, process_of, worker_of
from kombu_redisdelay.broker.ready import Ready, ReadyLists
from kombu_redisdelay.broker.schedule import Schedule, ScheduleCursor, Scheduled, upcoming
from kombu_redisdelay.broker.store import Store
from kombu_redisdelay.broker.unacked import Unacked, UnackedHashes, holder_of
from kombu_redisdelay.broker.unique import written
from kombu_redisdelay.operations.content import Content
from kombu_redisdelay.operations.message import printed_worker
from kombu_redisdelay.operations.queue_reasons import BLOCKED, UNKNOWN
from kombu_redisdelay.operations.typed import fits

#: From which moment on and before which one, in ms since the epoch; ``None`` is no limit.
Span = tuple[float | None, float | None]

#: All of the time.
ALWAYS: Span = (None, None)

#: Where reading goes on: values that JSON can carry. The first one is the name of the queue or partition.
Cursor = Sequence[Any]

#: Why a worker does not live any more.
_LOST = _PROCESS_ENDED, _LEASE_ENDED = "process gone", "lease ended"

#: Redis counts no further than this.
_MOST_PASSED = 2**53


def is_worker(pattern: str, worker: str | None, host: str | None, pid: int | None, lost: str) -> bool:
    """Whether *pattern*, which was checked, fits the name of a worker, or what a list prints of it."""
    on_host = printed_worker(None, host, pid)
    # The command line prints the name or the host, the page both.
    printed = printed_worker(worker, host, pid), printed_worker(worker, host, pid, lost), on_host
    return any(fits(text, pattern) for text in (worker or "", *printed, f"{worker} {on_host}"))


@dataclass(frozen=True)
class Entry:
    """A message as a reader finds it.

    Attributes:
        name: its queue or partition.
        raw: the message as the broker has it.
        unnamed: its id if it does not name one itself.
        cursor: reading goes on after it from there.
        moment_ms: its moment, in ms since the epoch; ``None`` if that is unknown.
        is_sure: whether this very entry was certainly not read before.
        matches: whether it matches what the filters of the look ask for; ``None`` if its reader has not
            told.
        stands_for: how many messages it stands for, the last of which it is. None of these match.
        of_state: makes of its content what is known of it in its state, as fields of
            :class:`~kombu_redisdelay.operations.message.MessageInfo`.
    """

    name: str
    payload: bytes
    raw: Any
    unnamed: str
    cursor: Cursor
    moment_ms: float | None
    is_sure: bool = True
    matches: bool | None = None
    stands_for: int = 1
    of_state: Callable[[Content], Mapping[str, Any]] = lambda content: {}

    @cached_property
    def content(self) -> Content:
        """What it says of itself."""
        return Content.of(self.payload, otherwise=self.unnamed)

    @property
    def tasks(self) -> Sequence[str]:
        """The names by which its task is found; empty if it is not a task."""
        return () if self.content.task is None else (self.content.task,)

    @property
    def known(self) -> Mapping[str, Any]:
        """What is known of it in its state."""
        return self.of_state(self.content)


@dataclass(frozen=True, slots=True)
class Look:
    """What a reader is asked for.

    Attributes:
        names: those of the queues or partitions.
        span: other messages may be left out.
        start: the cursor of the message to go on after. Its queue or partition is one of *names*.
        newest_first: whether messages come in the other order, for a state that has two.
        ids: messages with none of these ids may be left out; ``None`` for all.
        texts: messages that contain none of these texts may be left out; empty for all.
        is_key: messages with a key of fair queues for which it is false may be left out; ``None`` for all.
        worker: messages that no worker has whose name fits this pattern may be left out; ``None`` for all.
        of_failed: tells by the kind of a failed task whether it matches the filters; ``None`` if that does
            not tell. Without it, failed tasks are read whole.
        only_returned: failed tasks that are not known to have returned may be left out.
    """

    names: Sequence[str]
    span: Span = ALWAYS
    start: Cursor | None = None
    newest_first: bool = False
    ids: Sequence[str] | None = None
    texts: Sequence[str] = ()
    is_key: Callable[[str], bool] | None = None
    worker: str | None = None
    of_failed: Callable[[Kind], bool | None] | None = None
    only_returned: bool = False


class Reader(Protocol):
    """Reads what is in one state."""

    def count(self, store: Store, names: Sequence[str], span: Span) -> int:
        """How many messages these queues or partitions have. Reads none. *span* is for a state that counts
        spans."""

    def read(self, store: Store, look: Look) -> Iterator[Entry]:
        """The messages, in portions."""

    def cursor(self, values: Sequence[Any]) -> Cursor:
        """The cursor with these *values*, which may come from anywhere.

        Raises:
            TypeError, ValueError: there is no such cursor.
        """


class ScheduledReader:
    """Reads scheduled messages by due time, all queues together."""

    def count(self, store: Store, names: Sequence[str], span: Span) -> int:
        return Schedule(store).count(names, *span)

    def read(self, store: Store, look: Look) -> Iterator[Entry]:
        if look.ids is not None:
            by_id = (message for _, message in Schedule(store).find_all(look.names, look.ids))
            return (_of_scheduled(store, found) for found in sorted(by_id, key=attrgetter("due_ms")))
        after = None
        if look.start is not None:
            name, due_ms, member = look.start
            after = ScheduleCursor(inf if due_ms is None else due_ms, name, member.encode("latin-1"))
        each = upcoming(store, look.names, *look.span, after, last_first=look.newest_first, texts=look.texts)
        return (_of_scheduled(store, found) for found in each)

    def cursor(self, values: Sequence[Any]) -> Cursor:
        name, due_ms, member = values
        str(member).encode("latin-1")
        if due_ms is None:
            # JSON has no infinite number.
            return str(name), None, str(member)
        if not isfinite(due_ms):
            raise ValueError(due_ms)
        return str(name), float(due_ms), str(member)


def _of_scheduled(store: Store, found: Scheduled) -> Entry:
    due_ms = None if found.is_blocked else found.due_ms
    cursor = found.queue, due_ms, found.member.decode("latin-1")
    if found.left_out:
        left_out = found.left_out
        return Entry(found.queue, b"", found, "", cursor, due_ms, matches=False, stands_for=left_out)
    return Entry(
        found.queue,
        found.payload,
        found,
        unnamed=found.member.decode(errors="replace"),
        cursor=cursor,
        moment_ms=due_ms,
        of_state=lambda content: _why_scheduled(store, found, content),
    )


def _why_scheduled(store: Store, found: Scheduled, content: Content) -> Mapping[str, Any]:
    if found.is_blocked and content.unique is not None:
        holder = holder_of(store, found.queue, written(content.unique))
        return {"reason": f"{BLOCKED} by {holder}" if holder and holder != content.id else BLOCKED}
    if content.unknown_ms is None:
        return {}
    return {"reason": UNKNOWN}


class QueueByQueue:
    """The other states: the queues one after the other. A cursor is the queue, and how far it was read."""

    def counts(self, store: Store, names: Sequence[str]) -> Sequence[int]:
        """How many messages each of the queues has."""
        raise NotImplementedError

    def of_queue(self, store: Store, name: str, passed: int | None, look: Look) -> Iterator[Entry]:
        """The messages of one queue.

        Arguments:
            passed: how far it was read, by the cursor of a message; ``None`` if it was not.
        """
        raise NotImplementedError

    def count(self, store: Store, names: Sequence[str], span: Span) -> int:
        return sum(self.counts(store, names))

    def read(self, store: Store, look: Look) -> Iterator[Entry]:
        names, passed = look.names, None
        if look.start is not None:
            name, passed = look.start
            names = names[names.index(name) :]
        # To go through one of thousands of queues costs several round trips, and most have nothing.
        for name, count in zip(names, self.counts(store, names), strict=True):
            if count:
                yield from self.of_queue(store, name, passed, look)
            passed = None

    def cursor(self, values: Sequence[Any]) -> Cursor:
        name, passed = values
        if not isinstance(passed, int) or not 0 <= passed <= _MOST_PASSED:
            raise ValueError(passed)
        return str(name), passed


def _in_queue(
    found: Ready | Unacked,
    number: int,
    moment_ms: float | None,
    of_state: Callable[[Content], Mapping[str, Any]],
    *,
    is_sure: bool = True,
) -> Entry:
    """
    Arguments:
        number: how far its queue was read, with it.
    """
    return Entry(
        found.queue,
        found.payload,
        found,
        unnamed=sha1(found.payload, usedforsecurity=False).hexdigest(),
        cursor=(found.queue, number),
        moment_ms=moment_ms,
        is_sure=is_sure,
        of_state=of_state,
    )


class ReadyReader(QueueByQueue):
    """Reads ready messages, in the order in which workers take them."""

    def counts(self, store: Store, names: Sequence[str]) -> Sequence[int]:
        return ReadyLists(store).counts(names)

    def of_queue(self, store: Store, name: str, passed: int | None, look: Look) -> Iterator[Entry]:
        skip = passed or 0
        lists = ReadyLists(store)
        for number, found in enumerate(lists.iter(name, look.texts, skip, look.is_key), skip + 1):
            yield _of_ready(found, number)


def _of_ready(found: Ready, number: int) -> Entry:
    return _in_queue(
        found,
        number,
        members.due_ms(found.payload),
        lambda content: {"position": None if found.is_at_limit else found.position},
        is_sure=found.is_sure,
    )


class UnackedReader(QueueByQueue):
    """Reads unacked messages, worker by worker."""

    def counts(self, store: Store, names: Sequence[str]) -> Sequence[int]:
        return UnackedHashes(store).counts(names)

    def of_queue(self, store: Store, name: str, passed: int | None, look: Look) -> Iterator[Entry]:
        # One process may hold thousands of messages.
        is_over = cache(has_ended)
        skip = passed or 0

        def is_wanted(consumer: str) -> bool:
            if look.worker is None:
                return True
            its = worker_of(consumer), *host_and_pid(consumer)
            return any(is_worker(look.worker, *its, lost) for lost in ("", *_LOST))

        every = UnackedHashes(store).iter(name, is_wanted)
        for number, found in enumerate(islice(every, skip, None), skip + 1):
            yield _of_unacked(found, number, is_over)


def _of_unacked(found: Unacked, number: int, is_over: Callable[[str], bool]) -> Entry:
    def of_state(content: Content) -> Mapping[str, Any]:
        host, pid = host_and_pid(found.consumer)
        lost = ""
        if is_over(process_of(found.consumer)):
            lost = _PROCESS_ENDED
        elif found.lease_has_ended:
            lost = _LEASE_ENDED
        return {"worker": worker_of(found.consumer), "host": host, "pid": pid, "lost": lost}

    return _in_queue(found, number, found.since_ms, of_state)
