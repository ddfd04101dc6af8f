"""Reads what is kept by time: the schedule, and failed tasks. Both are a zset, name -> ms since the epoch,
with a hash of messages, and a zset of the names of duplicates (lua/include/duplicates.lua)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice, product
from typing import NamedTuple

from kombu_redisdelay.broker.portions import BYTES_PER_CALL, MESSAGES_PER_CALL
from kombu_redisdelay.broker.server.scripts import FIND, PAGE, run_each
from kombu_redisdelay.broker.server.server import Server
from kombu_redisdelay.broker.server.wire import Argument

#: Half of :data:`MESSAGES_PER_CALL`, since an id may have more than one message.
IDS_PER_CALL = 100

#: Messages with an id, and their bytes, that are asked for together with those of other ids.
_A_FEW = (2, BYTES_PER_CALL // IDS_PER_CALL)

#: Messages in the first page that is read. Each page has twice as many as the one before.
FIRST_PAGE = 10

#: The keys of the zset, of the hash, and of the duplicates.
Keys = tuple[str, str, str]


class Row(NamedTuple):
    """A message as it is kept.

    Attributes:
        at_ms: its time, ms since the epoch, with a fraction.
        stored: the message with its priority step.
        left_out: if it is the last one of some without the texts that were asked for, how many they are. It
            has no message then.
    """

    name: bytes
    at_ms: float
    stored: bytes
    left_out: int = 0


class Part(NamedTuple):
    """What is read, in the order of the times.

    Attributes:
        from_ms, before_ms: from which time on, and before which time, ms since the epoch; ``None`` is no
            limit.
        after: of those at *from_ms*, only those whose names come after this one.
        until: of those at *before_ms*, also those whose names come before this one.
        from_last: whether they are read from the last one on.
    """

    from_ms: float | None
    before_ms: float | None
    after: bytes = b""
    until: bytes = b""
    from_last: bool = False


def read_pages(
    server: Server, keys: Keys, part: Part, longest: int | None = None, texts: Sequence[str] = ()
) -> Iterator[list[Row]]:
    """The messages of a *part*, page by page.

    Arguments:
        keys: the hash may have something else in place of messages, under the same names.
        longest: how many bytes of each are read, from its beginning; ``None`` for all.
        texts: only messages that contain one of these; in place of others, :attr:`Row.left_out`.
    """
    low: Argument = "-inf" if part.from_ms is None else part.from_ms
    high: Argument = "+inf" if part.before_ms is None else part.before_ms
    after, until = part.after, part.until
    size, done = FIRST_PAGE, 0
    while not done:
        done, *found = PAGE(
            server,
            keys[:2],
            PAGE.arguments(
                texts,
                from_ms=low,
                after_name=after,
                before_ms=high,
                before_name=until,
                from_last=int(part.from_last),
                count=size,
                byte_limit=BYTES_PER_CALL,
                longest="" if longest is None else longest,
            ),
        )
        rows = [(name, float(score), stored) for name, score, stored in _threes(found)]
        if rows and part.from_last:
            until, high, _ = rows[-1]
        elif rows:
            after, low, _ = rows[-1]
        yield [_row(*row) for row in rows if row[2] is not None]
        size = min(2 * size, MESSAGES_PER_CALL)


def _row(name: bytes, at_ms: float, stored: bytes | int) -> Row:
    return Row(name, at_ms, b"", stored) if isinstance(stored, int) else Row(name, at_ms, stored)


def find_all(
    server: Server, keys: Callable[[str], Keys], queues: Sequence[str], ids: Sequence[bytes]
) -> Iterator[tuple[str, bytes, Row]]:
    """The messages of *queues* with these ids, each with its queue and its id, in the order of the queues and
    ids.

    Arguments:
        keys: those of a queue.
    """
    wanted = product(queues, ids)
    while some := list(islice(wanted, IDS_PER_CALL)):
        calls = [(FIND, keys(queue), (id, b"", *_A_FEW)) for queue, id in some]
        for (queue, id), reply in zip(some, run_each(server, calls), strict=True):
            while reply:
                after, *found = reply
                for name, score, stored in _threes(found):
                    yield queue, id, Row(name, float(score), stored)
                args = (id, after, MESSAGES_PER_CALL, BYTES_PER_CALL)
                reply = after and FIND(server, keys(queue), args)


def _threes(found: Sequence[bytes]) -> Iterator[tuple[bytes, bytes, bytes]]:
    return zip(found[::3], found[1::3], found[2::3], strict=True)


def id_bytes(id: str) -> bytes:
    """An id, for a script. JSON may have an id that UTF-8 has no bytes for. No stored message has such an
    id."""
    return id.encode(errors="surrogatepass")
