"""What the page of a message tells of its life, and of the tasks that it belongs to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from dateutil.parser import isoparse

from kombu_redisdelay.operations.life import Event, life
from kombu_redisdelay.operations.message import MessageInfo
from kombu_redisdelay.web.words import plural


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
