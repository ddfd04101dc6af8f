"""All queues together: their figures, and what of a table of thousands fits on a page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import attrgetter

from kombu_redisdelay.broker.store import Store
from kombu_redisdelay.operations.failed_tasks import FailureGroup, together
from kombu_redisdelay.operations.history import (
    Counts,
    Period,
    QueueHistory,
    hours_together,
    minutes_together,
    queue_history,
)
from kombu_redisdelay.operations.messages import Messages
from kombu_redisdelay.operations.selection import Selection
from kombu_redisdelay.operations.server_memory import ServerMemory, memories
from kombu_redisdelay.operations.stats import QueueStats, queue_stats, read_each, read_some
from kombu_redisdelay.operations.timeline import Span, timeline

#: Queues on a page. Only these are read anew for each viewer.
QUEUES_PER_PAGE = 100

#: The figures of more queues are kept for at least this number of seconds, and for ten times as long as it
#: took to read them. So they take at most a tenth of the time of Redis, for any number of viewers.
LEAST_SECONDS, TIMES_AS_LONG = 5.0, 10.0


@dataclass(frozen=True, slots=True)
class Fleet:
    """The figures of all queues.

    Attributes:
        stats: of each queue.
        spans: when their scheduled messages become due.
        refused: queues that cannot be read, and why.
        memory: that of the fullest server; ``None`` if none may be asked.
    """

    stats: Sequence[QueueStats]
    spans: list[Span]
    refused: Mapping[str, Exception]
    memory: ServerMemory | None = None

    @property
    def is_large(self) -> bool:
        """Whether it needs more than one page."""
        return len(self.stats) > QUEUES_PER_PAGE


def read_fleet(store: Store, names: Sequence[str]) -> Fleet:
    stats, refused = read_each(queue_stats, store, names)
    spans = timeline(store, [queue.queue for queue in stats if queue.scheduled])
    fullest = max((memory for _, memory in memories(store)), key=attrgetter("share"), default=None)
    return Fleet(stats, spans, refused, fullest)


def read_hours(store: Store, names: Sequence[str]) -> dict[str, Counts]:
    """Queue -> what has happened in the last hour. Queues are missing whose history cannot be read."""
    histories = read_some(queue_history, store, names)
    return {history.queue: last_hour(history) for history in histories}


def last_hour(history: QueueHistory) -> Counts:
    """What has happened in the minutes that the history has."""
    return reduce(lambda total, period: total + period.counts, history.minutes, Counts())


@dataclass(frozen=True, slots=True)
class Failures:
    """What has failed in some queues.

    Attributes:
        queues: how many queues these are.
        groups: the failed tasks that are kept, by task and exception.
        minutes, hours: what has happened, also to tasks that are not there any more.
    """

    queues: int
    groups: Sequence[FailureGroup]
    minutes: Sequence[Period]
    hours: Sequence[Period]


def read_failures(messages: Messages, names: Sequence[str]) -> Failures:
    """What has failed in these queues, without those that cannot be read."""
    groups, _ = read_each(lambda _, some: messages.failures(Selection(queue=some)), messages.store, names)
    histories = read_some(queue_history, messages.store, names)
    minutes, hours = minutes_together(histories), hours_together(histories)
    return Failures(len(names), together(groups), minutes, hours)


def seconds_kept(queues: int, took: float) -> float:
    """For how long what was read of this number of queues is kept: not at all, if they fit on a page."""
    return max(LEAST_SECONDS, TIMES_AS_LONG * took) if queues > QUEUES_PER_PAGE else 0.0


@dataclass(frozen=True, slots=True)
class Part:
    """A page of many.

    Attributes:
        number: which one, from 1.
        last: how many there are.
    """

    number: int
    last: int

    @classmethod
    def of(cls, text: str, count: int) -> Part:
        """The page that the field of an address asks for, or the one nearest to it.

        Arguments:
            count: how many queues there are on all pages.
        """
        last = max(1, -(-count // QUEUES_PER_PAGE))
        wanted = int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else 1
        return cls(min(max(wanted, 1), last), last)

    @property
    def slice(self) -> slice:
        return slice((self.number - 1) * QUEUES_PER_PAGE, self.number * QUEUES_PER_PAGE)
