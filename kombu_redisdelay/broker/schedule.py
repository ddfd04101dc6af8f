"""The scheduled messages: an operator looks at them, cancels them, moves them; a consumer takes some back."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha1
from heapq import heapify, heappop, heappush
from itertools import chain, compress
from math import inf, isinf, nextafter
from typing import Any

from kombu_redisdelay import metrics
from kombu_redisdelay.broker.failure import report_dropped
from kombu_redisdelay.broker.members import size_to_move
from kombu_redisdelay.broker.message import split_stored, task_and_id, which
from kombu_redisdelay.broker.options import Options
from kombu_redisdelay.broker.paging import Part, find_all, id_bytes, read_pages
from kombu_redisdelay.broker.portions import (
    BYTES_PER_CALL,
    MESSAGES_PER_CALL,
    Chore,
    Doing,
    RoundTrips,
    Upkeep,
    portions,
)
from kombu_redisdelay.broker.server.scripts import (
    CLAIM,
    CLEAR,
    MEND_SCHEDULE,
    REMOVE,
    RESCHEDULE,
    run_each,
)
from kombu_redisdelay.broker.server.wire import Argument, Command, answers, checked, first_due_ms, first_score
from kombu_redisdelay.broker.store import Store

logger = logging.getLogger(__name__)

#: Messages of a schedule that one script checks, so that it never keeps Redis from its other clients for
#: long.
MESSAGES_PER_SCRIPT = 100

#: To replace a message takes Redis longer than to read it.
MOVES_PER_CALL = 100

#: Seconds for which no other process withdraws the same from a queue.
CLAIM_FOR = 10.0


@dataclass(frozen=True)
class Scheduled:
    """A scheduled message.

    Attributes:
        member: the name that it has in the schedule: its id, unless another message had that before.
        due_ms: ms since the epoch, with a fraction; infinite while it waits for its key.
        stored: the message as it is in Redis, with its priority step.
        left_out: see :class:`~kombu_redisdelay.broker.paging.Row`.
    """

    queue: str
    member: bytes
    due_ms: float
    stored: bytes
    left_out: int = 0

    @property
    def is_blocked(self) -> bool:
        """Whether it waits for its key (lua/include/unique.lua)."""
        return isinf(self.due_ms)

    @cached_property
    def payload(self) -> bytes:
        return split_stored(self.stored)[1]

    def rewritten(self, payload: bytes) -> bytes:
        """How *payload* is stored in place of this message, with its priority step."""
        return self.stored[: len(self.stored) - len(self.payload)] + payload


#: What lua/reschedule.lua says of a message that has to wait for its key.
_BLOCKED = 2

#: Makes of a message what is stored in place of it, and its due time, in ms since the epoch.
Target = Callable[[Scheduled], tuple[bytes, float]]


class Schedule:
    """The scheduled messages in *store*, queue by queue."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def count(self, queues: Sequence[str], from_ms: float | None, before_ms: float | None) -> int:
        """How many messages of *queues* are due from *from_ms* on and before *before_ms*, in ms since the
        epoch. ``None`` is no limit."""
        low = "-inf" if from_ms is None else from_ms
        high = "+inf" if before_ms is None else f"({before_ms}"
        if from_ms is not None and before_ms is None:
            # What waits for its key has no due time.
            high = "(inf"
        return sum(self._for_each(queues, "ZCOUNT", low, high))

    def count_blocked(self, queues: Sequence[str]) -> int:
        """How many messages of *queues* wait for their keys."""
        return sum(self._for_each(queues, "ZCOUNT", "+inf", "+inf"))

    def next_due_ms(self, queues: Sequence[str]) -> float | None:
        """When the first message of all *queues* is due, ms since the epoch; ``None`` if there is none."""
        first = map(first_due_ms, self._for_each(queues, "ZRANGE", 0, 0, "WITHSCORES"))
        return min((due_ms for due_ms in first if due_ms is not None), default=None)

    def iter(
        self,
        queue: str,
        from_ms: float | None,
        before_ms: float | None,
        after: bytes = b"",
        texts: Sequence[str] = (),
    ) -> Iterator[Scheduled]:
        """The messages that are due in that time (see :meth:`count`), in due order, read page by page.

        Arguments:
            after: of those that are due at *from_ms*, only those whose names come after this one.
            texts: only those that contain one of these; in place of others, :attr:`Scheduled.left_out`.
        """
        return self._read(queue, Part(from_ms, before_ms, after), texts)

    def iter_back(
        self,
        queue: str,
        from_ms: float | None,
        before_ms: float | None,
        until: bytes = b"",
        texts: Sequence[str] = (),
    ) -> Iterator[Scheduled]:
        """The same, the last message first.

        Arguments:
            until: of those that are due at *before_ms*, also those whose names come before this one.
        """
        return self._read(queue, Part(from_ms, before_ms, until=until, from_last=True), texts)

    def _read(self, queue: str, part: Part, texts: Sequence[str]) -> Iterator[Scheduled]:
        for page in read_pages(self._store.server, self._store.keys(queue).scheduling, part, texts=texts):
            for row in page:
                yield Scheduled(queue, *row)

    def find(self, queue: str, id: str) -> Iterator[Scheduled]:
        """The messages of *queue* with that id."""
        return (message for _, message in self.find_all([queue], [id]))

    def find_all(self, queues: Sequence[str], ids: Sequence[str]) -> Iterator[tuple[str, Scheduled]]:
        """The messages of *queues* with these ids, each with its id, in the order of the queues and ids."""
        wanted = {id_bytes(id): id for id in ids}
        found = find_all(
            self._store.server, lambda queue: self._store.keys(queue).scheduling, queues, [*wanted]
        )
        return ((wanted[id], Scheduled(queue, *row)) for queue, id, row in found)

    def cancel(self, queue: str, ids: Sequence[str]) -> list[int]:
        """Remove the messages of *queue* with these ids. Returns for each id how many there were."""
        wanted = [(id_bytes(id), b"") for id in ids]
        removed = [0] * len(ids)
        for begin, counts, _ in _remove(self._store, queue, wanted):
            for index, count in enumerate(counts, begin):
                removed[index] += count
        return removed

    def remove(self, queue: str, messages: Iterable[Scheduled]) -> Iterator[Scheduled]:
        """Remove *messages* of *queue*. Yields those that were still scheduled, unchanged."""
        for some in portions(messages, _size, MESSAGES_PER_CALL, BYTES_PER_CALL):
            wanted = [(message.member, message.stored) for message in some]
            for begin, counts, _ in _remove(self._store, queue, wanted):
                yield from compress(some[begin:], counts)

    def reschedule(self, message: Scheduled, payload: bytes, due_ms: float) -> bool:
        """Replace *message* by *payload*, which is due at *due_ms*, in ms since the epoch. If that time has
        come, it goes to the tail of its ready list. Returns ``False`` if *message* is not scheduled any more,
        or has changed."""
        return any(
            self.reschedule_all(message.queue, [message], lambda _: (message.rewritten(payload), due_ms))
        )

    def reschedule_all(
        self,
        queue: str,
        messages: Iterable[Scheduled],
        target: Target,
        *,
        with_keys: bool = True,
        stays: Callable[[Scheduled], object] = lambda message: None,
        is_dry_run: bool = False,
    ) -> Iterator[Scheduled]:
        """Do the same as :meth:`reschedule` for *messages* of *queue*, in the order given. Yields those that
        were still scheduled, unchanged.

        Arguments:
            target: called once for each message.
            stays: called with each message that was to become ready, and stays as it is, because another one
                holds its unique key.
            with_keys: whether what becomes due waits for its key.
            is_dry_run: whether nothing is done: *stays* is called, and what would be done is yielded.
        """
        keys = self._store.keys(queue)
        used = (*keys.scheduling, keys.ready, keys.wake)
        for some in portions(messages, _size, MOVES_PER_CALL, BYTES_PER_CALL):
            args: list[Argument] = [keys.separator, int(not with_keys), int(is_dry_run)]
            for message in some:
                args += (message.member, message.stored, *target(message))
            reply = RESCHEDULE(self._store.server, used, args)
            for message, done in zip(some, reply, strict=True):
                if done == 1:
                    yield message
                elif done == _BLOCKED:
                    stays(message)

    def reread(self, message: Scheduled) -> Scheduled | None:
        """The message that is scheduled under the name of *message* now; ``None`` if there is none."""
        keys = self._store.keys(message.queue)
        # The server runs both before it turns to other clients.
        stored, score = checked(
            self._store.server.call_all(
                ("HGET", keys.messages, message.member), ("ZSCORE", keys.schedule, message.member)
            )
        )
        if stored is None or score is None:
            return None
        return Scheduled(message.queue, message.member, float(score), stored)

    def clear(self, queue: str) -> int:
        """Remove all messages of *queue*. Returns how many there were."""
        keys = self._store.keys(queue)
        return int(CLEAR(self._store.server, keys.waiting, (0, 1, "waiting")))

    def _for_each(self, queues: Sequence[str], command: str, *args: str | float) -> list[Any]:
        """The replies to a command on the schedule of each queue."""
        commands = ((command, self._store.keys(queue).schedule, *args) for queue in queues)
        return answers(self._store.server, commands)


@dataclass(frozen=True, slots=True)
class ScheduleCursor:
    """Says where a message is among those of several queues. The attributes are those of
    :class:`~kombu_redisdelay.broker.schedule.Scheduled`."""

    due_ms: float
    queue: str
    member: bytes


def upcoming(
    store: Store,
    queues: Sequence[str],
    from_ms: float | None = None,
    before_ms: float | None = None,
    after: ScheduleCursor | None = None,
    *,
    last_first: bool = False,
    texts: Sequence[str] = (),
) -> Iterator[Scheduled]:
    """The scheduled messages of all *queues*, in due order. Of those that are due at the same time, those of
    the first queue come first. A queue is read only once its first message is the next one, so that the first
    messages of many queues are cheap.

    Arguments:
        from_ms, before_ms: see :meth:`Schedule.count <kombu_redisdelay.broker.schedule.Schedule.count>`.
        after: only messages that come after this cursor. Its queue is one of *queues*.
        last_first: whether they come in exactly the other order.
        texts: only messages that contain one of these; in place of others,
            :attr:`~kombu_redisdelay.broker.schedule.Scheduled.left_out`.
    """
    spans = _spans(queues, from_ms, before_ms, after, last_first)
    firsts: list[Command] = [
        ("ZRANGE", store.keys(queue).schedule, *span.bounds(last_first), "LIMIT", 0, 1, "WITHSCORES")
        for queue, span in zip(queues, spans, strict=True)
    ]
    heads = answers(store.server, firsts)
    sign = -1 if last_first else 1
    # The number tells apart what is due at the same time: messages cannot be compared.
    waiting: list[tuple[float, int, Scheduled | None, Iterator[Scheduled]]] = [
        (sign * due_ms, sign * number, None, span.read(store, queue, last_first, texts))
        for number, (queue, span, head) in enumerate(zip(queues, spans, heads, strict=True))
        if (due_ms := first_score(head)) is not None
    ]
    heapify(waiting)
    while waiting:
        _, number, message, others = heappop(waiting)
        if message is not None:
            yield message
        following = next(others, None)
        if following is not None:
            heappush(waiting, (sign * following.due_ms, number, following, others))


@dataclass(frozen=True, slots=True)
class _Span:
    """The part of a queue that is read.

    Attributes:
        from_ms, before_ms: as for :func:`upcoming`.
        name: where it begins among those that are due at its first time: those that come before this name are
            left out, and so is this one itself; if the last one comes first, those that come after it.
    """

    from_ms: float | None
    before_ms: float | None
    name: bytes = b""

    def bounds(self, last_first: bool) -> tuple[str, ...]:
        low = "-inf" if self.from_ms is None else str(self.from_ms)
        if self.before_ms is None:
            high = "+inf"
        else:
            # Some that are due at that very time may come.
            high = f"{'' if last_first and self.name else '('}{self.before_ms}"
        return (high, low, "BYSCORE", "REV") if last_first else (low, high, "BYSCORE")

    def read(self, store: Store, queue: str, last_first: bool, texts: Sequence[str]) -> Iterator[Scheduled]:
        read = Schedule(store).iter_back if last_first else Schedule(store).iter
        return read(queue, self.from_ms, self.before_ms, self.name, texts)


#: Nothing is due in it.
_NOTHING = _Span(inf, -inf)


class Withdrawal:
    """Removes scheduled messages from the queues in *store*. Each message is removed by one caller only,
    which gets its payload."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def by_ids(self, queue: str, ids: Sequence[str]) -> Iterator[bytes]:
        """Remove the messages of *queue* with these ids, and yield them. Most of the ids may be unknown."""
        wanted = [(id_bytes(id), b"") for id in ids]
        for _, _, removed in _remove(self._store, queue, wanted, are_told=True):
            yield from (split_stored(stored)[1] for stored in removed)

    def matching(self, queue: str, matches: Callable[[bytes], bool]) -> Iterator[bytes]:
        """Remove the messages of *queue* whose payload *matches*, and yield them. Reads all of them, page by
        page."""
        schedule = Schedule(self._store)
        found = (message for message in schedule.iter(queue, None, None) if matches(message.payload))
        for message in schedule.remove(queue, found):
            yield message.payload

    def claim(self, queue: str, what: str, who: str) -> bool:
        """Whether *who* is the only one to do *what* with *queue*, for :data:`CLAIM_FOR`."""
        digest = sha1(what.encode(), usedforsecurity=False).hexdigest()
        key = self._store.keys(queue).claim(digest)
        return bool(CLAIM(self._store.server, (key,), (who, round(CLAIM_FOR * 1000))))


def _remove(
    store: Store, queue: str, wanted: Sequence[tuple[bytes, bytes]], *, are_told: bool = False
) -> Iterator[tuple[int, Sequence[int], Sequence[bytes]]]:
    """Remove messages of *queue*, in portions.

    Arguments:
        wanted: for each an id, and nothing, for all messages with this id; or the name that a message has in
            the schedule, and how it is stored.
        are_told: whether the messages are returned.

    Returns:
        For each portion the index of the first that was wanted, and how many messages were removed for it and
        for each of the next ones; and the messages.
    """
    begin = 0
    while begin < len(wanted):
        args: list[Argument] = [MESSAGES_PER_CALL, BYTES_PER_CALL, int(are_told)]
        args += chain.from_iterable(wanted[begin : begin + MESSAGES_PER_CALL])
        counts, done, removed = REMOVE(store.server, store.keys(queue).scheduling, args)
        yield begin, counts, removed
        begin += done


def _size(message: Scheduled) -> int:
    return size_to_move(message.stored)


def _spans(
    queues: Sequence[str],
    from_ms: float | None,
    before_ms: float | None,
    after: ScheduleCursor | None,
    last_first: bool,
) -> list[_Span]:
    """The part of each queue that is read."""
    is_before_all = after is None or (
        before_ms is not None and before_ms <= after.due_ms
        if last_first
        else from_ms is not None and from_ms > after.due_ms
    )
    if after is None or is_before_all:
        return [_Span(from_ms, before_ms)] * len(queues)
    at = queues.index(after.queue)
    # Of those that are due at the same time, those of these queues come before the cursor.
    if isinf(after.due_ms):
        # What waits for its key: no time comes after it.
        earlier = [_Span(from_ms, None) if last_first else _NOTHING] * at
    else:
        past = nextafter(after.due_ms, inf)
        earlier = [_Span(from_ms, past) if last_first else _Span(past, before_ms)] * at
    if last_first:
        here, later = _Span(from_ms, after.due_ms, after.member), _Span(from_ms, after.due_ms)
    else:
        here, later = _Span(after.due_ms, before_ms, after.member), _Span(after.due_ms, before_ms)
    return [*earlier, here, *[later] * (len(queues) - at - 1)]


def mend_schedules(store: Store, options: Options, queues: Sequence[str]) -> RoundTrips[int]:
    """Give scheduled messages of *queues* that have lost their due time the one that they say themselves.
    Move those that say none to the dead letters. Returns how many both are."""
    cursors: dict[str, bytes] = dict.fromkeys(queues, b"0")
    dead: Counter[str] = Counter()
    scheduled: Counter[str] = Counter()
    briefs: dict[str, list[bytes]] = {}
    while True:
        calls = []
        for queue, cursor in cursors.items():
            k = store.keys(queue)
            keys = (k.schedule, k.messages, k.dead_index, k.duplicates)
            args = (cursor, MESSAGES_PER_SCRIPT, options.dead_letter_limit)
            calls.append((MEND_SCHEDULE, keys, args))
        replies = run_each(store.server, calls)
        for queue, (cursor, some_dead, dropped, some_briefs, again) in zip(
            list(cursors), replies, strict=True
        ):
            report_dropped(options, queue, dropped)
            dead[queue] += some_dead
            scheduled[queue] += again
            briefs.setdefault(queue, some_briefs)
            cursors[queue] = cursor
        cursors = {queue: cursor for queue, cursor in cursors.items() if cursor != b"0"}
        if not cursors:
            break
        yield
    for queue in queues:
        _report_mended(store, queue, dead[queue], briefs[queue], scheduled[queue])
    return sum(dead.values()) + sum(scheduled.values())


def _report_mended(store: Store, queue: str, dead: int, briefs: Sequence[bytes], scheduled: int) -> None:
    if scheduled:
        store.remember(queue)
        logger.warning(
            "%d scheduled message(s) of queue %r had lost their due time, and have the one that they say",
            scheduled,
            queue,
        )
    if dead:
        metrics.dead_lettered(queue, dead)
        store.remember(queue)
        logger.error(
            "%d scheduled message(s) of queue %r had no due time: dead letters now%s",
            dead,
            queue,
            which(map(task_and_id, briefs), dead),
        )


def _mending(upkeep: Upkeep) -> Doing:
    return lambda turn: mend_schedules(upkeep.store, upkeep.options, turn.queues)


# A damaged schedule is a rare accident.
CHORES = (Chore("schedule again what has lost its due time", _mending, rounds=6),)
