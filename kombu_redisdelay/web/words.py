"""Says numbers, times and tasks in words, for the templates."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime, timezone
from typing import Any

from markupsafe import Markup

from kombu_redisdelay.operations.fair import said_of_key, shown_key
from kombu_redisdelay.web.choice import quoted
from kombu_redisdelay.words import blocked, printable, returned, span, when

#: Separates groups of digits. A comma or a point begins a fraction in some languages.
_NARROW_SPACE = "\N{NARROW NO-BREAK SPACE}"

#: No text of a message is shown longer than this on a page, in characters.
LONGEST = 2000

#: No id, and no name of a queue, is put into a link or a form if it is longer there, in characters. A page
#: has up to two hundred of them.
LONGEST_LINKED = 5000


def number(value: int) -> str:
    """A whole number with its digits in groups: 1 234 567."""
    return f"{value:,}".replace(",", _NARROW_SPACE)


def for_log(said: str) -> str:
    """What a page says, in one line of the log."""
    return printable(said.replace(_NARROW_SPACE, ","))


def text(value: object, longest: int = LONGEST) -> str:
    """A value from Redis, for a page: printable and not too long."""
    # Our own numbers have narrow spaces, which are not printable for Python.
    parts = str(value)[: longest + 1].split(_NARROW_SPACE)
    shown = _NARROW_SPACE.join(map(printable, parts))
    return f"{shown[:longest]}…" if len(shown) > longest else shown


def moment(value: datetime | str | None, now: datetime) -> Markup | str:
    """A time, or a word that says why there is none. A script on the page shows it in the viewer's zone."""
    if value is None or isinstance(value, str):
        return value or "?"
    exact = value.isoformat(" ", "seconds")
    return Markup('<time datetime="{}" title="{}">{}</time>').format(
        value.isoformat(), exact, when(value, now)
    )


def exactly(value: datetime) -> Markup:
    """A time with its date. A script on the page shows it in the viewer's zone."""
    return Markup('<time datetime="{}" data-exactly>{} UTC</time>').format(
        value.isoformat(), f"{value.astimezone(timezone.utc):%Y-%m-%d %H:%M:%S}"
    )


def clock(value: datetime) -> Markup:
    """A time of this day. A script on the page shows it in the viewer's zone."""
    return Markup('<time datetime="{}" data-clock>{} UTC</time>').format(
        value.isoformat(), f"{value:%H:%M:%S}"
    )


def plural(count: int, one: str, many: str = "") -> str:
    """A number with its noun: 1 message, 2 messages."""
    return f"{number(count)} {one if count == 1 else many or one + 's'}"


def pattern(name: str) -> str:
    """The value of a filter that finds this name alone."""
    return re.sub(r"[*?[]", r"[\g<0>]", name)


def is_linkable(name: str) -> bool:
    """Whether links and forms have room for the id of a message, or the name of a queue."""
    return len(name) <= LONGEST_LINKED and len(quoted(name)) <= LONGEST_LINKED


FILTERS: dict[str, Callable[..., Any]] = {
    "number": number,
    "text": text,
    "without_due": blocked,
    "shown_key": shown_key,
    "said_of_key": said_of_key,
    "moment": moment,
    "exactly": exactly,
    "clock": clock,
    "span": span,
    "plural": plural,
    "quoted": quoted,
    "pattern": pattern,
    "returned": returned,
}
