"""The actions of an operator on dead letters, and other messages that are kept in the same way: look,
requeue, remove."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from kombu_redisdelay.broker.paging import take_out, walk
from kombu_redisdelay.broker.portions import portions
from kombu_redisdelay.broker.server.scripts import CLEAR, NEWEST, REMOVE_DEAD
from kombu_redisdelay.broker.server.wire import Argument, answers
from kombu_redisdelay.broker.store import Store

#: One script reads or removes no more than this, so that it never keeps Redis from its other clients for
#: long. To remove a letter, it may have to look at all of them.
LETTERS_PER_CALL = 20
LETTER_BYTES_PER_CALL = 1024 * 1024

#: The first line of a dead letter (lua/include/dead.lua). Longer numbers are not ours.
_LINE = re.compile(rb"(\d{1,18}) (\d{1,18}) (\d{1,9}) ([^\n]*)\n")

#: What is shown as the reason of an entry that has no such line.
FOREIGN = "not a dead letter of ours"


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A dead letter.

    Attributes:
        entry: the dead letter as it is in Redis.
        since_ms: when it became one, ms since the epoch; 0 if the entry is not a dead letter of ours.
        payload: the message as its publisher wrote it.
    """

    queue: str
    entry: bytes
    since_ms: int
    failures: int
    step: int
    reason: str
    payload: bytes

    @classmethod
    def of(cls, queue: str, entry: bytes) -> DeadLetter:
        line = _LINE.match(entry)
        if line is None:
            return cls(queue, entry, 0, 0, 0, FOREIGN, entry)
        since_ms, failures, step, reason = line.groups()
        reason_text = reason.decode(errors="replace")
        return cls(queue, entry, int(since_ms), int(failures), int(step), reason_text, entry[line.end() :])


class DeadLists:
    """The dead letters in *store*, queue by queue.

    Arguments:
        state: the state of the messages, one of :data:`~kombu_redisdelay.broker.keys.KEPT`.
    """

    def __init__(self, store: Store, state: str = "dead") -> None:
        self._store = store
        self._state = state

    def counts(self, queues: Sequence[str]) -> list[int]:
        """How many dead letters each of *queues* has."""
        return answers(self._store.server, (("LLEN", self._key(queue)) for queue in queues))

    def walk(self, queue: str, skip: int = 0) -> Iterator[tuple[DeadLetter, bool]]:
        """The dead letters of *queue*, the oldest first, read page by page. Each comes with what
        :attr:`Entry.is_sure <kombu_redisdelay.broker.paging.Entry.is_sure>` says, and
        :func:`~kombu_redisdelay.broker.paging.walk` says what may come twice. Not more of them are read than
        there are at the beginning: one that is requeued may die again, and must not be requeued for ever.

        Arguments:
            skip: how many to pass over first.
        """
        key = self._key(queue)
        [count] = self.counts([queue])
        known: set[int] = set()
        for entry in walk(self._store.server, [key], size=LETTERS_PER_CALL, skip=skip):
            identity = hash(entry.data)
            if identity not in known:
                if len(known) >= count - skip:
                    return
                known.add(identity)
            yield DeadLetter.of(queue, entry.data), entry.is_sure

    def newest(self, queue: str, left: int | None = None) -> Iterator[tuple[DeadLetter, int]]:
        """The dead letters of *queue*, the newest first, read page by page. Each comes with how many of the
        oldest ones are left to read after it. Those that come meanwhile are not included.

        Arguments:
            left: how many of the oldest ones to read; ``None`` for all.
        """
        key = self._key(queue)
        while left is None or left > 0:
            start: Argument = "" if left is None else left
            left, letters = NEWEST(
                self._store.server, (key,), (start, LETTERS_PER_CALL, LETTER_BYTES_PER_CALL)
            )
            for number, letter in enumerate(letters, 1):
                yield DeadLetter.of(queue, letter), left + len(letters) - number

    def take_out(
        self,
        queue: str,
        how: str,
        letters: Iterable[DeadLetter],
        stays: Callable[[DeadLetter, str], object] = lambda letter, holder: None,
    ) -> Iterator[DeadLetter]:
        """Do what *how* says, :data:`~kombu_redisdelay.broker.paging.REQUEUE` or ``REMOVE``, with *letters*
        of *queue*. Those that are requeued have 0 failures. Yields those that were still there.

        Arguments:
            stays: called with each letter that is not requeued because another message holds its key, and the
                id of that message.
        """
        keys = self._store.keys(queue)
        used = (self._key(queue), keys.ready, keys.wake)
        parts = portions(letters, _size, LETTERS_PER_CALL, LETTER_BYTES_PER_CALL)
        begin = (how, keys.separator)
        return take_out(
            self._store.server, REMOVE_DEAD, used, begin, parts, lambda letter: (letter.entry,), stays
        )

    def clear(self, queue: str) -> int:
        """Remove all dead letters of *queue*. Returns how many there were."""
        return int(CLEAR(self._store.server, (self._key(queue),), (1, 0)))

    def _key(self, queue: str) -> str:
        return self._store.keys(queue).kept(self._state)


def _size(letter: DeadLetter) -> int:
    return len(letter.entry)
