"""Pages of messages, for whoever looks at a list of a million."""

from __future__ import annotations

import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import islice

from kombu_redisdelay.broker.upcoming import Place
from kombu_redisdelay.operations.access import Selection, moment_ms
from kombu_redisdelay.operations.content import is_task
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
LOOKED_AT_MOST = 2000

#: Where a page begins: names of things -> their values. It is written into addresses.
_Start = dict[str, str | int | float]


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
    after: datetime | None = None,
    before: datetime | None = None,
    start: str = "",
    size: int = PAGE,
) -> Page:
    """Read a page of the messages in one state, in the order of :meth:`Queues.iter
    <kombu_redisdelay.operations.queues.Queues.iter>`.

    A page of scheduled messages begins after the last one of the page before it, whatever has happened
    meanwhile. In the other states, it begins at a place. If messages before it were taken meanwhile, as many
    are on no page.

    Arguments:
        task, after, before: as for ``Queues.iter``.
        start: ``next`` of the page before; empty for the first page.
        size: how many messages at most.

    Raises:
        ValueError: *start* is not from a page of this list, or a time is not a ``datetime``.
    """
    names = queues.names(queue)
    span = moment_ms("after", after), moment_ms("before", before)
    reading = Reading(queues)
    try:
        begin = _decoded(start) if start else {}
        found = (
            _scheduled(reading, names, span, begin)
            if state == SCHEDULED
            else _placed(_READ[state](reading), names, begin)
        )
    except (KeyError, TypeError, ValueError) as exc:
        raise ValueError("this page is not of this list") from exc
    messages: list[QueuedMessage] = []
    searched, following = 0, begin
    for message, its in found:
        if len(messages) == size or searched == LOOKED_AT_MOST:
            return Page(messages, _encoded(following), searched)
        searched, following = searched + 1, its
        if is_task(message.task, task) and is_within(moment_of(message), *span):
            messages.append(message)
    return Page(messages, "", searched)


#: State -> what reads the messages of a queue from a place on.
_READ: dict[str, Callable[[Reading], Callable[[str, int], Iterator[FoundMessage]]]] = {
    READY: lambda reading: lambda name, skip: reading.ready([name], skip=skip),
    HELD: lambda reading: lambda name, skip: islice(reading.held([name]), skip, None),
    DEAD: lambda reading: lambda name, skip: reading.dead([name], skip),
}


def _scheduled(
    reading: Reading, names: Sequence[str], span: tuple[float | None, float | None], begin: _Start
) -> Iterator[tuple[QueuedMessage, _Start]]:
    """Scheduled messages, each with where the page after it begins."""
    after = None
    if begin:
        after = Place(float(begin["due"]), str(begin["queue"]), str(begin["name"]).encode("latin-1"))
        names.index(after.queue)
    for found, place in reading.scheduled_with_places(names, *span, after):
        yield (
            found.message,
            {"due": place.due_ms, "queue": place.queue, "name": place.member.decode("latin-1")},
        )


def _placed(
    read: Callable[[str, int], Iterator[FoundMessage]], names: Sequence[str], begin: _Start
) -> Iterator[tuple[QueuedMessage, _Start]]:
    """Messages in another state, queue by queue, each with where the page after it begins."""
    first, skip = 0, 0
    if begin:
        first, skip = names.index(str(begin["queue"])), int(begin["skip"])
    for name in names[first:]:
        for passed, found in enumerate(read(name, skip), skip + 1):
            yield found.message, {"queue": name, "skip": passed}
        skip = 0


def _encoded(begin: _Start) -> str:
    return urlsafe_b64encode(json.dumps(begin).encode()).decode().rstrip("=")


def _decoded(start: str) -> _Start:
    padded = start + "=" * (-len(start) % 4)
    begin = json.loads(urlsafe_b64decode(padded.encode("ascii")))
    if not isinstance(begin, dict):
        raise ValueError("not the beginning of a page")
    return begin
