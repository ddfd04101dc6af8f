"""What an operator does with dead letters: look at them, give them back, drop them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from kombu_redisdelay.broker.server.replies import checked
from kombu_redisdelay.broker.server.scripts import CLEAR, PAGE_DEAD, REMOVE_DEAD
from kombu_redisdelay.broker.store import Store
from kombu_redisdelay.broker.walk import walk

#: One script reads or removes no more than this, so that it never keeps Redis from its other clients for
#: long. To remove a letter, it may have to look at all of them.
LETTERS_PER_CALL = 20
LETTER_BYTES_PER_CALL = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Buried:
    """A dead letter.

    Attributes:
        entry: the dead letter as it is in Redis.
        died_ms: ms since the epoch.
        payload: the message as its publisher wrote it.
    """

    queue: str
    entry: bytes
    died_ms: int
    deliveries: int
    step: int
    reason: str
    payload: bytes

    @classmethod
    def of(cls, queue: str, entry: bytes) -> Buried:
        line, _, payload = entry.partition(b"\n")
        died_ms, deliveries, step, reason = line.split(b" ", 3)
        return cls(
            queue, entry, int(died_ms), int(deliveries), int(step), reason.decode(errors="replace"), payload
        )


class Graveyard:
    """The dead letters in *store*, queue by queue."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def count(self, queues: Sequence[str]) -> int:
        commands = (("LLEN", self._store.keys(queue).dead) for queue in queues)
        return sum(checked(self._store.server.call_all(*commands)))

    def iter(self, queue: str) -> Iterator[Buried]:
        """The dead letters of *queue*, the oldest first, read page by page."""
        # Counted from the tail: dead letters that come meanwhile are added to the head, and shift nothing.
        passed = 0
        while page := self._page(queue, passed):
            yield from page
            passed += len(page)

    def walk(self, queue: str) -> Iterator[tuple[Buried, bool]]:
        """As :meth:`iter`, exact while others remove dead letters, too. Each comes with what
        :attr:`Entry.is_sure <kombu_redisdelay.broker.walk.Entry.is_sure>` says."""
        for entry in walk(self._store.server, [self._store.keys(queue).dead], size=LETTERS_PER_CALL):
            yield Buried.of(queue, entry.data), entry.is_sure

    def requeue(self, queue: str, wanted: Callable[[Buried], bool]) -> int:
        """Move the dead letters that are *wanted* to the tails of their ready lists, with a delivery count of
        0. Dead letters that come meanwhile stay. Returns how many were moved."""
        return self._remove(queue, "requeue", wanted)

    def drop(self, queue: str, wanted: Callable[[Buried], bool]) -> int:
        """Remove the dead letters that are *wanted*. Dead letters that come meanwhile stay. Returns how
        many were removed."""
        return self._remove(queue, "drop", wanted)

    def clear(self, queue: str) -> int:
        """Remove all dead letters of *queue*. Returns how many there were."""
        key = self._store.keys(queue).dead
        return int(CLEAR(self._store.server, (key,), (1, 0)))

    def _page(self, queue: str, passed: int) -> list[Buried]:
        key = self._store.keys(queue).dead
        entries = PAGE_DEAD(self._store.server, (key,), (passed, LETTERS_PER_CALL, LETTER_BYTES_PER_CALL))
        return [Buried.of(queue, entry) for entry in entries]

    def _remove(self, queue: str, how: str, wanted: Callable[[Buried], bool]) -> int:
        keys = self._store.keys(queue)
        removed = kept = 0
        # A requeued message may die again meanwhile. It must not be requeued twice.
        remaining = self.count([queue])
        while remaining > 0 and (page := self._page(queue, kept)):
            chosen = [letter.entry for letter in page[:remaining] if wanted(letter)]
            remaining -= len(page)
            kept += len(page) - len(chosen)
            if chosen:
                removed += sum(
                    REMOVE_DEAD(
                        self._store.server,
                        (keys.dead, keys.ready, keys.wake),
                        (how, keys.separator, *chosen),
                    )
                )
        return removed
