"""Reads long keys of Redis page by page, while others change them, and takes out part by part.

:func:`walk` reads a list, and :func:`read_back` reads one from the other end. :func:`read_pages` reads what
is kept by time: the schedule, failed tasks and dead letters. Each of these is a zset, name -> ms since the
epoch, with a hash of messages, and a zset of the names of duplicates (lua/include/duplicates.lua).
:func:`take_out` takes out failed tasks and dead letters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice, product
from typing import Any, NamedTuple, TypeVar

from kombu_redisdelay.broker.portions import BYTES_PER_CALL, MESSAGES_PER_CALL, next_page
from kombu_redisdelay.broker.server.scripts import FIND, PAGE, PAGE_LIST, TAKE_OUT, run_each
from kombu_redisdelay.broker.server.server import Server
from kombu_redisdelay.broker.server.wire import Argument, Caller, Command, answers

#: How often a walk begins anew because its bookmarks are lost. They are lost when everything was taken, so
#: nothing is left that must be read. The limit keeps a busy queue from holding a reader for ever.
MOST_RESTARTS = 5

#: What ``lua/page_list.lua`` returns.
Reply = Sequence[Any]

#: Half of :data:`MESSAGES_PER_CALL`, since an id may have more than one message.
IDS_PER_CALL = 100

#: Messages with an id, and their bytes, that are asked for together with those of other ids.
_A_FEW = (2, BYTES_PER_CALL // IDS_PER_CALL)

#: Messages in the first page that is read. Each page has twice as many as the one before.
FIRST_PAGE = 10

#: The keys of the zset, of the hash, and of the duplicates.
Keys = tuple[str, str, str]

KeptT = TypeVar("KeptT")

#: What is done with one that is taken out. The last one only finds out what the first one would do.
REQUEUE, REMOVE, FORESEE = "requeue", "drop", "foresee"


@dataclass(frozen=True, slots=True)
class ListEntry:
    """An entry of a list.

    Attributes:
        taken_before: how many are taken before it: those to its right, and those in the lists before.
        data: its bytes.
        is_sure: whether this very entry was certainly not read before. If not, an equal one may have been.
    """

    taken_before: int
    data: bytes
    is_sure: bool


@dataclass
class _Reader:
    """How far a walk has come, in the words of ``lua/page_list.lua``."""

    next: Argument = ""
    last: Argument = 0
    mark: Argument = ""
    look_from: Argument = 0
    bookmarks: Sequence[Argument] = ()

    def arguments(self, size: int, texts: Sequence[str]) -> list[Argument]:
        return PAGE_LIST.arguments(
            (*self.bookmarks, *texts),
            next_position=self.next,
            last_position=self.last,
            mark=self.mark,
            look_from=self.look_from,
            count_limit=size,
            byte_limit=BYTES_PER_CALL,
            bookmark_count=len(self.bookmarks) // 2,
            text_count=len(texts),
        )


def first_pages(server: Server, lists: Sequence[str], texts: Sequence[str]) -> list[Reply]:
    """What :func:`walk` reads first of each of these lists, in one round trip."""
    arguments = _Reader().arguments(MESSAGES_PER_CALL, texts)
    return run_each(server, [(PAGE_LIST, (key,), arguments) for key in lists])


def walk(
    server: Server,
    keys: Sequence[str],
    texts: Sequence[str] = (),
    size: int = MESSAGES_PER_CALL,
    skip: int = 0,
    first_page: Reply | None = None,
) -> Iterator[ListEntry]:
    """The entries of a list from the right end, where entries are taken, to the left end, where they are
    added. It ends when it has come so far: it may include entries that were added meanwhile.

    Every entry that stays in the list from the beginning to the end is included. An entry that was taken and
    came back, or entries beside some that were removed, may be included twice: they are not ``is_sure``, or
    have been in another place meanwhile. So the caller leaves out messages that it has had.

    Arguments:
        keys: lists that are taken from before this one; the last key is the list.
        texts: only entries that contain one of these texts.
        size: entries that one script reads at most.
        skip: how many entries to pass over first.
        first_page: what :func:`first_pages` has read of it already.
    """
    reader, is_sure, restarts = _Reader(look_from=skip), True, 0
    while True:
        status, *reply = first_page or PAGE_LIST(server, keys, reader.arguments(size, texts))
        first_page = None
        if status == b"look":
            [reader.look_from] = reply
        elif status == b"lost":
            restarts += 1
            if restarts > MOST_RESTARTS:
                return
            reader, is_sure = _Reader(look_from=skip), False
        else:
            next, last, mark, page_is_sure, bookmarks, entries = reply
            is_sure = is_sure and bool(page_is_sure)
            for taken_before, data in zip(entries[::2], entries[1::2], strict=True):
                yield ListEntry(taken_before, data, is_sure)
            if next == b"":
                return
            reader = _Reader(next, last, mark, 0, bookmarks or reader.bookmarks)


def read_back(server: Server, key: str, left: int) -> Iterator[tuple[bytes, int]]:
    """The entries of a list from the left end, where they are added, to the right end, read page by page.
    Each comes with how many are left to read after it. Those that are added meanwhile are not included.

    Arguments:
        left: how many to read: positions are counted from the right end.
    """
    size = FIRST_PAGE
    while left > 0:
        after = max(0, left - size)
        page: Command = ("LRANGE", key, -left, -(after + 1))
        [entries] = answers(server, [page])
        yield from zip(entries, range(after + len(entries) - 1, after - 1, -1), strict=True)
        left, size = after, next_page(size, sum(map(len, entries)))


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
    server: Server,
    keys: Keys,
    part: Part,
    longest: int | None = None,
    texts: Sequence[str] = (),
    lost: bytes | None = None,
) -> Iterator[list[Row]]:
    """The messages of a *part*, page by page.

    Arguments:
        keys: the hash may have something else in place of messages, under the same names.
        longest: how many bytes of each are read, from its beginning; ``None`` for all.
        texts: only messages that contain one of these; in place of others, :attr:`Row.left_out`.
        lost: what stands for a message that is not there; ``None`` leaves it out.
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
        yield [row for each in rows if (row := _row(*each, lost)) is not None]
        size = min(2 * size, MESSAGES_PER_CALL)


def _row(name: bytes, at_ms: float, stored: bytes | int | None, lost: bytes | None) -> Row | None:
    if isinstance(stored, int):
        return Row(name, at_ms, b"", stored)
    message = lost if stored is None else stored
    return None if message is None else Row(name, at_ms, message)


def find_all(
    server: Server,
    keys: Callable[[str], Keys],
    queues: Sequence[str],
    ids: Sequence[bytes],
    lost: bytes | None = None,
) -> Iterator[tuple[str, bytes, Row]]:
    """The messages of *queues* with these ids, each with its queue and its id, in the order of the queues and
    ids.

    Arguments:
        keys: those of a queue.
        lost: as in :func:`read_pages`.
    """
    wanted = product(queues, ids)
    while some := list(islice(wanted, IDS_PER_CALL)):
        calls = [(FIND, keys(queue), (id, b"", *_A_FEW)) for queue, id in some]
        for (queue, id), reply in zip(some, run_each(server, calls), strict=True):
            while reply:
                after, *found = reply
                for name, score, stored in _threes(found):
                    if (row := _row(name, float(score), stored, lost)) is not None:
                        yield queue, id, row
                args = (id, after, MESSAGES_PER_CALL, BYTES_PER_CALL)
                reply = after and FIND(server, keys(queue), args)


def _threes(found: Sequence[Any]) -> Iterator[tuple[bytes, bytes, Any]]:
    return zip(found[::3], found[1::3], found[2::3], strict=True)


def id_bytes(id: str) -> bytes:
    """An id, for a script. JSON may have an id that UTF-8 has no bytes for. No stored message has such an
    id."""
    return id.encode(errors="surrogatepass")


def take_out(
    server: Caller,
    keys: Sequence[str],
    begin: Sequence[Argument],
    parts: Iterable[Sequence[KeptT]],
    of_each: Callable[[KeptT], Sequence[Argument]],
    stays: Callable[[KeptT, str], object],
) -> Iterator[KeptT]:
    """Take out messages of an archive, part by part. Yields those that were still there.

    Arguments:
        keys: the index, the ready list of step 0, and the wake zset.
        begin: the first ARGV: what is done, and the separator.
        of_each: the ARGV of a message.
        stays: called with each one that is not requeued because another message holds its key, and the id of
            that message.
    """
    for some in parts:
        reply = TAKE_OUT(server, keys, (*begin, *chain.from_iterable(map(of_each, some))))
        for message, done in zip(some, reply, strict=True):
            if done == 1:
                yield message
            elif isinstance(done, bytes):
                stays(message, done.decode(errors="replace"))
