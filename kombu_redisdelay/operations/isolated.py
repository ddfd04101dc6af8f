"""Finds the queues from which nobody takes, because each consumer holds a suspect message alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from kombu_redisdelay.broker.options import ALONE_FOR
from kombu_redisdelay.broker.portions import NAME_BYTES_PER_CALL, portions
from kombu_redisdelay.broker.server.scripts import ALONE, ScriptCall, run_each
from kombu_redisdelay.broker.store import Store
from kombu_redisdelay.operations.consumers import with_lease

#: Queues that are looked at in one round trip.
QUEUES_PER_CALL = 100


def isolated(store: Store, waiting: Mapping[str, int], holding: Sequence[str]) -> set[str]:
    """Those of the queues *waiting* whose consumers hold a suspect alone, each of them one of its own.

    Arguments:
        waiting: queue or partition -> how many consumers it has.
        holding: the queues and partitions where suspects are looked for. One may be of another queue than
            waits, because its consumer takes nothing from any of its queues.
    """
    if not (waiting and store.alone_after):
        return set()
    alone = _alone(store, holding)
    few = [name for name, consumers in waiting.items() if consumers <= len(alone)]
    if not few:
        return set()
    consumers = with_lease(store, few)
    return {name for name, some in consumers.items() if some and alone.issuperset(some)}


def _alone(store: Store, names: Iterable[str]) -> set[bytes]:
    """The consumers that hold a suspect of one of *names* alone."""
    found: set[bytes] = set()
    for some in portions(names, len, QUEUES_PER_CALL, NAME_BYTES_PER_CALL):
        found.update(*run_each(store.server, [_call(store, name) for name in some]))
    return found


def _call(store: Store, name: str) -> ScriptCall:
    keys = store.keys(name)
    return ALONE, (keys.consumers,), (keys.unacked(""), store.alone_after, round(ALONE_FOR * 1_000_000))
