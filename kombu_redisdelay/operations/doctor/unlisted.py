"""Finds what no key lists any more, because keys in Redis were deleted or evicted."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from redis.exceptions import ConnectionError, TimeoutError

from kombu_redisdelay.broker.store import Store
from kombu_redisdelay.broker.unlisted import Unlisted
from kombu_redisdelay.operations.doctor.finding import Finding, warning, wrong
from kombu_redisdelay.operations.mending import unlisted
from kombu_redisdelay.words import first_of, number_of

#: Queues that are named.
MOST_NAMED = 10

_MEND = "`celery delayed mend` lists them again."


def check_unlisted(store: Store, queues: Sequence[str], declared: Collection[str]) -> Iterator[Finding]:
    """
    Arguments:
        queues: those that are checked. Whether a queue is listed itself is looked up for all.
        declared: queues that the app declares. Commands look at them, listed or not.
    """
    try:
        found = unlisted(store, store.partitions.all_names(queues))
    except (ConnectionError, TimeoutError) as exc:
        if not store.server.has_slots:
            raise
        yield warning("lost keys", f"not looked for at all servers of the cluster: {exc}", "")
        return
    unknown = sorted(
        {store.partitions.queue_of(name) for name, some in found.queues.items() if some.is_unknown}
        - set(declared)
    )
    if unknown:
        are = "is" if len(unknown) == 1 else "are"
        yield wrong(
            "queues",
            f"commands for all queues leave out {number_of(len(unknown), 'queue')} that {are} not listed "
            f"any more: {first_of(unknown, MOST_NAMED)}. Keys in Redis were lost",
            _MEND,
        )
    for queue in queues:
        each = [found.queues[name] for name in store.partitions.names(queue) if name in found.queues]
        if each:
            yield from _of_queue(queue, each)


def _of_queue(queue: str, each: Sequence[Unlisted]) -> Iterator[Finding]:
    consumers, unacked = sum(some.consumers for some in each), sum(some.unacked for some in each)
    if consumers:
        them = (
            "1 consumer that no key lists" if consumers == 1 else f"{consumers:,} consumers that no key lists"
        )
        yield wrong(
            f"queue {queue}",
            f"{number_of(unacked)} of {them}: if it is lost, nobody gives them back. Keys in Redis were lost",
            f"{_MEND} Workers do so each hour. Then what lost consumers hold comes back.",
        )
    lists, sorted_in = sum(some.lists for some in each), sum(some.sorted_in for some in each)
    if lists:
        keys = number_of(lists, "key")
        yield wrong(
            f"queue {queue}",
            f"{number_of(sorted_in)} of {keys} without a turn, so nobody takes them. Keys in Redis were lost",
            f"{_MEND} Workers do so each hour, and when later messages of the same keys come.",
        )
