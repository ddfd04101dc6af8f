"""How messages change: when a scheduled one is due, and that a failed task was never tried."""

from __future__ import annotations

import json
from base64 import b64decode
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from functools import partial
from itertools import count
from math import inf, nextafter
from typing import Any

from kombu_redisdelay.broker.archive import Archived
from kombu_redisdelay.broker.message import (
    DELIVERY_COUNT_HEADER,
    ETA_HEADER,
    LATEST_MS,
    REDELIVERED_HEADER,
    REQUEUED_HEADER,
    from_ms,
)
from kombu_redisdelay.broker.schedule import Schedule, Scheduled, Target
from kombu_redisdelay.broker.store import Store
from kombu_redisdelay.broker.unacked import having_unique_keys
from kombu_redisdelay.operations.access import moment_ms
from kombu_redisdelay.operations.content import with_due, without_due
from kombu_redisdelay.operations.readers import Entry, Look, ScheduledReader, Span

#: Called with a message that stays as it is because another one holds its unique key, and with the id of that
#: one if it is known; or with a failed task that was kept without its message. It may be called twice with a
#: message.
Stays = Callable[[Scheduled | Archived, str | None], object]

#: The due time of what is to be delivered now.
NOW_MS = 0.0


@dataclass(frozen=True, slots=True)
class Move:
    """How the due times of messages change.

    Attributes:
        due_ms: the new one, in ms since the epoch; if they are spread, that of the first message; ``None`` if
            they are shifted.
        by_ms: by how much each is shifted.
        over_ms: over how long they are spread, in the order in which they are due; 0 if they are not.
        now_ms: the present time.
    """

    due_ms: float | None
    by_ms: float = 0.0
    over_ms: float = 0.0
    now_ms: float = 0.0

    @property
    def due(self) -> datetime | None:
        """When all are due; ``None`` if each has a time of its own."""
        return None if self.due_ms is None or self.over_ms else from_ms(self.due_ms)

    @property
    def may_be_now(self) -> bool:
        """Whether it may make messages ready at once."""
        return self.by_ms < 0 if self.due_ms is None else self.due_ms <= self.now_ms

    def target(self, how_many: Callable[[], int]) -> Target:
        """Makes the due time of one message after the other.

        Arguments:
            how_many: counts the messages among which the time is divided, if they are spread.
        """
        if self.due_ms is None:
            return lambda message: self._to(message, min(message.due_ms + self.by_ms, LATEST_MS))
        due_ms = self.due_ms
        if not self.over_ms:
            return lambda message: self._to(message, due_ms)
        index, last = count(), max(0, how_many() - 1)
        apart_ms = self.over_ms / (last + 1)
        return lambda message: self._to(message, due_ms + apart_ms * min(next(index), last))

    def _to(self, message: Scheduled, due_ms: float) -> tuple[bytes, float]:
        if due_ms <= NOW_MS:
            return message.rewritten(without_due(message.payload)), NOW_MS
        return message.rewritten(with_due(message.payload, due_ms, self.now_ms)), due_ms

    def spans(self, span: Span) -> Iterator[Span]:
        """Parts of a *span* of due times. A message that has got the new due time is in no later part."""
        if self.due is None:
            yield span
        else:
            yield from apart(span, self.due_ms or NOW_MS)


def moving_to(
    store: Store, countdown: Any = None, eta: object = None, by: object = None, over: object = None
) -> Move:
    """See :meth:`kombu_redisdelay.Messages.reschedule`.

    Raises:
        ValueError: as there.
    """
    now_ms = store.now_ms()
    over_ms = 0.0 if over is None else _ms("over", over)
    if over is not None and over_ms <= 0:
        raise ValueError(f"over must be longer than 0, not {over!r}")
    if by is not None:
        if not (countdown is eta is over is None):
            raise ValueError("by goes without countdown, eta and over")
        return Move(None, _ms("by", by), now_ms=now_ms)
    if over is not None and countdown is eta is None:
        countdown = 0
    if isinstance(countdown, timedelta):
        countdown = _ms("countdown", countdown) / 1000
    due_ms = new_due_ms(now_ms, countdown, eta)
    if due_ms + over_ms > LATEST_MS:
        raise ValueError("over must end before the year 10000")
    return Move(due_ms, over_ms=over_ms, now_ms=now_ms)


def _ms(name: str, value: Any) -> float:
    """The argument *name*, a length of time, in ms.

    Raises:
        ValueError: it is none.
    """
    if isinstance(value, timedelta):
        value = value.total_seconds()
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    # NaN is in no range.
    if not is_number or not abs(value) <= LATEST_MS / 1000:
        raise ValueError(
            f"{name} must be a number of seconds, a timedelta or a text like '2h', not {value!r}"
        )
    return float(value) * 1000


def apart(span: Span, due_ms: float) -> Iterator[Span]:
    """Parts of a *span*. A message of one part that was moved to *due_ms* is in no later part."""
    low = float("-inf") if span[0] is None else span[0]
    high = float("inf") if span[1] is None else span[1]
    beyond_ms = nextafter(due_ms, float("inf"))
    for start, end in ((due_ms, beyond_ms), (low, due_ms), (beyond_ms, high)):
        start, end = max(start, low), min(end, high)
        if start < end:
            # Without an end, it includes what has no due time.
            yield start, None if end == float("inf") else end


def new_due_ms(now_ms: float, countdown: Any, eta: object) -> float:
    due_ms = moment_ms("eta", eta)
    if (countdown is None) == (due_ms is None):
        raise ValueError("give one of countdown, eta, over and by")
    if due_ms is not None:
        if due_ms < now_ms:
            raise ValueError(f"eta must be in the future, not {eta}")
        return due_ms
    longest = (LATEST_MS - now_ms) / 1000
    # NaN is in no range.
    is_number = isinstance(countdown, (int, float)) and not isinstance(countdown, bool)
    if not is_number or not 0 <= countdown <= longest:
        raise ValueError(
            "countdown must be a number of seconds, not negative and not beyond the year 9999, "
            f"not {countdown!r}"
        )
    return now_ms + float(countdown) * 1000


def with_raw(do: Callable[[Iterator[Any]], Iterator[Any]], entries: Iterable[Entry]) -> Iterator[Entry]:
    """Have *do* do it to messages as the broker has them. It keeps their order."""
    waiting: deque[Entry] = deque()

    def raw() -> Iterator[Any]:
        for entry in entries:
            waiting.append(entry)
            yield entry.raw

    for done in do(raw()):
        while (entry := waiting.popleft()).raw is not done:
            pass
        yield entry


def reschedule(
    store: Store,
    name: str,
    entries: Iterable[Entry],
    target: Target,
    stays: Stays,
    *,
    is_dry_run: bool = False,
) -> Iterator[Entry]:
    def stay(message: Scheduled) -> None:
        stays(message, None)

    def free() -> Iterator[Entry]:
        # What waits for its unique key is due when that is free, and at no other time.
        for entry in entries:
            if entry.raw.is_blocked:
                stay(entry.raw)
            else:
                yield entry

    move = partial(Schedule(store).reschedule_all, name, target=target, stays=stay, is_dry_run=is_dry_run)
    return with_raw(move, free())


def reschedule_ids(store: Store, name: str, ids: Sequence[str], move: Move, stays: Stays) -> list[int]:
    schedule = Schedule(store)
    by_id = sorted(schedule.find_all([name], ids), key=lambda pair: pair[1].due_ms)
    found = [pair for pair in by_id if not pair[1].is_blocked]
    waiting = [message for _, message in by_id[len(found) :]]
    messages, target = [message for _, message in found], move.target(lambda: len(found))
    moved = {each.member for each in schedule.reschedule_all(name, messages, target, stays=waiting.append)}
    for message in waiting:
        stays(message, None)
    counts = dict.fromkeys(ids, 0)
    for id, message in found:
        counts[id] += message.member in moved or _move_again(schedule, message, target)
    return list(counts.values())


def _move_again(schedule: Schedule, message: Scheduled, target: Target) -> bool:
    """Move a message that has been delivered, or that another program has changed meanwhile. One that has not
    changed would have to wait for its unique key."""
    again = schedule.reread(message)
    while again is not None and not again.is_blocked and again.stored != message.stored:
        if any(schedule.reschedule_all(again.queue, [again], target)):
            return True
        message, again = again, schedule.reread(again)
    return False


def foresee_rescheduled(
    store: Store, look: Look, matches: Callable[[Entry], bool], stays: Stays, move: Move
) -> None:
    # Those that wait for their keys have no due time, and are the last ones.
    for entry in filter(matches, ScheduledReader().read(store, replace(look, span=(inf, None)))):
        if entry.raw.is_blocked:
            stays(entry.raw, None)
    if not move.may_be_now:
        return
    target, now_ms = move.target(lambda: 1), store.now_ms()
    for name in having_unique_keys(store, look.names):
        found = ScheduledReader().read(store, replace(look, names=[name]))
        keyed = (
            entry
            for entry in filter(matches, found)
            if not entry.raw.is_blocked and entry.content.unique and target(entry.raw)[1] <= now_ms
        )
        for _ in reschedule(store, name, keyed, lambda each: (each.stored, 0), stays, is_dry_run=True):
            pass


#: Where the embedded part of a body is, and how many parts a body has.
_EMBEDDED, _PARTS = 2, 3


def renewed(payload: bytes) -> bytes:
    """*payload* as it is requeued: it counts no retries, is due at once, and does not expire. A part of a
    chord leaves its group: the chord has failed, or would count it twice. A header says when that was, by the
    clock of this process.

    All else stays: id, root, parent, priority, time limits, keys, callbacks, and the rest of a chain.
    """
    # The standard library's JSON: kombu's would turn some values into objects.
    try:
        message = json.loads(payload)
        headers = message["headers"]
        for name in (DELIVERY_COUNT_HEADER, REDELIVERED_HEADER):
            headers.pop(name, None)
        if "task" in headers:
            headers.update(dict.fromkeys(headers.keys() & {ETA_HEADER, "expires"}), retries=0)
            if headers.get("group") and _may_be_of_a_chord(message):
                headers.update(group=None, group_index=None)
        headers[REQUEUED_HEADER] = datetime.now(timezone.utc).isoformat()
        return json.dumps(message).encode()
    except Exception:
        # Foreign bytes may make the decoder raise any exception. There is nothing to renew.
        return payload


def may_be_in_chord(payload: bytes) -> bool:
    """Whether a task is a part of a chord; or it is in a group, and its body cannot be read."""
    try:
        message = json.loads(payload)
        headers = message["headers"]
        return "task" in headers and bool(headers.get("group")) and _may_be_of_a_chord(message)
    except Exception:
        # As above.
        return False


def _may_be_of_a_chord(message: dict[str, Any]) -> bool:
    """Whether a task is a part of a chord, or its body cannot be read."""
    try:
        body = message["body"]
        if message["properties"].get("body_encoding") == "base64":
            body = b64decode(body)
        parts = json.loads(body)
        embedded = parts[_EMBEDDED]
        return len(parts) != _PARTS or not isinstance(embedded, dict) or bool(embedded.get("chord"))
    except Exception:
        # As above; or it is pickled, and nobody looks into that.
        return True
