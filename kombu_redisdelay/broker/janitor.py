"""Forgets what nobody uses any more: consumers that are gone and hold nothing, and queues that are empty."""

from __future__ import annotations

from kombu_redisdelay.broker.keys import known_queues
from kombu_redisdelay.broker.server.scripts import FORGET, TIDY, UNUSED, ScriptCall, run_each
from kombu_redisdelay.broker.steps import Steps
from kombu_redisdelay.broker.store import KNOWN_FOR, Store, name_of

#: Seconds after which a queue that nobody has noted is looked at. A process that uses a queue notes it again
#: after :data:`~kombu_redisdelay.broker.store.KNOWN_FOR`. So no queue is forgotten that a process believes to
#: have noted.
UNUSED_FOR = 2 * KNOWN_FOR

#: Queues that are looked at together.
QUEUES_PER_ROUND = 200

#: Consumers of a queue that are looked at together.
CONSUMERS_PER_SCRIPT = 100


class Janitor:
    """Looks after the queues in *store* that no consumer looks after.

    Any number of janitors may work at the same time. A queue that still holds something stays known.
    """

    def __init__(self, store: Store) -> None:
        self._store = store

    def tidy(self) -> Steps[int]:
        """Look at some of the queues that nobody has noted for :data:`UNUSED_FOR`, and forget those with
        nothing in them. Returns how many were looked at. If :data:`QUEUES_PER_ROUND` were, there may
        be more."""
        store, known = self._store, (known_queues(self._store.prefix),)
        unused_ms = round(UNUSED_FOR * 1000)
        members = UNUSED(store.server, known, (unused_ms, QUEUES_PER_ROUND))
        if not members:
            return 0
        yield
        names = list(filter(None, map(name_of, members)))
        are_empty = run_each(store.server, [self._tidying(name) for name in names])
        in_use = {name for name, is_empty in zip(names, are_empty, strict=True) if not is_empty}
        yield
        FORGET(store.server, known, (unused_ms, *(each for each in members if name_of(each) not in in_use)))
        yield
        store.remember(*in_use)
        return len(members)

    def _tidying(self, queue: str) -> ScriptCall:
        k = self._store.keys(queue)
        forgotten = (k.consumers, k.wake, k.duplicates, k.unknown, k.history)
        keys = (*forgotten, k.schedule, k.messages, k.dead, k.control, *self._store.ready_keys(queue))
        return TIDY, keys, (k.unacked(""), CONSUMERS_PER_SCRIPT)
