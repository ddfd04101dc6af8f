"""What operators give to a verb, or for a limit: its parameters, and how the texts of people are read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import tzinfo
from typing import Any, NamedTuple

from kombu_redisdelay.broker.limits import interval_us
from kombu_redisdelay.operations.typed import parse_distance, parse_moment, parse_shift, parse_time


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
            :func:`~kombu_redisdelay.operations.typed.parse_moment` does. Raises ``ValueError``.
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
