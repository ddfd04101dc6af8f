"""The known life of a message: from its own headers and members, and from other keys in Redis."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any

from dateutil.parser import isoparse

from kombu_redisdelay.broker.members import due_ms
from kombu_redisdelay.broker.times import from_ms
from kombu_redisdelay.operations.life import requeued_at
from kombu_redisdelay.operations.message import MessageInfo
from kombu_redisdelay.operations.states import FAILED, STATES
from kombu_redisdelay.web.words import number, plural
from kombu_redisdelay.words import LOST, span

#: Two times that are so near are one.
_SAME = timedelta(seconds=1)


@dataclass(frozen=True, slots=True)
class Event:
    """Something that has happened to a message, or will.

    Attributes:
        what: for example "Died".
        moment: when; ``None`` if that is not known.
        text: what else is known of it; may be empty.
    """

    what: str
    moment: datetime | None = None
    text: str = ""


def events_of(message: MessageInfo, now: datetime) -> list[Event]:
    """What has happened to *message*, and will, in this order."""
    return [
        *_published(message),
        *_requeued(message),
        *_retries(message.headers),
        *_asked_for(message),
        *_could_be_delivered(message),
        *_deliveries(message),
        *_state(message),
        *_expires(message.headers, now),
    ]


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


def _published(message: MessageInfo) -> Iterator[Event]:
    # What is told of a task has no headers.
    if not STATES[message.state].is_past:
        yield Event("Published", None, _publisher(message.headers))


def _publisher(headers: Mapping[str, Any]) -> str:
    origin = _text(headers, "origin")
    return f"by {origin}" if origin else ""


def _requeued(message: MessageInfo) -> Iterator[Event]:
    at = requeued_at(message)
    if at is not None:
        yield Event("Requeued", at, "after it had failed")


def _retries(headers: Mapping[str, Any]) -> Iterator[Event]:
    retries = headers.get("retries")
    if isinstance(retries, int) and retries > 0:
        yield Event("Retried", None, f"this is retry {number(retries)} of the task")


def _asked_for(message: MessageInfo) -> Iterator[Event]:
    eta = _time(message.headers, "eta")
    # A scheduled message is usually due at its eta, and its due time is shown anyway.
    if eta is not None and (message.due is None or abs(eta - message.due) > _SAME):
        yield Event("Asked for", eta, "the time at which its publisher wants it to run")


def _could_be_delivered(message: MessageInfo) -> Iterator[Event]:
    since_ms = due_ms(message.payload)
    if message.due is not None:
        yield Event("Due", message.due)
    elif since_ms is not None and not message.is_blocked:
        yield Event("Ready", from_ms(since_ms), "when it was published, became due, or was requeued last")


def _deliveries(message: MessageInfo) -> Iterator[Event]:
    if message.failures:
        yield Event("Failed", None, f"{plural(message.failures, 'delivery', 'deliveries')}")


def _state(message: MessageInfo) -> Iterator[Event]:
    if message.state == FAILED:
        if message.started is not None:
            yield Event("Started", message.started, f"try {number(message.tries or 1)}, by {message.worker}")
        text = f": {message.text}" if message.text else ""
        if message.returned:
            yield Event("Returned", message.since, f"and {LOST[message.returned]}: {message.reason}{text}")
        else:
            yield Event("Failed", message.since, f"{message.reason}{text}")
    elif STATES[message.state].is_past:
        yield _end(message)
    elif message.position is not None:
        yield Event("Waits", None, f"{plural(message.position, 'message')} before it")
    elif message.reason:
        yield Event(message.state.capitalize(), message.since, message.reason)
    elif message.due is None:
        name = f"{message.worker}, " if message.worker else ""
        worker = f"by {name}host {message.host or '?'}, process {message.pid or '?'}"
        lost = f"; {message.lost}, another worker is about to get the message" if message.lost else ""
        yield Event("Taken", message.since, worker + lost)


def _end(message: MessageInfo) -> Event:
    said = [
        f"try {number(message.tries or 1)}",
        *([] if message.waited is None else [f"waited {span(message.waited)}"]),
        *([] if message.ran is None else [f"ran {span(message.ran)}"]),
        f"by {message.worker}",
        *([message.error] if message.error else []),
    ]
    return Event((message.outcome or message.reason).capitalize(), message.since, ", ".join(said))


def _expires(headers: Mapping[str, Any], now: datetime) -> Iterator[Event]:
    expires = _time(headers, "expires")
    if expires is not None:
        is_over = expires <= now
        text = "the worker that gets it drops it" if is_over else "a worker that gets it later drops it"
        yield Event("Expired" if is_over else "Expires", expires, text)


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
