"""The lists of messages, and one message: its life, and the tasks that it belongs to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from math import ceil
from time import monotonic
from typing import Any

from dateutil.parser import isoparse
from starlette.requests import Request
from starlette.responses import Response

from kombu_redisdelay.operations.archive_reader import WITHOUT_MESSAGE
from kombu_redisdelay.operations.changed import may_be_in_chord
from kombu_redisdelay.operations.columns import Column, columns_of, moment_label
from kombu_redisdelay.operations.life import Event, life
from kombu_redisdelay.operations.message import MessageInfo
from kombu_redisdelay.operations.reading import Page
from kombu_redisdelay.operations.selection import Selection
from kombu_redisdelay.operations.states import STATES, State, how_many
from kombu_redisdelay.operations.verbs import REQUEUE
from kombu_redisdelay.operations.why_waiting import key_and_holder, why_waiting
from kombu_redisdelay.web.actions import ALL, SELECTED, Action, actions_of
from kombu_redisdelay.web.choice import Choice
from kombu_redisdelay.web.site import MOST_QUEUES, Site, fields_of, render, site_of
from kombu_redisdelay.web.words import plural

#: Seconds after which a page is brought up to date.
UPDATE_AFTER = 5

#: Messages with one id that are shown.
MOST_FOUND = 20

#: Headers of a message that are shown.
MOST_HEADERS = 100

#: The page waits this number of times as long as its search took, before it searches again.
SEARCHES = 50

#: Digits of a number that an address has.
MOST_DIGITS = 16


def messages(request: Request) -> Response:
    """A page of a list."""
    site, fields = site_of(request), fields_of(request)
    choice = Choice.of(fields)
    state, error, page, selection = choice.its_state, "", Page([]), None
    began = monotonic()
    try:
        selection = site.selection_of(choice)
        page = site.messages.page(selection, start=fields.get("from", ""), newest_first=choice.is_last_first)
    except ValueError as exc:
        error = str(exc)
    took = monotonic() - began
    # The other lists come queue by queue.
    is_sorted = state.is_ahead or len(site.messages.names(choice.queue or None)) == 1
    is_first = not fields.get("from")
    return render(
        request,
        "messages.html",
        400 if error else 200,
        choice=choice,
        state=state,
        states=STATES,
        filters=[
            each for each in site.filters if each.may_match((state.name,)) or choice.fields.get(each.name)
        ],
        columns=_columns(state, page),
        page=page,
        error=error,
        is_first=is_first,
        searched=_number(fields.get("searched", "")) + page.looked_at,
        update_after=_update_after(took),
        queues=site.queue_names(),
        most_queues=MOST_QUEUES,
        total=site.messages.count(Selection(queue=choice.queue or None, state=choice.state)),
        matching=None if selection is None or error else _matching(site, choice, selection, page, is_first),
        moment=moment_label(state),
        is_sorted=is_sorted,
        order=_order(choice, is_sorted),
        of_selected=actions_of(request, choice, SELECTED),
        of_all=actions_of(request, choice, ALL),
        call=site.call,
    )


def _number(text: str) -> int:
    """A number in an address, where anything may be."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) < MOST_DIGITS else 0


def _update_after(took: float) -> int:
    """After how many seconds a page is brought up to date: its search must not keep the server busy."""
    return max(UPDATE_AFTER, ceil(took * SEARCHES))


def _columns(state: State, page: Page) -> dict[str, Column]:
    """The columns of a page, without those that have the usual value in all its rows."""
    return {
        name: column
        for name, column in columns_of(state).items()
        if column.usual is None or any(column.value(message) != column.usual for message in page.messages)
    }


def message(request: Request) -> Response:
    """The message, or messages, with one id."""
    site, id = site_of(request), fields_of(request).get("id", "")
    now = datetime.now(timezone.utc)
    began = monotonic()
    found = _found(site, id)
    if not found and id != id.strip():
        # A person may have copied more than the id.
        id = id.strip()
        found = _found(site, id)
    took = monotonic() - began
    return render(
        request,
        "message.html",
        200 if found else 404,
        id=id,
        found=found,
        most_found=MOST_FOUND,
        most_headers=MOST_HEADERS,
        # Its search may read every ready message.
        update_after=_update_after(took),
        actions=lambda message: _actions(request, message),
        unique=lambda message: key_and_holder(site.messages.store, message),
        events=lambda message: events_of(message, now),
        relatives=relatives_of,
        why_waiting=lambda message: why_waiting(site.messages.store, message),
        call=site.call,
        shown=site.shown,
        is_whole=_is_whole,
        how_many=how_many,
        may_be_in_chord=may_be_in_chord,
    )


def _actions(request: Request, message: MessageInfo) -> dict[str, Action]:
    """What the viewer can do to a message."""
    offered = actions_of(request, Choice(message.state), SELECTED)
    return {
        name: action
        for name, action in offered.items()
        if not (message.is_blocked and action.leaves_blocked) and (name != REQUEUE.name or _is_whole(message))
    }


def _is_whole(message: MessageInfo) -> bool:
    """Whether there is more of it than what is noted of its failure."""
    return WITHOUT_MESSAGE not in message.reason


def _found(site: Site, id: str) -> list[MessageInfo]:
    return list(site.messages.select(Selection(ids=[id]), limit=MOST_FOUND)) if id else []


def _matching(site: Site, choice: Choice, selection: Selection, page: Page, is_first: bool) -> int | None:
    """How many messages match a filter; ``None`` if there is no filter, or counting would read messages."""
    if not choice.picks_some:
        return None
    if is_first and not page.next:
        return len(page.messages)
    return site.messages.count(selection) if selection.is_counted(choice.its_state) else None


def _order(choice: Choice, is_sorted: bool) -> str:
    """Says how a list is sorted."""
    state = choice.its_state
    order = state.reverse_order if choice.is_last_first and state.reverse_order else state.order
    return order if is_sorted else f"Queue by queue, {order[0].lower()}{order[1:]}"


def events_of(message: MessageInfo, now: datetime) -> list[Event]:
    """What has happened to *message*, and will, in this order: its life, and what ``show`` has beside it."""
    return [*life(message), *_waits(message), *_expires(message.headers, now)]


@dataclass(frozen=True, slots=True)
class Relatives:
    """The tasks that a task belongs to, each by its id; empty if there is none.

    Attributes:
        parent: the task that has published it.
        root: the first task of the whole workflow, if it is another one.
        group: the group.
        number: its number in the group, from 1; ``None`` if it is unknown.
    """

    parent: str = ""
    root: str = ""
    group: str = ""
    number: int | None = None


def relatives_of(message: MessageInfo) -> Relatives:
    headers = message.headers
    root, index = _text(headers, "root_id"), headers.get("group_index")
    return Relatives(
        _text(headers, "parent_id"),
        "" if root == message.id else root,
        _text(headers, "group"),
        index + 1 if isinstance(index, int) else None,
    )


def _waits(message: MessageInfo) -> Iterator[Event]:
    if message.position is not None:
        yield Event("waits", None, f"{plural(message.position, 'message')} before it")
    if message.lost:
        yield Event(message.lost, None, "another worker is about to get the message")


def _expires(headers: Mapping[str, Any], now: datetime) -> Iterator[Event]:
    expires = _time(headers, "expires")
    if expires is not None:
        is_over = expires <= now
        text = "the worker that gets it drops it" if is_over else "a worker that gets it later drops it"
        yield Event("expired" if is_over else "expires", expires, text)


def _text(headers: Mapping[str, Any], name: str) -> str:
    """A header that should be a text. Any program may have written it."""
    value = headers.get(name)
    return value if isinstance(value, str) else ""


def _time(headers: Mapping[str, Any], name: str) -> datetime | None:
    """A header that should be a time in ISO 8601. Without an offset, it is in UTC, as for Celery."""
    try:
        time = isoparse(_text(headers, name))
        return (time if time.tzinfo else time.replace(tzinfo=timezone.utc)).astimezone(timezone.utc)
    except (ValueError, OverflowError):
        return None
