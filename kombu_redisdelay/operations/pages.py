"""Pages of messages, for whoever looks at a list of a million."""

from __future__ import annotations

import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Iterator, Sequence
from dataclasses import astuple, dataclass
from datetime import datetime
from itertools import islice
from math import isfinite

from kombu_redisdelay.broker.upcoming import Place
from kombu_redisdelay.operations.access import Selection, moment_ms
from kombu_redisdelay.operations.content import is_related, is_task
from kombu_redisdelay.operations.queued import (
    DEAD,
    HELD,
    READY,
    SCHEDULED,
    QueuedMessage,
    is_within,
    moment_of,
)
from kombu_redisdelay.operations.queues import Queues
from kombu_redisdelay.operations.reading import FoundMessage, Reading

#: Messages on a page.
PAGE = 50

#: Messages that are looked at for one page. A page of a rare task may have fewer than :data:`PAGE`, and the
#: next page goes on from there.
LOOKED_AT_MOST = 1000

#: Bytes of messages that are looked at for one page.
BYTES_LOOKED_AT_MOST = 32 * 1024 * 1024

#: Redis counts no further than this.
_MOST_SKIPPED = 2**53


@dataclass(frozen=True, slots=True)
class _Start:
    """Where a page begins. It is written into addresses.

    Attributes:
        queue: the queue or partition in which the page before it ended.
        due_ms, member: its last scheduled message.
        skip: how many messages of the queue come before, in the other states.
        left: how many dead letters of the queue are left, if the newest come first.
    """

    queue: str
    due_ms: float = 0
    member: str = ""
    skip: int = 0
    left: int | None = None


@dataclass(frozen=True, slots=True)
class Page:
    """A page.

    Attributes:
        messages: those of the page.
        next: where the next page begins; empty if this is the last one. It can be part of an address.
        searched: how many messages were looked at.
    """

    messages: Sequence[QueuedMessage]
    next: str
    searched: int


def read_page(
    queues: Queues,
    state: str,
    queue: Selection = None,
    *,
    task: str | None = None,
    related: str | None = None,
    after: datetime | None = None,
    before: datetime | None = None,
    last_first: bool = False,
    start: str = "",
    size: int = PAGE,
) -> Page:
    """Read a page of the messages in one state. Scheduled messages come in the order of their due times,
    others queue by queue, in the order of :meth:`Queues.iter
    <kombu_redisdelay.operations.queues.Queues.iter>`.

    A page of scheduled messages begins after the last one of the page before it, whatever has happened
    meanwhile. In the other states, it begins at a place. If messages before it were taken meanwhile, as many
    are on no page.

    Arguments:
        task, after, before: as for ``Queues.iter``.
        related: only tasks of which this is the id, or that of their group, their parent or their root.
        last_first: whether the scheduled messages come first that are due last, or in each queue the newest
            dead letters. Ready and held messages have one order.
        start: ``next`` of the page before; empty for the first page.
        size: how many messages at most.

    Raises:
        ValueError: *start* is not from a page of this list, or a time is not a ``datetime``.
    """
    span = moment_ms("after", after), moment_ms("before", before)
    begin = _decoded(start) if start else None
    # A queue that a page ended in may have no messages any more.
    ended_in = [] if begin is None or queue is not None else [begin.queue]
    names = sorted({*queues.names(queue), *ended_in})
    if begin is not None and begin.queue not in names:
        raise _not_of_this_list()
    reading = Reading(queues)
    if state == SCHEDULED:
        found = _scheduled(reading, names, span, begin, last_first)
    elif state == DEAD and last_first:
        found = _newest_dead(reading, names, begin)
    else:
        found = _placed(_READ[state](reading), names, begin)
    messages: list[QueuedMessage] = []
    searched = size_read = 0
    following = begin
    for message, its in found:
        if len(messages) == size or searched == LOOKED_AT_MOST or size_read >= BYTES_LOOKED_AT_MOST:
            return Page(messages, _encoded(following), searched)
        searched, size_read, following = searched + 1, size_read + message.size, its
        if (
            is_task(message.task, task)
            and is_related(message.id, message.headers, related)
            and is_within(moment_of(message), *span)
        ):
            messages.append(message)
    return Page(messages, "", searched)


#: State -> what reads the messages of a queue from a place on.
_READ: dict[str, Callable[[Reading], Callable[[str, int], Iterator[FoundMessage]]]] = {
    READY: lambda reading: lambda name, skip: reading.ready([name], skip=skip),
    HELD: lambda reading: lambda name, skip: islice(reading.held([name]), skip, None),
    DEAD: lambda reading: lambda name, skip: reading.dead([name], skip),
}


def _scheduled(
    reading: Reading,
    names: Sequence[str],
    span: tuple[float | None, float | None],
    begin: _Start | None,
    last_first: bool,
) -> Iterator[tuple[QueuedMessage, _Start]]:
    """Scheduled messages, each with where the page after it begins."""
    after = None if begin is None else Place(begin.due_ms, begin.queue, begin.member.encode("latin-1"))
    for found, place in reading.scheduled_with_places(names, *span, after, last_first=last_first):
        yield found.message, _Start(place.queue, place.due_ms, place.member.decode("latin-1"))


def _placed(
    read: Callable[[str, int], Iterator[FoundMessage]], names: Sequence[str], begin: _Start | None
) -> Iterator[tuple[QueuedMessage, _Start]]:
    """Messages in another state, queue by queue, each with where the page after it begins."""
    first, skip = (0, 0) if begin is None else (names.index(begin.queue), begin.skip)
    for name in names[first:]:
        for passed, found in enumerate(read(name, skip), skip + 1):
            yield found.message, _Start(name, skip=passed)
        skip = 0


def _newest_dead(
    reading: Reading, names: Sequence[str], begin: _Start | None
) -> Iterator[tuple[QueuedMessage, _Start]]:
    """Dead letters, queue by queue, in each the newest first."""
    first, left = (0, None) if begin is None else (names.index(begin.queue), begin.left)
    for name in names[first:]:
        for found, still_left in reading.newest_dead(name, left):
            yield found.message, _Start(name, left=still_left)
        left = None


def _encoded(start: _Start | None) -> str:
    assert start is not None, "a page without a message has no next one"
    return urlsafe_b64encode(json.dumps(astuple(start)).encode()).decode().rstrip("=")


def _decoded(text: str) -> _Start:
    try:
        padded = text + "=" * (-len(text) % 4)
        queue, due_ms, member, skip, left = json.loads(urlsafe_b64decode(padded.encode("ascii")))
        start = _Start(str(queue), float(due_ms), str(member), int(skip), None if left is None else int(left))
        start.member.encode("latin-1")
    except (TypeError, ValueError, OverflowError, RecursionError) as exc:
        raise _not_of_this_list() from exc
    counts = (start.skip, start.left or 0)
    if not isfinite(start.due_ms) or not all(0 <= count <= _MOST_SKIPPED for count in counts):
        raise _not_of_this_list()
    return start


def _not_of_this_list() -> ValueError:
    return ValueError("this page is not of this list")
