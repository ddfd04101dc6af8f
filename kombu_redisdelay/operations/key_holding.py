"""Which message holds the unique key of a message, in words, too."""

from __future__ import annotations

from kombu_redisdelay.broker.store import Store
from kombu_redisdelay.broker.unacked import AGAIN, RUNNING, SCHEDULED, Holder, living_holders
from kombu_redisdelay.broker.unacked import READY as IS_READY
from kombu_redisdelay.broker.unique import written
from kombu_redisdelay.operations import states
from kombu_redisdelay.operations.message import MessageInfo

#: Where a holder is -> the state of a message there.
_STATES = {
    RUNNING: states.UNACKED,
    IS_READY: states.READY,
    SCHEDULED: states.SCHEDULED,
    AGAIN: states.SCHEDULED,
}


def key_holder(store: Store, message: MessageInfo) -> str | None:
    """The id of the message that holds the unique key of *message*; ``None`` if none does, or it has none."""
    holder = _holder(store, message)
    return None if holder is None else holder.id


def key_and_holder(store: Store, message: MessageInfo) -> str:
    """The unique key of *message*, which has one, and which message holds it."""
    holder = _holder(store, message)
    if holder is None:
        who = "no message holds"
    elif holder.id == message.id:
        # A task that runs holds it, and not its own retry, which has the same id.
        holds_it = _STATES[holder.state] == message.state and not message.is_blocked
        who = "it holds" if holds_it else "another message with its id holds"
    else:
        who = f"{holder.id} holds"
    return f"{message.unique}, which {who}"


def _holder(store: Store, message: MessageInfo) -> Holder | None:
    if message.unique is None:
        return None
    field = written(message.unique)
    # The key picks one of the partitions of a queue.
    each = (living_holders(store, name, [field])[0] for name in store.partitions.names(message.queue))
    return next(filter(None, each), None)
