"""Reads messages: counts them, finds those of a selection, makes pages of lists."""

from __future__ import annotations

import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from time import monotonic
from typing import Any, Generic, TypeVar

from kombu_redisdelay.broker.message import expires_ms, from_ms
from kombu_redisdelay.operations.access import Access
from kombu_redisdelay.operations.message import MessageInfo
from kombu_redisdelay.operations.readers import Cursor, Entry, Look
from kombu_redisdelay.operations.selection import Selection
from kombu_redisdelay.operations.states import ARCHIVED, State
from kombu_redisdelay.public import public

MessageT = TypeVar("MessageT")

#: Messages on a page.
PAGE = 50

#: For so many seconds, messages are looked at for one page. A page of a rare task may have fewer than
#: :data:`PAGE`, and the next page goes on from there.
LOOKS_FOR = 2.0

#: Bytes of the messages of a page, about.
BYTES_AT_MOST = 32 * 1024 * 1024


@public
class Count(int):
    """A number of messages.

    Attributes:
        is_exact: whether all were counted. If not, there may be more.
        looked_at: how many messages were read for it.
    """

    is_exact: bool
    looked_at: int

    def __new__(cls, number: int, *, is_exact: bool = True, looked_at: int = 0) -> Count:
        count = super().__new__(cls, number)
        count.is_exact, count.looked_at = is_exact, looked_at
        return count


@public
@dataclass(frozen=True, slots=True)
class Page:
    """A page of a list.

    Attributes:
        messages: those of the page.
        next: where the next page begins; empty if this is the last one. It can be part of an address.
        looked_at: how many messages were looked at for it. That goes on for two seconds at most.
    """

    messages: Sequence[MessageInfo]
    next: str = ""
    looked_at: int = 0


def count(access: Access, selection: Selection, states: Sequence[State], at_most: int | None = None) -> Count:
    """See :meth:`kombu_redisdelay.Messages.count`."""
    looked_in = names(access, selection)
    counted = looked_at = 0
    for state in states:
        if selection.is_counted(state):
            counted += state.reader.count(access.store, looked_in, selection.span(state))
            continue
        matches = selection.matcher(selection.span(state), access.store)
        look = selection.look(state, looked_in)
        if look.of_failed is not None and selection.is_grouped:
            look = replace(look, of_failed=selection.fits_failed)
        for _, entry in _read(access, [(state, look if at_most is None else _counted(look, state))]):
            if at_most is not None and looked_at >= at_most:
                return Count(counted, is_exact=False, looked_at=looked_at)
            looked_at += entry.stands_for
            counted += matches(entry)
    return Count(counted, looked_at=looked_at)


def matching(
    access: Access, selection: Selection, states: Sequence[State], newest_first: bool = False
) -> Iterator[MessageInfo]:
    """The messages of *selection*, one state after the other. See
    :meth:`kombu_redisdelay.Messages.select`."""
    matchers = {state.name: selection.matcher(selection.span(state), access.store) for state in states}
    looked_in = names(access, selection)
    looks = [
        (state, replace(selection.look(state, looked_in), newest_first=newest_first and state.is_reversible))
        for state in states
    ]
    found = _read(access, looks)
    return (_info(access, state, entry) for state, entry in found if matchers[state.name](entry))


def page(access: Access, selection: Selection, start: str, newest_first: bool, size: int) -> Page:
    """See :meth:`kombu_redisdelay.Messages.page`."""
    states = selection.states()
    if len(states) != 1:
        raise ValueError("a page needs one state")
    if size < 1:
        raise ValueError(f"size must be at least 1, not {size}")
    [state] = states
    newest_first = newest_first and state.is_reversible
    begin = cursor_of(start, state, newest_first) if start else None
    # A queue that a page ended in may have no messages any more.
    ended_in = [] if begin is None or selection.queue is not None else [begin[0]]
    names = sorted({*access.names(selection.queue), *ended_in})
    if begin is not None and begin[0] not in names:
        raise _not_of_this_list()
    look = replace(_counted(selection.look(state, names), state), start=begin, newest_first=newest_first)
    matches = selection.matcher(look.span, access.store)
    messages: list[MessageInfo] = []
    looked_at, size_read, end = 0, 0, monotonic() + LOOKS_FOR
    cursor = begin
    for entry in state.reader.read(access.store, look):
        is_full = len(messages) == size or size_read >= BYTES_AT_MOST
        if is_full or (looked_at and monotonic() >= end):
            assert cursor is not None, "a page without a message has no next one"
            return Page(messages, as_text(state, newest_first, cursor), looked_at)
        looked_at, cursor = looked_at + entry.stands_for, entry.cursor
        if matches(entry):
            size_read += len(entry.payload)
            messages.append(_info(access, state, entry))
    return Page(messages, looked_at=looked_at)


def _counted(look: Look, state: State) -> Look:
    """*look* for a caller that counts what was looked at. Only the schedule tells how many were left out
    because they have none of the texts; where a cursor counts messages, it would miss these, too."""
    return look if state.is_ahead else replace(look, texts=())


def names(access: Access, selection: Selection) -> Sequence[str]:
    """The names in Redis to look at for *selection*."""
    return () if selection.ids == () else access.names(selection.queue)


def _read(access: Access, looks: Sequence[tuple[State, Look]]) -> Iterator[tuple[State, Entry]]:
    """What the readers of states find, each message once."""

    def found() -> Iterator[Identified[tuple[State, Entry]]]:
        for state, look in looks:
            for entry in state.reader.read(access.store, look):
                if entry.matches is not None:
                    # It is a failed task that was not read whole. The last of its cursor is its name.
                    yield Identified((state, entry), (entry.name, entry.cursor[-1]), is_unique=True)
                    continue
                content, queue = entry.content, access.store.partitions.queue_of(entry.name)
                identity = (queue, content.tag or entry.payload, content.id)
                yield Identified((state, entry), identity, content.tag is not None, entry.is_sure)

    return distinct(found())


def _info(access: Access, state: State, entry: Entry) -> MessageInfo:
    content = entry.content
    of_state: dict[str, Any] = {"failures": content.failures, **entry.known}
    moment = None if entry.moment_ms is None else from_ms(entry.moment_ms)
    # No worker looks at those that are kept.
    expires = None if state.name in ARCHIVED else expires_ms(content.headers)
    of_state["due" if state.is_ahead else "since"] = moment
    return MessageInfo(
        id=content.id,
        queue=access.store.partitions.queue_of(entry.name),
        state=state.name,
        task=content.task,
        args=content.args,
        kwargs=content.kwargs,
        priority=content.priority,
        size=len(entry.payload),
        expires=None if expires is None else from_ms(expires),
        unique=content.unique,
        key=content.key,
        headers=content.headers,
        payload=entry.payload,
        **of_state,
    )


def as_text(state: State, newest_first: bool, cursor: Cursor) -> str:
    """*cursor* as a text that can be part of an address."""
    text = json.dumps([state.name, newest_first, *cursor])
    return urlsafe_b64encode(text.encode()).decode().rstrip("=")


def cursor_of(text: str, state: State, newest_first: bool) -> Cursor:
    """The cursor that *text* is, for a list in this state and order.

    Raises:
        ValueError: it is none.
    """
    try:
        padded = text + "=" * (-len(text) % 4)
        of_state, is_newest_first, *values = json.loads(urlsafe_b64decode(padded.encode("ascii")))
        if (of_state, is_newest_first) == (state.name, newest_first):
            return state.reader.cursor(values)
    except (TypeError, ValueError, OverflowError, RecursionError):
        pass
    raise _not_of_this_list()


def _not_of_this_list() -> ValueError:
    return ValueError("this page is not of this list")


# slots do not go together with Generic and Python 3.10.
@dataclass(frozen=True)
class Identified(Generic[MessageT]):
    """A message, and what tells it from others.

    Attributes:
        identity: no other message has it, if *is_unique*.
        is_unique: whether it was published with a delivery tag.
        is_sure: whether this very entry was certainly not read before.
    """

    message: MessageT
    identity: object
    is_unique: bool
    is_sure: bool = True


def distinct(found: Iterable[Identified[MessageT]]) -> Iterator[MessageT]:
    """The messages, each once. One without a delivery tag may look like another one. It is left out only if
    it may have been read before."""
    known: set[int] = set()
    for each in found:
        key = hash(each.identity)
        if key in known and (each.is_unique or not each.is_sure):
            continue
        known.add(key)
        yield each.message
