"""Leaves messages to workers that know their task, and finds what waits for them.

Such a message is scheduled, and listed for the workers that know its task (lua/include/unknown.lua).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from hashlib import sha1
from typing import Any

from kombu_redisdelay.broker.delivery import Waiting
from kombu_redisdelay.broker.server.line import Ack
from kombu_redisdelay.broker.server.scripts import FIND_UNKNOWN, PARK, run_each
from kombu_redisdelay.broker.store import Store

#: The longest name of a task that is listed as it is, in bytes.
LONGEST_NAME = 200

#: What stands before the SHA-1 of a name that is too long, or has characters that cannot be printed. A name
#: of which this is the first character is listed in the same way.
_HASHED = "#"

#: A message that was left becomes ready again after this time, in ms, and then after as long as it has
#: waited. That is for workers that cannot fetch it: those of ``redis://``, and older ones of ours.
COMES_BACK_MS = 60_000

#: Tasks of a queue that one script finds.
TASKS_PER_CALL = 100

#: What separates the parts of an entry, and the entries that a take names.
_PART, _END = "\x1f", "\x1e"


def listed(task: str) -> str:
    """The name of *task* as it is listed: short, and without separators."""
    if task.isprintable() and not task.startswith(_HASHED) and len(task.encode()) <= LONGEST_NAME:
        return task
    return _HASHED + sha1(task.encode(errors="surrogatepass"), usedforsecurity=False).hexdigest()


def is_name(task: str) -> bool:
    """Whether *task*, as :func:`listed` has written it, is the name itself."""
    return not task.startswith(_HASHED)


def is_known(task: str, names: Collection[str]) -> bool:
    """Whether *task*, as :func:`listed` has written it, is among these *names* of tasks."""
    if not task.startswith(_HASHED):
        return task in names
    return any(listed(name) == task for name in list(names))


def deferring(
    store: Store, consumer: str, queue: str, tag: str, message_id: str, task: str, wait_ms: int
) -> Ack:
    """The command that leaves a message of *consumer* to workers that know its *task*. It is sent as an ack
    is.

    Arguments:
        wait_ms: how long it may wait in all.
    """
    k = store.keys(queue)
    keys = (k.unacked(consumer), k.schedule, k.messages, k.wake, k.duplicates, k.unknown)
    args = PARK.arguments(
        tag=tag,
        id=message_id,
        expires_ms=store.expires_ms.get(queue, 0),
        due_ms="",
        task=listed(task),
        longest_ms=wait_ms,
        shortest_ms=COMES_BACK_MS,
    )
    return PARK.as_ack(store.server, queue, tag, keys, args)


def find_waiting(
    store: Store, after: Mapping[str, str], *, forget: bool = False
) -> dict[str, tuple[list[Waiting], str]]:
    """Find the tasks of which messages wait for a worker that knows them.

    Arguments:
        after: queue -> where to go on; empty to begin with its first task.
        forget: whether to forget what is listed and does not wait any more, as far as it is seen.

    Returns:
        For each of the queues some of the tasks, and where to go on; empty if there are no more.
    """
    calls = []
    for queue, begin in after.items():
        keys = store.keys(queue)
        calls.append((FIND_UNKNOWN, (keys.unknown, keys.messages), (begin, TASKS_PER_CALL, int(forget))))
    return dict(zip(after, map(_found, run_each(store.server, calls)), strict=True))


def _found(reply: Sequence[Any]) -> tuple[list[Waiting], str]:
    after, *rows = reply
    waiting = [
        Waiting(task.decode(errors="replace"), step.decode(errors="replace"), int(since) if since else None)
        for task, step, since in zip(rows[::3], rows[1::3], rows[2::3], strict=True)
    ]
    return waiting, after.decode(errors="replace")


def named(known: Iterable[tuple[int, Sequence[Waiting]]]) -> str:
    """What a take says of the tasks that its consumer knows: pairs of the index of a queue and some tasks."""
    return "".join(
        f"{index}{_PART}{each.task}{_PART}{each.step}{_END}" for index, some in known for each in some
    )
