"""Finds the tasks that no worker has known so far, or none that had room."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from kombu_redisdelay.broker.message import from_ms
from kombu_redisdelay.broker.server.wire import answers
from kombu_redisdelay.broker.store import Store
from kombu_redisdelay.broker.unknown_tasks import find_waiting
from kombu_redisdelay.words import printable

#: Seconds within which a worker that knows a task and has room takes it.
PATIENCE = 15.0


@dataclass(frozen=True, slots=True)
class UnknownTask:
    """A task of which messages wait for a worker that knows it.

    Attributes:
        task: its name, safe to print. Of a very long name, ``#`` and its SHA-1.
        since: since when the oldest of them waits, in UTC, by the server's clock.
    """

    queue: str
    task: str
    since: datetime


def unknown_tasks(store: Store, queues: Sequence[str]) -> list[UnknownTask]:
    """The tasks of which messages have waited in *queues* for longer than :data:`PATIENCE`, at most a hundred
    of each queue and partition. A message that a worker does not know waits for one that does; if that takes
    longer, no worker of the queue knows the task, or none of those that do has room."""
    names = {name: queue for queue in queues for name in store.partitions.names(queue)}
    there = answers(store.server, (("EXISTS", store.keys(name).unknown) for name in names))
    some = [name for name, exists in zip(names, there, strict=True) if exists]
    oldest: dict[tuple[str, str], int] = {}
    for name, task, since_ms in _waiting_for_long(store, some):
        which = names[name], printable(task)
        oldest[which] = min(since_ms, oldest.get(which, since_ms))
    return [UnknownTask(queue, task, from_ms(ms)) for (queue, task), ms in oldest.items()]


def with_unknown_tasks(store: Store, names: Sequence[str]) -> set[str]:
    """The queues and partitions among *names* of which :func:`unknown_tasks` has some. All of *names* list
    tasks, but also messages that do not wait any more."""
    return {name for name, _, _ in _waiting_for_long(store, names)}


def _waiting_for_long(store: Store, names: Sequence[str]) -> Iterable[tuple[str, str, int]]:
    """Names, tasks as they are listed, and since when the oldest message of them waits."""
    if not names:
        return
    before_ms = store.now_ms() - PATIENCE * 1000
    for name, (waiting, _) in find_waiting(store, dict.fromkeys(names, "")).items():
        for each in waiting:
            if each.since_ms is not None and each.since_ms <= before_ms:
                yield name, each.task, each.since_ms
