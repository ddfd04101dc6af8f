"""Failures: what is noted of one beside its message, and what the log and Prometheus are told of it. A dead
letter has a reason, which is of some kind."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from typing import NamedTuple

from kombu_redisdelay import metrics
from kombu_redisdelay.broker.message import task_and_id, which
from kombu_redisdelay.broker.options import KeepFailed, Options
from kombu_redisdelay.broker.store import Store
from kombu_redisdelay.words import cut, printable

logger = logging.getLogger(__name__)

#: The longest text and the longest traceback, in characters.
LONGEST_TEXT, LONGEST_TRACEBACK = 1000, 8000

#: The longest name of a task or of a class of exceptions, in characters.
LONGEST_NAME = 200

#: What may be lost of a task that is known to have returned (:attr:`Failure.returned`).
RETURNED = (CONTINUATION := "continuation", RESULT := "result", HOOK := "hook")

#: The reason of an entry that another program has written among dead letters.
FOREIGN = "not a dead letter of ours"

#: How the reason of a dead letter begins -> its kind. Scripts write the first and the third one.
_KINDS = {
    "delivery limit": "delivery-limit",
    "rejected": "rejected",
    "no due time": "no-due-time",
    "no worker knows": "unknown-task",
    FOREIGN: "foreign",
}

#: The kind of the others: the reason says what is wrong with the message.
UNREADABLE = "unreadable"

#: No task is tried more often than this.
MOST_TRIES = 10**9

#: How much of a long traceback is kept from its beginning, in characters. The rest is from its end, which
#: says what has happened.
_FROM_BEGINNING = LONGEST_TRACEBACK // 4


class Failure(NamedTuple):
    """Why a task has failed for good, or could not be ended though it has returned. All texts are bounded.

    Attributes:
        id: that of the message, as it is in Redis.
        task: name of the task.
        error: name of the class of the exception.
        text: what the exception says.
        traceback: where it was raised; empty if that is unknown.
        worker: name of the Celery worker.
        tries: how often the task was tried, with this time, as Celery counts its retries.
        started: when this try began, seconds since the epoch by the worker's clock; ``None`` if it did not
            begin, or nobody knows.
        returned: what was lost if the function of the task is known to have returned, one of
            :data:`RETURNED`: ``"continuation"``, what is linked to the task, the rest of its chain or the
            body of its chord, perhaps in part, and the result, too; ``"result"``, only that; ``"hook"``,
            nothing: what runs afterwards has raised an error. Empty if it has failed, or nobody knows.
    """

    id: str
    task: str
    error: str
    text: str
    traceback: str
    worker: str
    tries: int
    started: float | None
    returned: str = ""

    @property
    def group(self) -> str:
        """Task and error, as they are in Redis."""
        return f"{self.task} {self.error}"

    @property
    def details(self) -> str:
        """The rest, as it is in Redis: JSON in one line. What was lost of a task that has returned is its
        first member, which is read without the others (lua/include/archive.lua)."""
        return json.dumps(
            {
                **({"returned": self.returned} if self.returned else {}),
                "text": self.text,
                "traceback": self.traceback,
                "worker": self.worker,
                "tries": self.tries,
                "started": self.started,
            }
        )


def text_of(error: object) -> str:
    """What *error* says, as far as it is kept. It may be of any size, and may not be a text at all."""
    try:
        return str(error)[:LONGEST_TEXT]
    except BaseException:
        # Code of the application, in the main process of a worker: it must not end that, whatever it raises.
        return ""


def tries_after(retries: object) -> int:
    """How often a task was tried that Celery, or whoever wrote its message, says was retried so often."""
    return min(max(retries, 0), MOST_TRIES - 1) + 1 if isinstance(retries, int) else 1


def shortened_traceback(traceback: object) -> str:
    """A *traceback* as far as it is kept; empty if it is no text."""
    if not isinstance(traceback, str) or len(traceback) <= LONGEST_TRACEBACK:
        return traceback if isinstance(traceback, str) else ""
    gap = "\n...\n"
    return traceback[:_FROM_BEGINNING] + gap + traceback[_FROM_BEGINNING + len(gap) - LONGEST_TRACEBACK :]


def name(text: object) -> str:
    """The name of a task or a class as it is kept: it has no whitespace, and is not empty."""
    return "".join(printable(str(text)[:LONGEST_NAME]).split())[:LONGEST_NAME] or "-"


def kind_of_reason(reason: str) -> str:
    """The kind of the *reason* of a dead letter, a word."""
    return next((kind for begin, kind in _KINDS.items() if reason.startswith(begin)), UNREADABLE)


def report_dead(store: Store, options: Options, queue: str, dead: int, briefs: Sequence[bytes]) -> None:
    """Log that *dead* messages of *queue* have reached the delivery limit. *briefs* are of some of them."""
    if dead:
        metrics.dead_lettered(queue, dead)
        store.remember(queue)
        logger.error(
            "%d message(s) of queue %r reached the delivery limit of %d and are now dead letters%s",
            dead,
            queue,
            options.delivery_limit,
            which(map(task_and_id, briefs), dead),
        )


def report_returned(queue: str, failure: Failure) -> None:
    """Log what was lost of a task that has returned, and why."""
    why = printable(" ".join(cut(f"{failure.error}: {failure.text}").split()))
    names = which([f"{failure.task}[{failure.id}]"], 1)
    if failure.returned == CONTINUATION:
        logger.error(
            "A task of queue %r has returned, and what follows it was not sent, or not all of it: what is "
            "linked to it, the rest of its chain, or the body of its chord. Its result was lost, too (%s). "
            "It does not run again by itself%s",
            queue,
            why,
            names,
        )
    elif failure.returned == RESULT:
        logger.warning(
            "A task of queue %r has returned, and its result was lost (%s). It does not run again by "
            "itself%s",
            queue,
            why,
            names,
        )
    elif failure.returned == HOOK:
        logger.warning(
            "A task of queue %r has returned, and what ran afterwards has raised an error, such as its "
            "on_success (%s). It does not run again by itself%s",
            queue,
            why,
            names,
        )


def report_not_kept(queue: str, failure: Failure) -> None:
    """Log that a task that has failed, or that has returned and could not be ended, could not be kept."""
    metrics.not_kept(queue)
    if failure.returned:
        logger.error(
            "What was lost of a task of queue %r that has returned is in this log only: Redis is out of "
            "memory, or another program has written to the keys of failed tasks%s",
            queue,
            which([f"{failure.task}[{failure.id}]"], 1),
        )
        return
    logger.error(
        "A failed task of queue %r could not be kept: Redis is out of memory, or another program has written "
        "to the keys of failed tasks%s",
        queue,
        which([f"{failure.task}[{failure.id}]"], 1),
    )


def report_failed_dropped(queue: str, keep: KeepFailed, dropped: int) -> None:
    """Log that *dropped* failed tasks of *queue* were dropped, because more were kept than a worker keeps."""
    if dropped:
        logger.warning(
            "Dropped %d failed task(s) of queue %r, the oldest first: it keeps no more. keep_failed of this "
            "worker says count=%d, bytes=%d, and the smallest of all workers holds. This is said once in ten "
            "minutes at most",
            dropped,
            queue,
            keep.count,
            keep.bytes,
        )


def report_dropped(options: Options, queue: str, dropped: int) -> None:
    """Log that *dropped* dead letters of *queue* were dropped because newer ones came."""
    if dropped:
        logger.error(
            "Queue %r has more than dead_letter_limit=%d dead letters: dropped the oldest %d",
            queue,
            options.dead_letter_limit,
            dropped,
        )
