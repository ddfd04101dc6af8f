"""Checks whether the option ``partitions`` fits the queues that are there."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from kombu_redisdelay.broker.keys import MARK
from kombu_redisdelay.broker.store import Store
from kombu_redisdelay.operations.doctor.finding import Finding, warning
from kombu_redisdelay.operations.doctor.reach import Reach
from kombu_redisdelay.operations.stats import QueueStats, queue_stats
from kombu_redisdelay.words import number_of


def check_partitions(store: Store, known: Reach, queues: Sequence[str]) -> Iterator[Finding]:
    """
    Arguments:
        known: names of all queues and partitions that Redis knows of or that the app declares.
        queues: names of the queues to check; all queues if it is empty.
    """
    used = set(map(store.partitions.queue_of, (*known.within, *known.away)))
    for queue in store.partitions.spread:
        if queue not in used and (not queues or queue in queues):
            yield warning(
                f"queue {queue}",
                "it is in the option `partitions`, and nobody has used it yet",
                "See whether its name is misspelt there.",
            )
    for stats in _unattended(store, known.within):
        queue, number = split(stats.queue)
        if queues and queue not in queues:
            continue
        count = len(store.partitions.names(queue))
        yield warning(
            f"queue {queue}",
            f"{number_of(stats.messages)} in the partition {stats.queue}, which no worker takes: the "
            f"option `partitions` says {count} here",
            "If producers have a larger number, deploy it to the workers, and here. If it was lowered, give "
            f"the workers at least {number + 1} again until the partition is empty.",
        )


def attended(store: Store, known: Sequence[str]) -> list[str]:
    """Those of the *known* queues that :func:`check_partitions` does not report."""
    told = {stats.queue for stats in _unattended(store, known)}
    return [name for name in known if name not in told]


def split(name: str) -> tuple[str, int]:
    """The queue and the number of a partition, 0 if *name* cannot be one's."""
    queue, _, number = name.rpartition(MARK)
    return (queue, int(number)) if queue and number.isdecimal() else (name, 0)


def _unattended(store: Store, known: Iterable[str]) -> list[QueueStats]:
    """Partitions that the option does not have, with messages and without a worker."""
    known = set(known)
    others = [name for name in sorted(known) if store.partitions.queue_of(name) == name and split(name)[1]]
    beyond = [name for name in others if split(name)[0] in known.union(store.partitions.spread)]
    return [stats for stats in queue_stats(store, beyond) if stats.messages and not stats.consumers]
