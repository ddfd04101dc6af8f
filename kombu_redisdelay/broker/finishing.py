"""Keeps a line of each task that a consumer has finished. Lines are sent together; nobody waits for that."""

from __future__ import annotations

import logging
import os
from collections import deque
from threading import Event, Lock, Thread
from typing import Any

from kombu_redisdelay import metrics
from kombu_redisdelay.broker.finished import FinishedTask
from kombu_redisdelay.broker.options import KeepFinished
from kombu_redisdelay.broker.server.scripts import FINISH
from kombu_redisdelay.broker.store import Store

logger = logging.getLogger(__name__)

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
