"""Finished tasks: the line that is kept of each, how a consumer sends it, and how an operator reads it.

They are no messages. Lines are sent together; nobody waits for that.
"""

from __future__ import annotations

import logging
import os
import re
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from threading import Event, Lock, Thread
from typing import Any

from kombu_redisdelay import metrics
from kombu_redisdelay.broker.options import KeepFinished
from kombu_redisdelay.broker.paging import read_back, walk
from kombu_redisdelay.broker.server.scripts import FINISH
from kombu_redisdelay.broker.server.wire import answers
from kombu_redisdelay.broker.store import Store

logger = logging.getLogger(__name__)

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

#: With so many lines of a queue, they are sent at once.
TOGETHER = 100

#: Seconds after which they are sent also if they are fewer.
SEND_AFTER = 0.5

#: Lines of a queue that one script adds.
LINES_PER_CALL = 200

#: Lines of a queue that may wait to be sent. Further ones are dropped, and counted.
MOST_WAITING = 10_000

#: What finish.lua returns for lines that are not kept.
_NOT_KEPT = 2


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
        with it, and with what :attr:`is_sure <kombu_redisdelay.broker.paging.ListEntry.is_sure>` says.

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
        if left is None:
            [left] = self.counts([queue])
        yield from read_back(self._store.server, self._store.keys(queue).finished, left)


class Finishing:
    """Sends the lines of a consumer. Any thread may add some.

    A thread sends them, while there are any: whoever adds one does not wait for Redis. So at most a second is
    lost if the process is killed. The lines go the way of acks: over the same connection, and again over the
    next one if their reply was lost.

    Arguments:
        consumer: its name.
    """

    def __init__(self, store: Store, keep: KeepFinished, consumer: str) -> None:
        self._store = store
        self._keep = keep
        self._consumer = consumer
        self._lines: dict[str, deque[str]] = {}
        self._are_many = Event()
        self._is_at_work = False
        #: Whether a thread is at work, and whether lines are being sent.
        self._starting, self._sending = Lock(), Lock()
        #: Of the lines that were sent last.
        self._number = 0
        self._is_refused = False
        self._pid = os.getpid()

    def add(self, queue: str, task: FinishedTask) -> None:
        """Keep a line of a *task* that has come from *queue*. It is sent soon."""
        lines = self._lines.get(queue)
        if lines is None:
            lines = self._lines.setdefault(queue, deque())
        if len(lines) >= MOST_WAITING:
            self._drop(queue, 1)
            return
        lines.append(task.line)
        if len(lines) == TOGETHER:
            self._are_many.set()
        if not self._is_at_work:
            self._start()

    def send(self) -> None:
        """Send the lines that there are. They have been written when this returns, if Redis can be
        reached. In a forked child this does nothing: they are the parent's."""
        if self._pid != os.getpid():
            return
        with self._sending:
            for queue, lines in list(self._lines.items()):
                while some := [lines.popleft() for _ in range(min(len(lines), LINES_PER_CALL))]:
                    self._send(queue, some)

    def _send(self, queue: str, lines: list[str]) -> None:
        def told(reply: Any) -> None:
            if reply == _NOT_KEPT:
                self._drop(queue, len(lines))
            else:
                self._is_refused = False

        keys = self._store.keys(queue)
        self._number += 1
        args = FINISH.arguments(lines, number=self._number, count=self._keep.count, age_ms=self._keep.age_ms)
        used = (keys.finished, keys.finished_sent(self._consumer))
        self._store.server.ack(
            FINISH.as_ack(self._store.server, queue, "", used, args, is_once=True, told=told)
        )

    def _drop(self, queue: str, count: int) -> None:
        metrics.finished_not_kept(queue, count)
        if not self._is_refused:
            self._is_refused = True
            logger.error(
                "Finished tasks of queue %r are not kept now: Redis is out of memory or out of reach, or "
                "another program has written to their key. The tasks are done all the same.",
                queue,
            )

    def _start(self) -> None:
        with self._starting:
            if not self._is_at_work:
                self._is_at_work = True
                Thread(target=self._work, name="redisdelay-finished", daemon=True).start()

    def _work(self) -> None:
        while True:
            self._are_many.wait(SEND_AFTER)
            self._are_many.clear()
            try:
                self.send()
            except Exception:
                logger.exception("Could not send what finished tasks are kept of")
            with self._starting:
                # In this order: who adds a line meanwhile sees that it has to start another thread.
                self._is_at_work = False
                if not any(self._lines.values()):
                    return
                self._is_at_work = True
