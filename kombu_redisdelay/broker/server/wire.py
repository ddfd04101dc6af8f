"""Commands and replies of the Redis protocol."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import isinf
from typing import Any


@dataclass(frozen=True, slots=True)
class Packed:
    """Some arguments of a command, as they are sent.

    Attributes:
        count: how many arguments.
        first: the first of them.
    """

    count: int
    data: bytes
    first: str


#: What a command is made of. A number is written as Python writes it.
Argument = str | bytes | float | Packed
Command = tuple[Argument, ...]


class PackedKeys(tuple[str, ...]):
    """Keys that are sent again and again, so they are packed once."""

    @cached_property
    def packed(self) -> Packed:
        return Packed(len(self), b"".join(map(_packed, self)), self[0])


def pack(*command: Argument) -> bytes:
    """*command* as bytes, ready to be sent. redis-py takes three times as long for this."""
    count, parts = len(command), [b""]
    for argument in command:
        if isinstance(argument, Packed):
            count += argument.count - 1
            parts.append(argument.data)
        else:
            parts.append(_packed(argument))
    parts[0] = b"*%d\r\n" % count
    return b"".join(parts)


def unpacked(command: Command) -> list[str | bytes | float]:
    """The arguments of *command* one by one, for redis-py."""
    arguments: list[str | bytes | float] = []
    for argument in command:
        if not isinstance(argument, Packed):
            arguments.append(argument)
            continue
        at = 0
        while at < len(argument.data):
            begin = argument.data.index(b"\r\n", at) + 2
            end = begin + int(argument.data[at + 1 : begin - 2])
            arguments.append(argument.data[begin:end])
            at = end + 2
    return arguments


#: Commands that we use and that have no key.
KEYLESS = frozenset(("PING", "SCRIPT", "TIME", "WAIT"))

#: Where the first key of these commands comes: behind the digest or text of a script and the number of its
#: keys, or behind a subcommand.
_FIRST_KEY = {"EVAL": 3, "EVALSHA": 3, "MEMORY": 2}


def first_key(command: Command) -> str:
    """The first key of *command*, which has one."""
    key = command[_FIRST_KEY.get(str(command[0]), 1)]
    return key.first if isinstance(key, Packed) else str(key)


def _packed(argument: str | bytes | float) -> bytes:
    text = argument if isinstance(argument, bytes) else str(argument).encode()
    return b"$%d\r\n%b\r\n" % (len(text), text)


def first_score(reply: Any) -> float | None:
    """The first score in the *reply* to a command with ``WITHSCORES``; ``None`` if there is none."""
    if not reply:
        return None
    # RESP3 makes pairs of members and scores.
    return float(reply[0][1] if isinstance(reply[0], (list, tuple)) else reply[1])


def first_due_ms(reply: Any) -> float | None:
    """The same of a schedule: when its first message is due, ms since the epoch. What waits for its key is
    never due (lua/include/unique.lua)."""
    score = first_score(reply)
    return None if score is None or isinf(score) else score


def clock_ms(reply: Any) -> float:
    """The time in the *reply* to ``TIME``, in ms since the epoch, with a fraction."""
    seconds, microseconds = reply
    return (int(seconds) * 1_000_000 + int(microseconds)) / 1000
