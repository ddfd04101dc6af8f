"""Reads replies that are small numbers.

The reply to most commands is one, and there is one for each message. redis-py's parser in Python calls twenty
functions for it. So it is taken out of the parser's buffer, if it is there as a whole. All other replies are
left to redis-py, and so are those of its other parser, which is written in C.
"""

from __future__ import annotations

from io import SEEK_CUR, BytesIO
from typing import Any

#: What such a reply looks like.
_SMALL = {b":%d\r\n" % number: number for number in range(1000)}


def buffer_of(connection: Any) -> BytesIO | None:
    """What the parser of *connection* has received; ``None`` if it has no such buffer."""
    parser = getattr(connection, "_parser", None)
    received = getattr(getattr(parser, "_buffer", None), "_buffer", None)
    return received if type(received) is BytesIO else None


def small_reply(received: BytesIO) -> int | None:
    """The next reply in the buffer, if it is a small number; else ``None``, and nothing is read."""
    line = received.readline()
    number = _SMALL.get(line)
    if number is None and line:
        received.seek(-len(line), SEEK_CUR)
    return number


def forget_read(connection: Any) -> None:
    """Have the parser forget what was read. It does so after each reply that it reads itself."""
    connection._parser._buffer.purge()
