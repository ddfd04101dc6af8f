"""The figures of queues in tables, and what there is to say beside them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from typing import Any

from kombu_redisdelay.cli.output import count, right, unusual
from kombu_redisdelay.cli.table import Cell, Column
from kombu_redisdelay.operations.columns import AGE, LATE, MOMENT, NUMBER, TEXT, QueueColumn
from kombu_redisdelay.operations.doctor.finding import Finding
from kombu_redisdelay.operations.fair import KeyLimits
from kombu_redisdelay.operations.limits import QueueLimits, in_words
from kombu_redisdelay.operations.stats import QueueStats
from kombu_redisdelay.words import not_sorted, number_of, sentence, span


def heading(column: QueueColumn) -> Column:
    label = column.label.upper()
    if column.is_rare:
        return unusual(label, usual="0")
    return unusual(label, usual="") if column.kind == TEXT else right(label)


def figure(column: QueueColumn, queue: QueueStats, now: datetime) -> Any:
    """The cell of *queue* in *column*."""
    return _CELLS[column.kind](column, column.value(queue), now)


def age(seconds: float | None) -> Cell:
    """For how long something has waited; ``?`` if that is unknown."""
    return Cell("?" if seconds is None else span(seconds) if seconds else "-", "" if seconds else "dim")


def _moment(moment: datetime | None, now: datetime) -> Cell:
    """Such as ``in 5m``, or ``5m late``."""
    if moment is None:
        return Cell("-", "dim")
    seconds = (moment - now).total_seconds()
    return Cell(f"in {span(seconds)}") if seconds >= 0 else Cell(f"{span(-seconds)} late", LATE)


#: Kind of a column -> makes the cell of a value.
_CELLS: Mapping[str, Callable[[QueueColumn, Any, datetime], Any]] = {
    NUMBER: lambda column, value, now: count(value, column.style),
    AGE: lambda column, value, now: age(value),
    MOMENT: lambda column, value, now: _moment(value, now),
    TEXT: lambda column, value, now: value or "",
}


def remarks(queue: str, limits: QueueLimits, now: datetime) -> Iterator[str]:
    """Lines to show beside the figures of a queue."""
    if limits.paused_since is not None:
        yield f"{queue} has been paused for {span(max(0.0, (now - limits.paused_since).total_seconds()))}"
    if limits.is_limited:
        yield f"{queue} is limited: {in_words(limits)}"


def fairness_remarks(queue: QueueStats) -> Iterator[str]:
    """The same of a fair queue; nothing of another one."""
    name, fairness = queue.queue, queue.fairness
    if fairness is None:
        return
    waiting = f"{number_of(fairness.keys, 'key')} wait{'s' if fairness.keys == 1 else ''}"
    if fairness.keys_at_limit:
        some = "and is" if fairness.keys == 1 else f"{fairness.keys_at_limit:,} of them"
        waiting += f", {some} paused or at a limit"
    if fairness.state == "off":
        yield f"{name} is not to be fair any more, and workers move its messages back: {waiting}"
    elif fairness.unsorted and not fairness.keys:
        unsorted = number_of(fairness.unsorted)
        yield f"{name} is fair, and workers have not sorted its {unsorted} by key yet"
    else:
        yield ", and ".join(filter(None, (f"{name} is fair: {waiting}", not_sorted(fairness.unsorted))))
    yield from limits_of_keys(name, fairness.limits)


def limits_of_keys(queue: str, limits: KeyLimits) -> Iterator[str]:
    """The same of the limits of every key."""
    if limits.is_limited:
        yield f"each key of {queue} is limited: {in_words(limits)}"


def conflicts(queue: QueueStats) -> str:
    """What became of messages that met another one with their unique key; empty if there were none."""
    each = {"dropped": queue.dropped, "replaced": queue.replaced}
    said = [f"{number_of(count)} {what}" for what, count in each.items() if count]
    if not said:
        return ""
    return f"{queue.queue}: because of unique keys, {' and '.join(said)} since its history began"


def in_a_line(finding: Finding) -> str:
    """What the doctor would say, for a command that has just brought it about."""
    return f"{sentence(finding.found)} {finding.advice}"
