"""Records now and then what has happened in the queues, for their histories."""

from __future__ import annotations

from collections.abc import Sequence

from kombu_redisdelay.broker.server.scripts import RECORD, ScriptCall, try_each
from kombu_redisdelay.broker.server.slots import parts
from kombu_redisdelay.broker.server.wire import Argument
from kombu_redisdelay.broker.store import Store

#: Queues that one script records: half a millisecond of the server's time at most.
QUEUES_PER_SCRIPT = 10


def record(store: Store, queues: Sequence[str]) -> None:
    """Record what has happened in *queues*, those that have no record of this minute. Makes one round trip.

    Others do the same, and a refusal is none of the caller's business: the record is made another time, and
    then is about more than a minute.
    """
    some_each = parts(store.server, queues, lambda queue: store.keys(queue).wake, QUEUES_PER_SCRIPT)
    try_each(store.server, [_call(store, some) for some in some_each])


def _call(store: Store, queues: Sequence[str]) -> ScriptCall:
    expires_ms = " ".join([str(store.expires_ms.get(queue, 0)) for queue in queues])
    braces = int(store.server.has_slots)
    args: list[Argument] = [store.prefix, store.separator, braces, expires_ms, *store.steps]
    return RECORD, [store.keys(queue).wake for queue in queues], args
