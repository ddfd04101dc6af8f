"""Our part of a message: the first members of its JSON object.

The scripts read and write them as text (lua/include/members.lua, which says what each means).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

#: In the order in which they stand. All are whole numbers, and each is optional.
DELIVERIES, LOST, DUE, UNKNOWN = NAMES = (
    "redisdelay-deliveries",
    "redisdelay-lost",
    "redisdelay-due",
    "redisdelay-unknown",
)

#: Stands after them: the key in a fair queue (:mod:`~kombu_redisdelay.broker.fair_keys`).
KEY = "redisdelay-key"

#: Stands after that: a list of three texts (:mod:`~kombu_redisdelay.broker.unique`).
UNIQUE = "redisdelay-unique"

#: Those that a message which was just published, and asks nothing of the broker, has not.
RARE = frozenset((DELIVERIES, LOST, UNKNOWN, KEY, UNIQUE))

#: How that begins, and before which byte.
UNIQUE_BEGINS, UNIQUE_WITHIN = b'"redisdelay-unique": ["', 700

#: What it counts as, in bytes, where those of a script are limited: as in lua/include/unique.lua.
BYTES_OF_KEY = 4096

#: The most digits that one has. A longer number is no time, and no count.
DIGITS = 15
BEYOND = 10**DIGITS

#: How a message begins that has a member of ours: this transport has published it, or has given it back.
OURS = b'{"redisdelay-'

#: What stands before the unique key.
_BEFORE_UNIQUE = re.compile(
    rb'\s*{(?:"redisdelay-(?:deliveries|lost|due|unknown)": ?\d+, ?)*(?:"redisdelay-key": ?"[^"]*", ?)?'
)

#: The due time of a message.
_DUE = re.compile(
    rb'\s*{(?:"redisdelay-(?:deliveries|lost)": ?\d+, ?)*"redisdelay-due": ?(\d{1,%d}),' % DIGITS
)


class Members(NamedTuple):
    """The members of one message.

    Attributes:
        deliveries: how many deliveries have failed.
        lost: how many of these ended with their consumer, which may have held others.
        due_ms: from when on the message may be delivered, ms since the epoch; ``None`` if it does not say.
        unknown_ms: since when it waits for a worker that knows its task, ms since the epoch; ``None`` if it
            does not.
        key: weight and key in a fair queue, as in the message; ``None`` if it has none.
        unique: its unique key, as in the message; ``None`` if it has none.
    """

    deliveries: int = 0
    lost: int = 0
    due_ms: int | None = None
    unknown_ms: int | None = None
    key: Any = None
    unique: Any = None


#: Of a message that has none.
NO_MEMBERS = Members()


def with_own(text: str, due_ms: float, key: str | None = None, unique: str | None = None) -> str:
    """The *text* of a message, which is JSON, with what a publisher says of it to the scripts.

    Arguments:
        due_ms: from when on it may be delivered, ms since the epoch.
        key: weight and key in a fair queue; ``None`` if it has none.
        unique: its unique key, as JSON; ``None`` if it has none.
    """
    # JSON does not escape what a key may have.
    of_key = "" if key is None else f'"{KEY}": "{key}", '
    of_unique = "" if unique is None else f'"{UNIQUE}": {unique}, '
    return f'{{"{DUE}": {int(due_ms)}, {of_key}{of_unique}{text[1:]}'


def with_key(payload: bytes, unique: str) -> bytes:
    """*payload*, a JSON object that another program has written, with its key, which is JSON,
    too; as it is, if it has one."""
    match = _BEFORE_UNIQUE.match(payload)
    if match is None or payload.startswith(b'"%b"' % UNIQUE.encode(), match.end()):
        return payload
    member = f'"{UNIQUE}": {unique}, '.encode()
    return payload[: match.end()] + member + payload[match.end() :]


def due_ms(payload: bytes) -> int | None:
    """The time that :func:`with_own` has written, ms since the epoch; ``None`` if there is none."""
    match = _DUE.match(payload)
    return int(match[1]) if match else None


def check_size(text: str, longest: int, what: str) -> None:
    """Raise a ``ValueError`` about *what* if *text* has more than *longest* bytes of UTF-8, or cannot be
    written so."""
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise ValueError(f"{what} cannot be written as UTF-8: {text[:40]!r}") from None
    if size > longest:
        raise ValueError(f"{what} must have {longest} bytes at most, not {size}: {text[:40]!r}...")


def wrong_member(payload: Mapping[str, Any]) -> str | None:
    """The name of a member of the decoded *payload* that is not a whole number of at most :data:`DIGITS`
    digits; ``None`` if all are right."""
    # Each message goes through this: most have one member.
    for name in NAMES:
        if name in payload:
            value = payload[name]
            if type(value) is not int or not 0 <= value < BEYOND:
                return name
    return None


def take_out(payload: dict[str, Any]) -> Members:
    """Remove the members from the decoded *payload*, and return them."""
    pop = payload.pop
    # The keys are for the scripts: kombu and Celery have them in headers.
    return Members(
        *(pop(DELIVERIES, 0), pop(LOST, 0), pop(DUE, None), pop(UNKNOWN, None)),
        *(pop(KEY, None), pop(UNIQUE, None)),
    )


def put_in(payload: Mapping[str, Any], found: Members) -> dict[str, Any]:
    """*payload* with the members that :func:`take_out` has *found* in it."""
    ours = zip((*NAMES, KEY, UNIQUE), found, strict=True)
    return {**{name: value for name, value in ours if value}, **payload}


def size_to_move(stored: bytes) -> int:
    """The size of a message, for a script that moves it and its unique key: *stored* is how it is in Redis. A
    key counts as :data:`BYTES_OF_KEY`."""
    return len(stored) + (0 if stored.find(UNIQUE_BEGINS, 0, UNIQUE_WITHIN) < 0 else BYTES_OF_KEY)
