"""Reads what people write: times, and texts with wildcards."""

from __future__ import annotations

import re
from datetime import datetime, timedelta, timezone, tzinfo
from fnmatch import translate
from functools import lru_cache

from dateutil.parser import isoparse

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_NUMBER = r"\d+(?:\.\d+)?"
_PART = re.compile(rf"({_NUMBER})([smhdw]?)", re.ASCII)
#: One part, which may lack its unit, or several, the largest unit first.
_DISTANCE = re.compile(
    rf"{_NUMBER}|(?=\d)" + "".join(rf"(?:{_NUMBER}{unit})?" for unit in ("w", "d", "h", "m", "s")), re.ASCII
)

#: A number without a unit that is larger, ten years in seconds, is more likely a timestamp.
_MOST_SECONDS = 315_360_000

#: A time as it was written: a distance from now, or a moment.
Time = datetime | timedelta


def parse_distance(text: str) -> timedelta:
    """Read a length of time: 90, 90s, 10m, 1h30m, 3d, 1w.

    Raises:
        ValueError: *text* is none.
    """
    if not _DISTANCE.fullmatch(text):
        raise ValueError(f"{text!r} is not a length of time, such as 90, 90s, 10m, 1h30m, 3d or 1w.")
    if text[-1].isdigit() and float(text) > _MOST_SECONDS:
        raise ValueError(f"{text!r} looks like a timestamp. Write it in ISO 8601: 2027-01-01T09:00.")
    try:
        distance = timedelta(
            seconds=sum(float(number) * _UNITS[unit or "s"] for number, unit in _PART.findall(text))
        )
        # Both must be valid times.
        _ = from_now(distance), ago(distance)
    except OverflowError:
        raise ValueError(f"{text!r} is too long a time.") from None
    return distance


def parse_shift(text: str) -> timedelta:
    """Read a length of time that may have a sign: 2h, +2h, -30m.

    Raises:
        ValueError: *text* is none.
    """
    distance = parse_distance(text.removeprefix("-") if text.startswith("-") else text.removeprefix("+"))
    return -distance if text.startswith("-") else distance


def parse_moment(text: str, zone: tzinfo | None) -> datetime:
    """Read a moment in ISO 8601.

    Arguments:
        zone: its time zone if it has no offset; ``None`` if it must have one.

    Raises:
        ValueError: *text* is none.
    """
    moment = _moment(text, zone)
    if moment is None:
        raise ValueError(f"{text!r} is not a time in ISO 8601, such as 2027-01-01T09:00.")
    return moment


def _moment(text: str, zone: tzinfo | None) -> datetime | None:
    """As :func:`parse_moment`, but ``None`` if *text* is no time in ISO 8601."""
    try:
        # isoparse() takes a number for a year.
        moment = None if _DISTANCE.fullmatch(text) else isoparse(text)
    except (ValueError, OverflowError):
        return None
    if moment is None or moment.tzinfo is not None:
        return moment
    if zone is None:
        raise ValueError(f"{text!r} has no offset, such as +01:00, or Z for UTC.")
    return moment.replace(tzinfo=zone)


def parse_time(text: str, zone: tzinfo | None) -> Time:
    """Read a distance from now, or a moment.

    Arguments:
        zone: as for :func:`parse_moment`.

    Raises:
        ValueError: *text* is neither.
    """
    if _DISTANCE.fullmatch(text):
        return parse_distance(text)
    moment = _moment(text, zone)
    if moment is None:
        raise ValueError(
            f"{text!r} is neither a distance from now, such as 90s, 10m, 1h30m, 3d or 1w, nor a time in "
            "ISO 8601."
        )
    return moment


def from_now(time: Time | None) -> datetime | None:
    """The moment of a *time* whose distance is from now on."""
    return datetime.now(timezone.utc) + time if isinstance(time, timedelta) else time


def ago(time: Time | None) -> datetime | None:
    """The moment of a *time* whose distance is back from now."""
    return datetime.now(timezone.utc) - time if isinstance(time, timedelta) else time


#: The longest pattern with wildcards, in characters. To compare a text with it may take as many steps for
#: each character of the text.
LONGEST = 500


def check_pattern(name: str, pattern: str) -> None:
    """Check the argument *name*, a pattern.

    Raises:
        ValueError: it is too long.
    """
    if len(pattern) > LONGEST and _has_wildcards(pattern):
        raise ValueError(
            f"{name}: a text with wildcards has at most {LONGEST} characters, not {len(pattern)}"
        )


def fits(text: str, pattern: str) -> bool:
    """Whether *text* as a whole fits *pattern*, which was checked. Upper and lower case differ."""
    if not _has_wildcards(pattern):
        return text == pattern
    return _compiled(pattern).match(text) is not None


def _has_wildcards(pattern: str) -> bool:
    return any(wildcard in pattern for wildcard in "*?[")


# The cache of fnmatch keeps so many patterns that they fill the memory.
@lru_cache(maxsize=32)
def _compiled(pattern: str) -> re.Pattern[str]:
    # For each bracket that is not closed, translate() reads the rest of the pattern.
    closed = pattern.rfind("]") + 1
    return re.compile(translate(pattern[:closed] + pattern[closed:].replace("[", "[[]")))
