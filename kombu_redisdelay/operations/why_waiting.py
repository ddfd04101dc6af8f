"""Why a message was not delivered yet, and which message holds its unique key."""

from __future__ import annotations

from collections.abc import Iterator

from kombu_redisdelay.broker import unacked
from kombu_redisdelay.broker.fair_keys import ON, key_states
from kombu_redisdelay.broker.limits import FairQueues
from kombu_redisdelay.broker.message import expires_ms, from_ms
from kombu_redisdelay.broker.options import ISOLATED_FOR
from kombu_redisdelay.broker.store import Store
from kombu_redisdelay.broker.unique import written
from kombu_redisdelay.operations.content import Content
from kombu_redisdelay.operations.fair import limits_of_state, shown_key
from kombu_redisdelay.operations.limits import in_words, kinds_set
from kombu_redisdelay.operations.message import MessageInfo
from kombu_redisdelay.operations.queue_reasons import ISOLATED, KEY_LIMITS, LOST, PAUSED, PREFETCH, UNKNOWN
from kombu_redisdelay.operations.states import READY, SCHEDULED, UNACKED
from kombu_redisdelay.operations.stats import QueueStats, queue_stats
from kombu_redisdelay.words import number_of

#: Said of a message that will not run.
EXPIRED = "It has expired: a worker will discard it."


def why_waiting(store: Store, message: MessageInfo) -> list[str]:
    """Why *message*, which is overdue or ready, is with no worker yet, as far as its queue tells now: one
    sentence for each reason. If it is not due, whether it waits because no worker knew its task, or because
    it has failed. First, whether it has expired. Empty for a message that is unacked or dead."""
    if message.state not in (SCHEDULED, READY):
        return []
    at_ms = expires_ms(message.headers)
    has_expired = at_ms is not None and at_ms < store.now_ms()
    return [*([EXPIRED] if has_expired else []), *_why(store, message)]


def _why(store: Store, message: MessageInfo) -> list[str]:
    if message.is_blocked:
        return [f"It is {message.reason}, which has the same unique key: {message.unique}."]
    unknown_ms = Content.of(message.payload, "").unknown_ms if message.reason == UNKNOWN else None
    if unknown_ms is not None:
        since = from_ms(unknown_ms)
        return [f"Since {since:%Y-%m-%d %H:%M:%S} UTC it waits for a worker that knows its task."]
    if message.due is not None and message.due > from_ms(store.now_ms()):
        times = number_of(message.failures, "time")
        return [f"It has failed {times}, and waits to be tried again."] if message.failures else []
    [stats] = queue_stats(store, [message.queue])
    of_key = list(_reasons_of_key(store, message, stats))
    return [*of_key, *_reasons(stats, is_overdue=message.state == SCHEDULED, is_known=bool(of_key))]


def _reasons_of_key(store: Store, message: MessageInfo, stats: QueueStats) -> Iterator[str]:
    if message.state != READY or stats.fairness is None or stats.fairness.state != ON:
        return
    names, key = store.partitions.names(message.queue), shown_key(message.key)
    [every] = FairQueues(store).limits(names[:1])
    states = [state for name in names for state in key_states(store, name, [message.key])]
    limits = limits_of_state(every, states[0])
    if limits.paused_since is not None:
        yield f"Its key {key} is paused since {limits.paused_since:%Y-%m-%d %H:%M:%S} UTC."
    elif any(state.is_at_limit for state in states):
        yield f"Its key {key} is at its limit: {in_words(limits)}."


def _reasons(stats: QueueStats, *, is_overdue: bool, is_known: bool) -> Iterator[str]:
    """
    Arguments:
        is_known: whether workers would not take the message even if they had nothing to do.
    """
    limits = stats.limits
    if limits.is_paused:
        yield "The queue is paused: workers take nothing from it."
    elif stats.reason == PAUSED:
        yield "A partition of the queue is paused: workers take nothing from that."
    if not stats.consumers:
        # Only a worker or the forwarder moves what is due to the ready list.
        forwarder = ", and no `celery delayed forward` moves what is due" if is_overdue else ""
        yield f"No worker consumes from the queue{forwarder}."
        return
    if stats.reason == LOST:
        yield (
            "The workers of the queue are gone: their processes do not exist any more. What they held comes "
            "back when another worker of the queue runs."
        )
        return
    # As in REASONS: what workers hold comes before how fast they take.
    each = (kind.keeps(limits, stats.unacked) for kind in reversed(kinds_set(limits)))
    yield from filter(None, each)
    if is_known:
        return
    if stats.reason == KEY_LIMITS:
        yield "All ready messages of the queue are of keys that are paused, or at their limits."
    unacked = f"{number_of(stats.consumers, 'consumer')} of the queue: {number_of(stats.unacked)} held."
    if is_overdue:
        yield (
            f"Workers move what is due within seconds, also while they are busy. {unacked} They are "
            "stopping, stuck, or of an older version."
        )
    elif stats.reason == ISOLATED:
        yield (
            "Each worker of the queue holds a message alone, of this or another queue, because workers have "
            f"died that held it. It takes no other meanwhile, for {ISOLATED_FOR:.0f} s at most. {unacked}"
        )
    elif stats.reason == PREFETCH:
        yield f"All workers are busy: they hold as many as they may, or were told to stop. {unacked}"
    elif stats.unacked:
        yield unacked


#: Where a holder is -> the state of a message there.
_STATES = {
    unacked.RUNNING: UNACKED,
    unacked.READY: READY,
    unacked.SCHEDULED: SCHEDULED,
    unacked.AGAIN: SCHEDULED,
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


def _holder(store: Store, message: MessageInfo) -> unacked.Holder | None:
    if message.unique is None:
        return None
    field = written(message.unique)
    # The key picks one of the partitions of a queue.
    each = (unacked.living_holders(store, name, [field])[0] for name in store.partitions.names(message.queue))
    return next(filter(None, each), None)
