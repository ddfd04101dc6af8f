"""Reads a list in Redis page by page, while others add to it and take from it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from kombu_redisdelay.broker.portions import BYTES_PER_CALL, MESSAGES_PER_CALL
from kombu_redisdelay.broker.server.scripts import PAGE_LIST, run_each
from kombu_redisdelay.broker.server.server import Server
from kombu_redisdelay.broker.server.wire import Argument

#: How often a walk begins anew because its bookmarks are lost. They are lost when everything was taken, so
#: nothing is left that must be read. The limit keeps a busy queue from holding a reader for ever.
MOST_RESTARTS = 5

#: What ``lua/page_list.lua`` returns.
Reply = Sequence[Any]


@dataclass(frozen=True, slots=True)
class Entry:
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
) -> Iterator[Entry]:
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
                yield Entry(taken_before, data, is_sure)
            if next == b"":
                return
            reader = _Reader(next, last, mark, 0, bookmarks or reader.bookmarks)
