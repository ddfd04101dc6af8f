"""Reads what is kept of finished tasks, queue by queue, the oldest or the newest first."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha1
from typing import Any

from kombu_redisdelay.broker.finished import FinishedTask, FinishedTasks
from kombu_redisdelay.broker.store import Store
from kombu_redisdelay.operations.content import Content
from kombu_redisdelay.operations.readers import Entry, Look, QueueByQueue

#: The reason of a line that another program has written.
FOREIGN = "not a line of ours"


@dataclass(frozen=True)
class _FinishedEntry(Entry):
    """A line about a finished task."""

    @cached_property
    def content(self) -> Content:
        return Content(self.unnamed, None if self.raw is None else self.raw.task)


class FinishedReader(QueueByQueue):
    """Tasks that Celery has run to an end, or has dropped."""

    def counts(self, store: Store, names: Sequence[str]) -> Sequence[int]:
        return FinishedTasks(store).counts(names)

    def of_queue(self, store: Store, name: str, passed: int | None, look: Look) -> Iterator[Entry]:
        tasks = FinishedTasks(store)
        if look.newest_first:
            for line, left in tasks.newest(name, passed):
                yield _entry(name, line, left)
            return
        for line, number, is_sure in tasks.oldest(name, passed or 0, look.texts):
            yield _entry(name, line, number, is_sure)


def _entry(name: str, line: bytes, number: int, is_sure: bool = True) -> Entry:
    found = FinishedTask.of(line)
    return _FinishedEntry(
        name,
        line,
        found,
        unnamed=sha1(line, usedforsecurity=False).hexdigest() if found is None else found.id,
        cursor=(name, number),
        moment_ms=None if found is None else found.finished_ms,
        is_sure=is_sure,
        of_state=lambda content: _known(found),
    )


def _known(found: FinishedTask | None) -> Mapping[str, Any]:
    if found is None:
        return {"reason": FOREIGN}
    return {
        "outcome": found.outcome,
        "waited": found.waited,
        "ran": found.ran,
        "tries": found.tries,
        "error": "" if found.error == "-" else found.error,
        "worker": found.worker,
    }
