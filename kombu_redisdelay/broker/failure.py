"""What is noted of a failure of a task, beside its message."""

from __future__ import annotations

import json
from typing import NamedTuple

from kombu_redisdelay.broker.printable import printable

#: The longest text and the longest traceback, in characters.
LONGEST_TEXT, LONGEST_TRACEBACK = 1000, 8000

#: The longest name of a task or of a class of exceptions, in characters.
LONGEST_NAME = 200

#: What may be lost of a task that is known to have returned (:attr:`Failure.returned`).
RETURNED = (CONTINUATION := "continuation", RESULT := "result", HOOK := "hook")

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
        first member, which is read without the others (lua/include/failed.lua)."""
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
