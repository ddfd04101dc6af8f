"""Finds the queues from which nothing is taken, because each consumer has an isolated message."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from kombu_redisdelay.broker.options import ISOLATED_FOR
from kombu_redisdelay.broker.portions import NAME_BYTES_PER_CALL, portions
from kombu_redisdelay.broker.server.scripts import FIND_ISOLATED, ScriptCall, run_each
from kombu_redisdelay.broker.store import Store
from kombu_redisdelay.operations.consumers import with_lease

#: Queues that are looked at in one round trip.
QUEUES_PER_CALL = 100


def isolated(store: Store, waiting: Mapping[str, int], holding: Sequence[str]) -> set[str]:
    """Those of the queues *waiting* whose consumers each have an isolated message.

    Arguments:
        waiting: queue or partition -> how many consumers it has.
        holding: the queues and partitions where isolated messages are looked for. One may be of another
            queue than waits, because its consumer takes nothing from any of its queues.
    """
    if not (waiting and store.isolated_after):
        return set()
    consumers = _with_isolated(store, holding)
    few = [name for name, count in waiting.items() if count <= len(consumers)]
    if not few:
        return set()
    leases = with_lease(store, few)
    return {name for name, some in leases.items() if some and consumers.issuperset(some)}


def _with_isolated(store: Store, names: Iterable[str]) -> set[bytes]:
    """The consumers that have an isolated message of one of *names*."""
    found: set[bytes] = set()
    for some in portions(names, len, QUEUES_PER_CALL, NAME_BYTES_PER_CALL):
        found.update(*run_each(store.server, [_call(store, name) for name in some]))
    return found


def _call(store: Store, name: str) -> ScriptCall:
    keys = store.keys(name)
    return (
        FIND_ISOLATED,
        (keys.consumers,),
        (keys.unacked(""), store.isolated_after, round(ISOLATED_FOR * 1_000_000)),
    )
