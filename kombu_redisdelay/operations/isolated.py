"""Finds the queues from which nobody takes, because each consumer holds a suspect message alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from redis.exceptions import ResponseError

from kombu_redisdelay.broker.options import ALONE_FOR
from kombu_redisdelay.broker.portions import NAME_BYTES_PER_CALL, portions
from kombu_redisdelay.broker.server.replies import answers
from kombu_redisdelay.broker.server.scripts import ALONE, ScriptCall, try_each
from kombu_redisdelay.broker.store import Store

#: Queues that are looked at in one round trip.
QUEUES_PER_CALL = 100


def isolated(store: Store, waiting: Mapping[str, int], unacked: Mapping[str, int]) -> set[str]:
    """Those of the queues *waiting* whose consumers hold a suspect alone, each of them one of its own.

    A suspect may be of another queue, because its consumer takes nothing from any of them. So all queues are
    looked at that are known to the server, too.

    Arguments:
        waiting: queue or partition -> how many consumers it has.
        unacked: queue or partition -> how many messages of it are held, as far as the caller has counted.
    """
    if not (waiting and store.alone_after):
        return set()
    names = dict.fromkeys((*unacked, *store.partitions.all_names(store.queues())))
    alone = _alone(store, [name for name in names if unacked.get(name) != 0])
    few = [name for name, consumers in waiting.items() if consumers <= len(alone)]
    if not few:
        return set()
    now_ms = store.now_ms()
    commands = (("ZRANGEBYSCORE", store.keys(name).consumers, now_ms, "+inf") for name in few)
    members = answers(store.server, commands)
    return {name for name, some in zip(few, members, strict=True) if some and alone.issuperset(some)}


def _alone(store: Store, names: Iterable[str]) -> set[bytes]:
    """The consumers that hold a suspect of one of *names* alone."""
    found: set[bytes] = set()
    for some in portions(names, len, QUEUES_PER_CALL, NAME_BYTES_PER_CALL):
        # What the caller has not asked for must not fail it.
        for reply in try_each(store.server, [_call(store, name) for name in some]):
            if not isinstance(reply, ResponseError):
                found.update(reply)
    return found


def _call(store: Store, name: str) -> ScriptCall:
    keys = store.keys(name)
    return ALONE, (keys.consumers,), (keys.unacked(""), store.alone_after, round(ALONE_FOR * 1_000_000))
