"""What of a message a selection can look at: each filter is an option, a field of a form, and an argument."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from kombu_redisdelay.broker.archive import UNKNOWN, Kind
from kombu_redisdelay.broker.failure import LONGEST_NAME, RETURNED
from kombu_redisdelay.broker.finished import OUTCOMES
from kombu_redisdelay.operations.content import arguments_of, has_argument, is_related, is_task
from kombu_redisdelay.operations.fair import fits_key
from kombu_redisdelay.operations.readers import Entry, is_worker
from kombu_redisdelay.operations.states import FAILED, FINISHED, UNACKED
from kombu_redisdelay.operations.typed import fits, parse_distance
from kombu_redisdelay.words import printable

#: The value of the filter ``returned`` for all that is not known to have returned.
NOT_RETURNED = '""'

#: What may stand in a pattern for a character that is not noted.
_MAY_BE_LOST = re.compile(r"[\s?\[]")


@dataclass(frozen=True, slots=True)
class Filter:
    """A field of a selection that looks into messages. It is an option and a field of a form, too.

    Attributes:
        name: of the field.
        help: what it is for, in the help of the command line.
        said: what stands before a value in a sentence, such as "of the task".
        matches: whether a message matches a value.
        placeholder: an example of a value.
        is_pattern: whether a value may have wildcards.
        check: raises ``ValueError`` for a text that is no value.
        is_contained: whether each message that matches a value contains it, or the parts between its ``*``
            and ``?``.
        reads_arguments: whether it tells something of the arguments of tasks, which may hold secrets.
        states: the states whose messages may match; empty for all.
        of_failed: whether a failed task matches, by its kind as it is noted: it returns ``None`` where that
            does not tell. ``None`` if it never does.
    """

    name: str
    help: str
    said: str
    matches: Callable[[Entry, str], bool]
    placeholder: str
    is_pattern: bool = True
    check: Callable[[str], object] = str
    is_contained: bool = False
    reads_arguments: bool = False
    states: Sequence[str] = ()
    of_failed: Callable[[Kind, str], bool | None] | None = None

    def may_match(self, states: Sequence[str]) -> bool:
        """Whether a message in one of *states* may match."""
        return not self.states or not set(self.states).isdisjoint(states)


@lru_cache
def _seconds(text: str) -> float:
    return parse_distance(text).total_seconds()


def _check_outcome(pattern: str) -> None:
    if not any(fits(outcome, pattern) for outcome in OUTCOMES):
        raise ValueError(f"outcome must be one of {', '.join(OUTCOMES)}, not {pattern!r}")


def _check_returned(pattern: str) -> None:
    if not any(_has_returned(lost, pattern) for lost in (*RETURNED, "")):
        raise ValueError(f"returned must be one of {', '.join(RETURNED)}, not {pattern!r}")


def _has_returned(lost: str, pattern: str) -> bool:
    return fits(lost, pattern) if lost else pattern == NOT_RETURNED


def _is_worker(known: Mapping[str, Any], pattern: str) -> bool:
    worker = known.get("worker")
    if "pid" not in known:
        # A list of what has failed or finished shows no process.
        return fits(worker or "", pattern) or fits(worker or "?", pattern)
    return is_worker(pattern, worker, known["host"], known["pid"], known["lost"])


def _has_argument(entry: Entry, wanted: str) -> bool:
    if entry.content.task is None:
        return False
    arguments = arguments_of(entry.payload)
    return arguments is not None and has_argument(arguments, wanted)


def _is_noted(task: str, pattern: str) -> bool | None:
    """Whether the task of what has failed or died fits *pattern*, by what is noted of it: its name has no
    whitespace, is printable, and is cut. ``None`` if this does not tell. What fits as noted does fit."""
    if task == UNKNOWN:
        return None
    if fits(task, pattern):
        return True
    is_kept = pattern == printable(pattern) and not _MAY_BE_LOST.search(pattern)
    return None if not is_kept or len(task) >= LONGEST_NAME else False


FILTERS = (
    Filter(
        "task",
        "Only tasks of this name, in which * stands for anything.",
        "of the task",
        lambda entry, value: any(is_task(name, value) for name in entry.tasks),
        "shop.*",
        is_contained=True,
        of_failed=lambda kind, value: _is_noted(kind.task, value),
    ),
    Filter(
        "args",
        "Only tasks with this argument: 42, or order_id=42; * stands for anything.",
        "with the argument",
        _has_argument,
        "42, or order_id=42",
        reads_arguments=True,
    ),
    Filter(
        "worker",
        "Only what this worker has taken, or has failed or finished there: its name, or what WORKER shows; * "
        "stands for anything.",
        "of the worker",
        lambda entry, value: _is_worker(entry.known, value),
        "celery@web-1",
        states=(UNACKED, FAILED, FINISHED),
    ),
    Filter(
        "error",
        "Only tasks that have failed with this class of exceptions; case counts, * stands for anything.",
        "with the error",
        lambda entry, value: fits(entry.known.get("error", ""), value),
        "KeyError",
        states=(FAILED, FINISHED),
        of_failed=lambda kind, value: fits(kind.error, value),
    ),
    Filter(
        "returned",
        "Only failed tasks that are known to have returned, by what was lost: continuation, result or hook; "
        f"* is all of these, {NOT_RETURNED} the others.",
        "returned:",
        lambda entry, value: _has_returned(entry.known.get("returned", ""), value),
        "result",
        check=_check_returned,
        states=(FAILED,),
        of_failed=lambda kind, value: _has_returned(kind.returned, value),
    ),
    Filter(
        "outcome",
        "Only finished tasks that have ended so; * stands for anything.",
        "with the outcome",
        lambda entry, value: fits(entry.known.get("outcome", ""), value),
        "succeeded",
        check=_check_outcome,
        states=(FINISHED,),
    ),
    Filter(
        "slower",
        "Only finished tasks that ran for longer than this: 10s, 2m.",
        "that ran for longer than",
        lambda entry, value: (entry.known.get("ran") or 0.0) > _seconds(value),
        "10s",
        is_pattern=False,
        check=parse_distance,
        states=(FINISHED,),
    ),
    Filter(
        "reason",
        "Only with this reason; * stands for anything.",
        "with the reason",
        lambda entry, value: fits(entry.known.get("reason", ""), value),
        "delivery limit*",
    ),
    Filter(
        "key",
        'Only messages with this key of fair queues; "" is none; * stands for anything.',
        "with the key",
        lambda entry, value: fits_key(entry.content.key, value),
        "tenant-42",
        is_contained=True,
    ),
    Filter(
        "unique",
        "Only messages with this unique key; * stands for anything.",
        "with the unique key",
        lambda entry, value: fits(entry.content.unique or "", value),
        "account:42",
    ),
    Filter(
        "related",
        "Only the task with this id, and those of the same group, parent or root.",
        "related to",
        lambda entry, value: is_related(entry.content.id, entry.content.headers, value),
        "id of a group, a parent or a root",
        is_pattern=False,
        is_contained=True,
    ),
)
