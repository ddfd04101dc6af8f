"""Says numbers, times and tasks in words, for the templates."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any
from urllib.parse import quote, unquote

from markupsafe import Markup

from kombu_redisdelay.broker.printable import printable
from kombu_redisdelay.cli.output import span
from kombu_redisdelay.operations.queued import QueuedMessage

#: Groups of digits are separated by this. It is no digit group of one language and a fraction of another.
_NARROW_SPACE = "\N{NARROW NO-BREAK SPACE}"

#: No text of a message is shown longer than this on a page, in characters.
LONGEST = 2000


def number(value: float) -> str:
    """A whole number with its digits in groups: 1 234 567."""
    return f"{value:,.0f}".replace(",", _NARROW_SPACE)


def text(value: object, longest: int = LONGEST) -> str:
    """What came from Redis, on one page: no character that is not printable, and not without end."""
    shown = printable(str(value)[: longest + 1])
    return f"{shown[:longest]}…" if len(shown) > longest else shown


def moment(value: datetime | None, now: datetime) -> Markup | str:
    """A time. A script on the page shows it in the viewer's zone."""
    if value is None:
        return "?"
    seconds = (value - now).total_seconds()
    away = f"in {span(seconds)}" if seconds >= 0 else f"{span(-seconds)} ago"
    exact = value.isoformat(" ", "seconds")
    return Markup('<time datetime="{}" title="{}">{}</time>').format(value.isoformat(), exact, away)


def plural(count: int, one: str, many: str | None = None) -> str:
    """A number with its noun: 1 message, 2 messages."""
    return f"{number(count)} {one if count == 1 else many or one + 's'}"


def quoted(value: str) -> str:
    """A text that a cookie can carry."""
    return quote(value)


def unquoted(value: str) -> str:
    return unquote(value)


def time_of(message: QueuedMessage) -> datetime | None:
    """When a message is due, since when it waits or is held, or when it died."""
    return message.due or message.waiting_since or message.held_since or message.died


FILTERS: dict[str, Callable[..., Any]] = {
    "number": number,
    "text": text,
    "moment": moment,
    "span": span,
    "plural": plural,
    "time_of": time_of,
}
