"""Finds the queues of a cluster that cannot be looked at, because their server is away."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple

from redis.exceptions import ConnectionError, TimeoutError

from kombu_redisdelay.broker.store import Store


class Reach(NamedTuple):
    """Queues, by whether they can be looked at."""

    within: list[str]
    away: list[str]


def divide(store: Store, queues: Iterable[str], silent: Collection[str]) -> Reach:
    """See which *queues* can be looked at. A queue is away if one of its partitions is.

    Arguments:
        silent: addresses of servers that do not answer. They are not asked again: each time may take seconds.
    """
    reach = Reach([], [])
    has_failed = set(silent)
    for queue in queues:
        answers = all(_answers(store, name, has_failed) for name in store.partitions.names(queue))
        (reach.within if answers else reach.away).append(queue)
    return reach


def _answers(store: Store, name: str, has_failed: set[str]) -> bool:
    if not store.server.has_slots:
        return True
    try:
        address = store.server.server_of(store.keys(name).schedule).address
    except ConnectionError:
        return False
    if address in has_failed:
        return False
    try:
        # A server that answers may refuse: the cluster is down.
        with store.server.hurrying():
            store.server.call("EXISTS", store.keys(name).schedule)
    except TimeoutError:
        has_failed.add(address)
        return False
    except ConnectionError:
        return False
    return True
