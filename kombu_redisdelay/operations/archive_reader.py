"""Reads what is over: failed tasks, dead letters and finished tasks, queue by queue, the oldest or the newest
first."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial
from hashlib import sha1
from itertools import groupby
from math import isfinite
from operator import itemgetter
from typing import Any

from kombu_redisdelay.broker.archive import UNKNOWN, Archive, Archived, Kind, kind_of
from kombu_redisdelay.broker.failure import name as name_of
from kombu_redisdelay.broker.finished import FinishedTask, FinishedTasks
from kombu_redisdelay.broker.keys import FAILED
from kombu_redisdelay.broker.message import from_ms
from kombu_redisdelay.broker.paging import Part, Row
from kombu_redisdelay.broker.store import Store
from kombu_redisdelay.operations.content import Content
from kombu_redisdelay.operations.readers import Cursor, Entry, Look, QueueByQueue, Span

#: Added to the reason of a task that cannot be requeued.
WITHOUT_MESSAGE = "kept without its message, which is too large, or lost"

#: Of so many kinds of failures it is known whether they match.
MOST_KINDS = 1000


@dataclass(frozen=True)
class _ArchiveEntry(Entry):
    """A failed task or a dead letter. The name of its task is the one that is noted of its failure, if there
    is one: a message may not say it (version 1 of Celery's protocol has it in the body), or may not have been
    kept."""

    @cached_property
    def content(self) -> Content:
        if not self.raw.is_whole:
            return Content(self.raw.id, self.raw.failure.task)
        said = Content.of(self.payload, otherwise=self.unnamed)
        noted = kind_of(self.raw.head)
        if noted is None or noted.task == UNKNOWN:
            return said
        # A message has it whole.
        is_said = said.task is not None and name_of(said.task) == noted.task
        return said if is_said else replace(said, task=noted.task)

    @property
    def tasks(self) -> Sequence[str]:
        """With the name that its group has."""
        names = super().tasks
        return [*names, *map(name_of, names or [""])]


class ArchiveReader:
    """Tasks that have failed for good, or dead letters.

    Arguments:
        state: ``"failed"`` or ``"dead"``.
    """

    def __init__(self, state: str) -> None:
        self._state = state

    def count(self, store: Store, names: Sequence[str], span: Span) -> int:
        return sum(Archive(store, self._state).counts(names, *span))

    def read(self, store: Store, look: Look) -> Iterator[Entry]:
        tasks, entry = Archive(store, self._state), partial(_entry, self._state)
        names = look.names
        if look.start is not None:
            names = names[names.index(look.start[0]) :]
        # Most queues have none.
        counts = (tasks.returned if look.only_returned else tasks.counts)(names, *look.span)
        names = [name for name, count in zip(names, counts, strict=True) if count]
        if look.ids is not None:
            yield from map(entry, tasks.find_all(names, look.ids))
            return
        for name in names:
            if look.of_failed is None:
                yield from map(entry, tasks.iter(name, _part(look, name), look.only_returned))
            else:
                yield from _by_head(tasks, entry, name, look, look.of_failed)

    def cursor(self, values: Sequence[Any]) -> Cursor:
        name, since_ms, member = values
        str(member).encode("latin-1")
        if not isfinite(since_ms):
            raise ValueError(since_ms)
        return str(name), float(since_ms), str(member)


def _by_head(
    tasks: Archive,
    entry: Callable[[Archived], Entry],
    name: str,
    look: Look,
    of_failed: Callable[[Kind], bool | None],
) -> Iterator[Entry]:
    """Reads the beginnings of the heads, and only those tasks whole of which these do not tell whether they
    match."""

    tells = lru_cache(MOST_KINDS)(lambda kind: None if kind is None else of_failed(kind))
    for page in tasks.heads(name, _part(look, name), look.only_returned):
        of_page = [tells(kind_of(row.stored)) for row in page]
        unclear = [row.name for row, matches in zip(page, of_page, strict=True) if matches is None]
        whole = tasks.named(name, unclear) if unclear else {}
        for matches, run in groupby(zip(page, of_page, strict=True), itemgetter(1)):
            rows = [row for row, _ in run]
            if matches is None:
                yield from (entry(whole[row.name]) for row in rows if row.name in whole)
            elif matches:
                yield from (_brief_entry(name, row, matches=True) for row in rows)
            else:
                yield _brief_entry(name, rows[-1], matches=False, stands_for=len(rows))


def _brief_entry(queue: str, row: Row, matches: bool, stands_for: int = 1) -> Entry:
    """A task of which only the beginning of its head was read."""
    task = Archived(queue, row.name, row.at_ms, head=row.stored, stored=b"")
    return _ArchiveEntry(
        *(queue, b"", task, ""),
        cursor=_cursor(task),
        moment_ms=task.since_ms,
        matches=matches,
        stands_for=stands_for,
    )


def _part(look: Look, name: str) -> Part:
    """What is read of a queue."""
    from_ms, before_ms = look.span
    part = Part(from_ms, before_ms, from_last=look.newest_first)
    if look.start is None or look.start[0] != name:
        return part
    _, at_ms, member = look.start
    if look.newest_first:
        is_before = before_ms is None or at_ms < before_ms
        return part._replace(before_ms=at_ms, until=member.encode("latin-1")) if is_before else part
    is_behind = from_ms is None or at_ms >= from_ms
    return part._replace(from_ms=at_ms, after=member.encode("latin-1")) if is_behind else part


def _cursor(task: Archived) -> Cursor:
    return task.queue, task.since_ms, task.name.decode("latin-1")


def _entry(state: str, found: Archived) -> Entry:
    known = _known_of_failed if state == FAILED else _known_of_dead
    return _ArchiveEntry(
        found.queue,
        found.payload,
        found,
        unnamed=found.id,
        cursor=_cursor(found),
        moment_ms=found.since_ms,
        of_state=lambda content: known(found),
    )


def _reason(found: Archived, noted: str) -> str:
    return noted if found.is_whole else f"{noted}, {WITHOUT_MESSAGE}"


def _known_of_dead(found: Archived) -> Mapping[str, Any]:
    return {"reason": _reason(found, found.failure.text), "failures": found.failures}


def _known_of_failed(found: Archived) -> Mapping[str, Any]:
    failure = found.failure
    started = failure.started
    return {
        "reason": _reason(found, failure.error),
        "failures": found.failures,
        "error": failure.error,
        "text": failure.text,
        "traceback": failure.traceback,
        "worker": failure.worker or None,
        "tries": failure.tries,
        "started": None if started is None else from_ms(started * 1000),
        "returned": failure.returned,
    }


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
                yield _finished_entry(name, line, left)
            return
        for line, number, is_sure in tasks.oldest(name, passed or 0, look.texts):
            yield _finished_entry(name, line, number, is_sure)


def _finished_entry(name: str, line: bytes, number: int, is_sure: bool = True) -> Entry:
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
