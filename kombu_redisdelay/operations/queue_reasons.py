"""Why the messages of a queue wait: in a word, and of which tasks and consumers."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from typing import NamedTuple

from kombu_redisdelay.broker.message import from_ms
from kombu_redisdelay.broker.options import ISOLATED_FOR
from kombu_redisdelay.broker.portions import NAME_BYTES_PER_CALL, portions
from kombu_redisdelay.broker.processes import has_ended, process_of
from kombu_redisdelay.broker.server.scripts import FIND_ISOLATED, ScriptCall, run_each
from kombu_redisdelay.broker.server.wire import answers
from kombu_redisdelay.broker.store import Store
from kombu_redisdelay.broker.unknown_tasks import find_waiting
from kombu_redisdelay.words import printable


def with_lease(store: Store, names: Collection[str]) -> dict[str, list[bytes]]:
    """Queue or partition -> the consumers whose lease lasts."""
    now_ms = store.now_ms()
    commands = (("ZRANGEBYSCORE", store.keys(name).consumers, now_ms, "+inf") for name in names)
    return dict(zip(names, answers(store.server, commands), strict=True))


def deserted(store: Store, names: Collection[str]) -> set[str]:
    """The queues and partitions whose consumers were all processes of this machine that have ended. Their
    leases last for a while."""
    if not names:
        return set()
    is_over = cache(has_ended)
    return {
        name
        for name, some in with_lease(store, names).items()
        if some and all(is_over(process_of(consumer.decode(errors="replace"))) for consumer in some)
    }


#: Queues that are looked at in one round trip.
QUEUES_PER_CALL = 100


def isolated(store: Store, waiting: Mapping[str, int], holding: Sequence[str]) -> set[str]:
    """Those of the queues *waiting* whose consumers each have an isolated message.

    Arguments:
        waiting: queue or partition -> how many consumers it has.
        holding: the queues and partitions where isolated messages are looked for. One may be of another
            queue than waits, because its consumer takes nothing from any of its queues.
    """
    if not (waiting and store.isolated_after):
        return set()
    consumers = _with_isolated(store, holding)
    few = [name for name, count in waiting.items() if count <= len(consumers)]
    if not few:
        return set()
    leases = with_lease(store, few)
    return {name for name, some in leases.items() if some and consumers.issuperset(some)}


def _with_isolated(store: Store, names: Iterable[str]) -> set[bytes]:
    """The consumers that have an isolated message of one of *names*."""
    found: set[bytes] = set()
    for some in portions(names, len, QUEUES_PER_CALL, NAME_BYTES_PER_CALL):
        found.update(*run_each(store.server, [_call(store, name) for name in some]))
    return found


def _call(store: Store, name: str) -> ScriptCall:
    keys = store.keys(name)
    return (
        FIND_ISOLATED,
        (keys.consumers,),
        (keys.unacked(""), store.isolated_after, round(ISOLATED_FOR * 1_000_000)),
    )


#: Seconds within which a worker that knows a task and has room takes it.
PATIENCE = 15.0


@dataclass(frozen=True, slots=True)
class UnknownTask:
    """A task of which messages wait for a worker that knows it.

    Attributes:
        task: its name, safe to print. Of a very long name, ``#`` and its SHA-1.
        since: since when the oldest of them waits, in UTC, by the server's clock.
    """

    queue: str
    task: str
    since: datetime


def unknown_tasks(store: Store, queues: Sequence[str]) -> list[UnknownTask]:
    """The tasks of which messages have waited in *queues* for longer than :data:`PATIENCE`, at most a hundred
    of each queue and partition. A message that a worker does not know waits for one that does; if that takes
    longer, no worker of the queue knows the task, or none of those that do has room."""
    names = {name: queue for queue in queues for name in store.partitions.names(queue)}
    there = answers(store.server, (("EXISTS", store.keys(name).unknown) for name in names))
    some = [name for name, exists in zip(names, there, strict=True) if exists]
    oldest: dict[tuple[str, str], int] = {}
    for name, task, since_ms in _waiting_for_long(store, some):
        which = names[name], printable(task)
        oldest[which] = min(since_ms, oldest.get(which, since_ms))
    return [UnknownTask(queue, task, from_ms(ms)) for (queue, task), ms in oldest.items()]


def with_unknown_tasks(store: Store, names: Sequence[str]) -> set[str]:
    """The queues and partitions among *names* of which :func:`unknown_tasks` has some. All of *names* list
    tasks, but also messages that do not wait any more."""
    return {name for name, _, _ in _waiting_for_long(store, names)}


def _waiting_for_long(store: Store, names: Sequence[str]) -> Iterable[tuple[str, str, int]]:
    """Names, tasks as they are listed, and since when the oldest message of them waits."""
    if not names:
        return
    before_ms = store.now_ms() - PATIENCE * 1000
    for name, (waiting, _) in find_waiting(store, dict.fromkeys(names, "")).items():
        for each in waiting:
            if each.since_ms is not None and each.since_ms <= before_ms:
                yield name, each.task, each.since_ms


PAUSED = "paused"
NO_CONSUMER = "no consumer"
LOST = "workers lost"
CONCURRENCY = "concurrency limit"
RATE = "rate limit"
KEY_LIMITS = "key limits"
ISOLATED = "isolated"
PREFETCH = "prefetch full"
UNKNOWN = "unknown task"

#: Of a message: it waits for another one with its unique key.
BLOCKED = "blocked"

#: All reasons of a queue. If several apply, the first one counts.
REASONS = (PAUSED, NO_CONSUMER, LOST, CONCURRENCY, RATE, KEY_LIMITS, ISOLATED, PREFETCH, UNKNOWN)

#: Seconds after which a consumer with room has certainly taken a message, from any producer.
NOTICED_AFTER = 5.0


class Facts(NamedTuple):
    """What is known of a queue that has ready or overdue messages.

    Attributes:
        consumers: how many consumers it has.
        is_paused: whether it is paused.
        has_no_permit: whether consumers hold as many messages as its concurrency allows.
        has_no_token: whether its rate allows no message now.
        waits_for_keys: whether all ready messages are of keys at their limits.
        has_waker: whether a wake-up token is there. A consumer with room would have taken it at once.
        unacked: how many messages are unacked.
        waiting: seconds that the next ready message has waited, ``None`` if unknown.
        lateness: seconds since the first scheduled message became due.
    """

    consumers: int
    is_paused: bool
    has_no_permit: bool
    has_no_token: bool
    waits_for_keys: bool
    has_waker: bool
    unacked: int
    waiting: float | None
    lateness: float


def reason_of(facts: Facts) -> str | None:
    """The reason why its messages wait; ``None`` if they will be taken next."""
    if not facts.consumers:
        # A message of unknown age is from redis://, and there may be workers of redis://, too.
        if max(facts.waiting or 0.0, facts.lateness) <= NOTICED_AFTER:
            return None
        return PAUSED if facts.is_paused else NO_CONSUMER
    # Without a token, too: tokens expire, and a stock producer adds none.
    is_left_there = facts.has_waker or facts.unacked or (facts.waiting or 0.0) > NOTICED_AFTER
    applying = {
        PAUSED: facts.is_paused,
        CONCURRENCY: facts.has_no_permit,
        RATE: facts.has_no_token,
        KEY_LIMITS: facts.waits_for_keys,
        PREFETCH: is_left_there,
    }
    return first([reason for reason, applies in applying.items() if applies])


def first(reasons: Collection[str | None]) -> str | None:
    """The one of *reasons* that counts; ``None`` if there is none."""
    return next((reason for reason in REASONS if reason in reasons), None)
