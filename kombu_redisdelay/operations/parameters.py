"""What operators give to a verb, or for a limit, and how their texts are read: times, rates, numbers."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone, tzinfo
from typing import Any, NamedTuple

from dateutil.parser import isoparse

from kombu_redisdelay.broker.limits import interval_us

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


def _rate(text: str, zone: tzinfo | None) -> str:
    interval_us(text)
    return text


def _number(text: str, zone: tzinfo | None) -> int | str:
    # What needs a number says itself what is wrong with another text. int() refuses thousands of digits.
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 16 else text


class ParameterType(NamedTuple):
    """How the text is read that a person writes.

    Attributes:
        name: what it is called in the help of the command line.
        read: makes the value of a text. It also gets the time zone of moments without an offset, as
            :func:`parse_moment` does. Raises ``ValueError``.
    """

    name: str
    read: Callable[[str, tzinfo | None], Any]


SECONDS = ParameterType("seconds", lambda text, zone: parse_distance(text).total_seconds())
SHIFT = ParameterType("seconds", lambda text, zone: parse_shift(text).total_seconds())
MOMENT = ParameterType("time", parse_moment)
TIME = ParameterType("time", parse_time)
RATE = ParameterType("rate", _rate)
LIMIT = ParameterType("limit", _number)
#: It is said, or it is not.
FLAG = ParameterType("flag", lambda text, zone: True)

#: What stands in the field of a rate while it is empty.
RATE_EXAMPLES = "10/s, 100/m or 1000/h"


@dataclass(frozen=True, slots=True)
class Parameter:
    """What an operator gives to a verb, or for a limit: an argument in Python, an option of the command line,
    a field of a form on the page. These read such rows.

    Attributes:
        name: as it is in Python, in JSON and in forms.
        type: how it is read.
        help: what it is, for the help of the command line; empty if that has no such option.
        label: what stands before it in a form; empty if no form asks for it.
        placeholder: what stands in its field while that is empty.
        is_required: whether it cannot be left out.
        least: the least number that it may be; ``None`` if it is no whole number.
        argument: tells the argument in Python that a value is for, where that is not *name*.
        foreseen: a value with which a dry run says the same as with any other one.
        warning: the second question before it is done; empty for none.
        stops_if: a verb with it takes long, and can be stopped. This is why it stops by itself; empty if it
            does not.
    """

    name: str
    type: ParameterType
    help: str = ""
    label: str = ""
    placeholder: str = ""
    is_required: bool = False
    least: int | None = None
    argument: Callable[[Any], str] | None = None
    foreseen: Any = None
    warning: str = ""
    stops_if: str = ""

    @property
    def option(self) -> str:
        """Its name on the command line."""
        return f"--{self.name.replace('_', '-')}"

    def given(self, value: Any) -> dict[str, Any]:
        """This *value* of it, as arguments in Python."""
        return {self.name if self.argument is None else self.argument(value): value}
