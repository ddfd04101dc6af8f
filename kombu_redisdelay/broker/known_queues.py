"""The queues that are in use: each is noted, what happens in it is recorded, and it is forgotten when nobody
uses it any more."""

from __future__ import annotations

from collections.abc import Sequence

from kombu_redisdelay.broker.keys import GOES, STAYS, known_queues
from kombu_redisdelay.broker.portions import Chore, Doing, RoundTrips, Turn, Upkeep
from kombu_redisdelay.broker.server.scripts import (
    KNOWN,
    RECORD,
    TIDY,
    ScriptCall,
    run_each,
    try_each,
)
from kombu_redisdelay.broker.server.server import by_slot
from kombu_redisdelay.broker.server.wire import Argument
from kombu_redisdelay.broker.store import KNOWN_FOR, Store, name_of

#: Queues that one script records: half a millisecond of the server's time at most.
RECORDED_PER_SCRIPT = 10

#: Seconds after which a queue that was not noted again is looked at. A process that uses a queue notes it
#: again after :data:`~kombu_redisdelay.broker.store.KNOWN_FOR`. So no queue is forgotten that a process
#: believes to have noted.
UNUSED_FOR = 2 * KNOWN_FOR

#: Queues that are looked at together.
UNUSED_AT_ONCE = 200

#: Consumers of a queue that are looked at together.
CONSUMERS_PER_SCRIPT = 100


def record(store: Store, queues: Sequence[str]) -> None:
    """Record what has happened in *queues*, those that have no record of this minute. Makes one round trip.

    Others do the same, so a refusal does not matter to the caller: the next record then covers more than a
    minute.
    """
    some_each = by_slot(store.server, queues, lambda queue: store.keys(queue).wake, RECORDED_PER_SCRIPT)
    try_each(store.server, [_recording(store, some) for some in some_each])


def _recording(store: Store, queues: Sequence[str]) -> ScriptCall:
    expires_ms = " ".join([str(store.expires_ms.get(queue, 0)) for queue in queues])
    braces = int(store.server.has_slots)
    args: list[Argument] = [store.prefix, store.separator, braces, expires_ms, *store.steps]
    return RECORD, [store.keys(queue).wake for queue in queues], args


def forget_unused(store: Store) -> RoundTrips[int]:
    """Look at some of the queues that no process has noted for :data:`UNUSED_FOR`. Forget their lost
    consumers that hold nothing, and the queues themselves if they are empty. Any number of processes may do
    this at the same time.

    Returns:
        How many queues were looked at. If it is :data:`UNUSED_AT_ONCE`, there may be more.
    """
    known = (known_queues(store.prefix),)
    unused_ms = round(UNUSED_FOR * 1000)
    members = KNOWN(store.server, known, (unused_ms, UNUSED_AT_ONCE, 0))
    if not members:
        return 0
    yield
    names = list(filter(None, map(name_of, members)))
    are_empty = run_each(store.server, [_tidying(store, name) for name in names])
    in_use = {name for name, is_empty in zip(names, are_empty, strict=True) if not is_empty}
    yield
    forgotten = [each for each in members if name_of(each) not in in_use]
    KNOWN(store.server, known, (unused_ms, 0, len(forgotten), *forgotten))
    yield
    store.remember(*in_use)
    return len(members)


def _tidying(store: Store, queue: str) -> ScriptCall:
    k = store.keys(queue)
    in_use = [*k.unused(STAYS), *store.ready_keys(queue)]
    keys = (k.consumers, k.history, *in_use, *k.unused(GOES))
    return TIDY, keys, (k.unacked(""), CONSUMERS_PER_SCRIPT, len(in_use))


def _remembering(upkeep: Upkeep) -> Doing:
    return lambda turn: upkeep.store.remember(*turn.noted)


def _recording_history(upkeep: Upkeep) -> Doing:
    return lambda turn: record(upkeep.store, turn.noted)


def _forgetting(upkeep: Upkeep) -> Doing:
    def forget(turn: Turn) -> RoundTrips[None]:
        if (yield from forget_unused(upkeep.store)) >= UNUSED_AT_ONCE:
            upkeep.hurry(0.0)

    return forget


CHORES = (
    Chore("note that queues are in use", _remembering),
    Chore("record what has happened", _recording_history),
    Chore("forget queues that are not used", _forgetting, is_for_all=True),
)
