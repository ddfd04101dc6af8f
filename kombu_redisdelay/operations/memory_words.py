"""Says in words what fills Redis, for all who show it."""

from __future__ import annotations

from collections.abc import Iterator

from kombu_redisdelay.operations.estimate import NO_TASK, NOT_A_MESSAGE, UNSEEN
from kombu_redisdelay.operations.forecast import ServerFill
from kombu_redisdelay.operations.memory import MemoryUse, TaskMemory
from kombu_redisdelay.operations.queue_bytes import NOTES
from kombu_redisdelay.words import number_of, percent, size, span

#: From this share of a state on, expired messages are worth a remark.
EXPIRED_SHARE = 0.1

NONE_EXPIRED = "0 %"

#: A server that is full later than in so many seconds is not about to be full.
FAR = 365 * 86_400.0

_KINDS = {NO_TASK: "(no task)", NOT_A_MESSAGE: "(not a message)", UNSEEN: "(messages that were not read)"}


def kind_of(task: TaskMemory) -> str:
    """What stands in place of a task."""
    return task.task if task.task is not None else _KINDS[task.kind]


def remarks(found: MemoryUse) -> Iterator[str]:
    """What there is to say besides the tasks, a sentence each."""
    for state in found.states:
        if state.expired is not None and state.expired >= EXPIRED_SHARE:
            yield (
                f"About {percent(state.expired)} of {number_of(state.messages, f'{state.state} message')} in "
                f"{state.queue} have expired."
            )
    notes = sum(state.bytes for state in found.states if state.state == NOTES)
    if notes:
        yield f"What is noted of the queues, such as limits, keys and history: {size(notes)}."
    for each in found.others:
        yield f"Beside the queues: {each.what}, about {size(each.bytes)} in {number_of(each.keys, 'key')}."
    for server in found.servers:
        yield f"Redis at {server.server}: {fill_of(server)}."
    if found.not_looked_at:
        yield f"Not looked at: {'; '.join(found.not_looked_at)}."


def fill_of(server: ServerFill) -> str:
    """How full a server is, and when it is full."""
    used = f"{size(server.used)} used"
    if not server.is_limited:
        return f"{used}; maxmemory is not set, so nobody knows when it is full"
    used += f" of {size(server.limit)}"
    if server.bytes_per_hour is None:
        return f"{used}; no queue of it has a history"
    rate = f"{size(abs(server.bytes_per_hour))} an hour"
    if server.full_in is None or server.full_in > FAR:
        grown = "grew by" if server.bytes_per_hour > 0 else "shrank by"
        return f"{used}; in the last hour its queues {grown} {rate}"
    return f"{used}; at the last hour's rate, {rate}, it is full in {span(server.full_in)}"
