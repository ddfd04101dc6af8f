"""Finished tasks: the line that is kept of each, and how an operator reads them. They are no messages."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from kombu_redisdelay.broker.portions import BYTES_PER_CALL, MESSAGES_PER_CALL
from kombu_redisdelay.broker.server.scripts import NEWEST
from kombu_redisdelay.broker.server.wire import Argument, answers
from kombu_redisdelay.broker.store import Store
from kombu_redisdelay.broker.walk import walk

#: The longest id in a line, in characters.
LONGEST_ID = 200

#: How a task has ended. One that was retried or requeued comes again; the last three have not run, or not to
#: their end.
OUTCOMES = (
    SUCCEEDED := "succeeded",
    FAILED := "failed",
    RETRIED := "retried",
    IGNORED := "ignored",
    REQUEUED := "requeued",
    REVOKED := "revoked",
    EXPIRED := "expired",
    TERMINATED := "terminated",
)

#: A line, as :attr:`FinishedTask.line` writes it. Longer numbers are not ours.
_LINE = re.compile(rb"(\d{1,15}) (\d{1,15}|-) (\d{1,15}|-) (\d{1,9}) (\w+) (\S+) (\S+) (\S+) (.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class FinishedTask:
    """A task that Celery has run to an end, or has dropped.

    Attributes:
        finished_ms: when, ms since the epoch by the server's clock.
        waited: for how many seconds it was ready before it began; ``None`` if that is unknown.
        ran: for how many seconds it ran; ``None`` if it did not, or nobody knows.
        tries: how often it was tried, as Celery counts its retries.
        outcome: how it has ended, in a word.
        error: name of the class of the exception; "-" if there was none.
        task, worker: their names, without whitespace.
        id: that of its message.
    """

    finished_ms: int
    waited: float | None
    ran: float | None
    tries: int
    outcome: str
    error: str
    task: str
    worker: str
    id: str

    @property
    def line(self) -> str:
        """As it is in Redis: in the order of the fields, with times in microseconds but for the first one.
        The id is the last one, because it may have spaces."""
        waited, ran = _microseconds(self.waited), _microseconds(self.ran)
        numbers = f"{self.finished_ms} {waited} {ran} {self.tries}"
        return f"{numbers} {self.outcome} {self.error} {self.task} {self.worker} {self.id[:LONGEST_ID]}"

    @classmethod
    def of(cls, line: bytes) -> FinishedTask | None:
        """What a *line* says; ``None`` if it is not ours: another program may have written anything."""
        found = _LINE.fullmatch(line)
        if found is None:
            return None
        at, waited, ran, tries, *texts = found.groups()
        return cls(
            int(at),
            _seconds(waited),
            _seconds(ran),
            int(tries),
            *(text.decode(errors="replace") for text in texts),
        )


def _microseconds(seconds: float | None) -> int | str:
    return "-" if seconds is None else round(seconds * 1e6)


def _seconds(microseconds: bytes) -> float | None:
    return None if microseconds == b"-" else int(microseconds) / 1e6


class FinishedTasks:
    """The lines about finished tasks in *store*, queue by queue."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def counts(self, queues: Sequence[str]) -> list[int]:
        """How many lines each of *queues* has."""
        return answers(self._store.server, (("LLEN", self._store.keys(queue).finished) for queue in queues))

    def oldest(
        self, queue: str, skip: int = 0, texts: Sequence[str] = ()
    ) -> Iterator[tuple[bytes, int, bool]]:
        """The lines of *queue*, the oldest first, read page by page. Each comes with how many were passed,
        with it, and with what :attr:`Entry.is_sure <kombu_redisdelay.broker.walk.Entry.is_sure>` says.

        Arguments:
            skip: how many to pass over first.
            texts: only lines that contain one of these texts.
        """
        for entry in walk(self._store.server, [self._store.keys(queue).finished], texts, skip=skip):
            yield entry.data, entry.taken_before + 1, entry.is_sure

    def newest(self, queue: str, left: int | None = None) -> Iterator[tuple[bytes, int]]:
        """The lines of *queue*, the newest first, read page by page. Each comes with how many of the oldest
        ones are left to read after it.

        Arguments:
            left: how many of the oldest ones to read; ``None`` for all.
        """
        keys = (self._store.keys(queue).finished,)
        while left is None or left > 0:
            start: Argument = "" if left is None else left
            left, lines = NEWEST(self._store.server, keys, (start, MESSAGES_PER_CALL, BYTES_PER_CALL))
            for number, line in enumerate(lines, 1):
                yield line, left + len(lines) - number
