"""The view of an operator on who holds what: consumers their unacked messages, messages their unique keys."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

from kombu_redisdelay.broker.delivery import taken_ms
from kombu_redisdelay.broker.message import split_stored
from kombu_redisdelay.broker.portions import BYTES_PER_CALL, MESSAGES_PER_CALL
from kombu_redisdelay.broker.server.scripts import READ_UNACKED
from kombu_redisdelay.broker.server.wire import Command, answers, checked, clock_ms
from kombu_redisdelay.broker.store import Store
from kombu_redisdelay.broker.unique import id_in, id_of

#: What a key has: state and step, two times, then the name.
_WORDS = 4

#: What separates the parts of what the hashes have for a key.
_PART = "\x1e"

#: The number of parts by which a running message is noted: its consumer, and the delivery tag.
_PARTS = 2

#: Where a holder is: a consumer has it, it is ready, it is scheduled, or is scheduled again, as a retry is.
RUNNING, READY, SCHEDULED, AGAIN = "running", "r", "s", "a"


@dataclass(frozen=True, slots=True)
class Unacked:
    """A message that a consumer has taken and not acked.

    Attributes:
        consumer: its name (:mod:`kombu_redisdelay.broker.processes`).
        since_ms: when it was taken, ms since the epoch; ``None`` if its tag does not tell.
        lease_has_ended: whether the lease of the consumer had ended when the queue was looked at.
    """

    queue: str
    consumer: str
    tag: bytes
    since_ms: float | None
    lease_has_ended: bool
    payload: bytes


class UnackedHashes:
    """The unacked messages in *store*, queue by queue."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def counts(self, queues: Sequence[str]) -> list[int]:
        """How many messages of each of *queues* are unacked."""
        keys = [self._store.keys(queue) for queue in queues]
        members = answers(self._store.server, (("ZRANGE", k.consumers, 0, -1) for k in keys))
        commands = [
            ("HLEN", k.unacked(_name(member)))
            for k, its_members in zip(keys, members, strict=True)
            for member in its_members
        ]
        lengths = iter(answers(self._store.server, commands) if commands else ())
        return [sum(islice(lengths, len(its_members))) for its_members in members]

    def iter(self, queue: str, is_wanted: Callable[[str], bool] = lambda consumer: True) -> Iterator[Unacked]:
        """The messages that are unacked now, consumer by consumer, in the order in which they were taken.

        Arguments:
            is_wanted: whether the messages of the consumer with this name are read.
        """
        server, key = self._store.server, self._store.keys(queue).consumers
        members = server.call("ZRANGE", key, 0, -1)
        now, *ends_ms = checked(server.call_all(("TIME",), *(("ZSCORE", key, member) for member in members)))
        now_ms = clock_ms(now)
        for member, end_ms in zip(members, ends_ms, strict=True):
            # One that has left meanwhile holds nothing.
            if end_ms is not None and is_wanted(_name(member)):
                yield from self._unacked_by(queue, _name(member), float(end_ms) <= now_ms)

    def _unacked_by(self, queue: str, consumer: str, lease_has_ended: bool) -> Iterator[Unacked]:
        server, key = self._store.server, self._store.keys(queue).unacked(consumer)
        tags = sorted(server.call("HKEYS", key), key=lambda tag: (len(tag), tag))
        while tags:
            found = READ_UNACKED(server, (key,), (BYTES_PER_CALL, *tags[:MESSAGES_PER_CALL]))
            for tag, stored in zip(tags, found, strict=False):
                if stored is not None:
                    payload = split_stored(stored)[1]
                    yield Unacked(queue, consumer, tag, taken_ms(tag), lease_has_ended, payload)
            del tags[: len(found)]


class Holder(NamedTuple):
    """The message that holds a key.

    Attributes:
        id: its id.
        state: where it should be: one of the four above.
        name: its name in the schedule, or the delivery tag.
        consumer: the consumer that has it, if it is running.
    """

    id: str
    state: str
    name: str
    consumer: str = ""


def holder_of(store: Store, queue: str, field: str) -> str | None:
    """The id of the message of *queue* that holds a key; ``None`` if none does.

    Arguments:
        field: the key as it is in Redis.
    """
    [holder] = holders(store, queue, [field])
    return None if holder is None else holder.id


def holders(store: Store, queue: str, fields: Sequence[str]) -> list[Holder | None]:
    """The messages of *queue* that hold some keys. A program that knows no keys may have taken one that is
    ready or scheduled. Makes one round trip, and another one if any is running."""
    keys = store.keys(queue)
    commands = ((("HGET", keys.running, field), ("HGET", keys.unique, field)) for field in fields)
    replies = answers(store.server, (command for both in commands for command in both))
    found = [(reply or b"").decode(errors="replace") for reply in replies]
    running = _running(store, queue, found[::2])
    return [one or _current(other) for one, other in zip(running, found[1::2], strict=True)]


def living_holders(store: Store, queue: str, fields: Sequence[str]) -> list[Holder | None]:
    """The same without messages that are not where they should be. Makes one round trip more."""
    found = holders(store, queue, fields)
    some = [holder for holder in found if holder is not None]
    lost = {
        holder for holder, is_there in zip(some, _are_there(store, queue, some), strict=True) if not is_there
    }
    return [None if holder in lost else holder for holder in found]


def _name(member: bytes) -> str:
    return member.decode(errors="replace")


def having_unique_keys(store: Store, queues: Sequence[str]) -> list[str]:
    """Those of *queues* in which any message has a key. Makes one round trip."""
    each = [store.keys(queue) for queue in queues]
    found = answers(store.server, (("EXISTS", keys.unique, keys.running) for keys in each))
    return [queue for queue, exists in zip(queues, found, strict=True) if exists]


def _are_there(store: Store, queue: str, found: Sequence[Holder]) -> list[bool]:
    """Whether the messages are where they should be. Makes one round trip."""
    keys = store.keys(queue)
    ready = keys.ready, *store.keys_of_ready(queue)
    commands: list[Command] = []
    for holder in found:
        if holder.state == RUNNING:
            commands.append(("HEXISTS", keys.unacked(holder.consumer), holder.name))
        elif holder.state == READY:
            commands.append(("EXISTS", *ready))
        else:
            commands.append(("HEXISTS", keys.messages, holder.name))
    return list(map(bool, answers(store.server, commands)))


def _running(store: Store, queue: str, texts: Sequence[str]) -> list[Holder | None]:
    """What the hash ``running`` has for some keys: those whose messages are unacked, which tell their ids."""
    pairs = [text.split(_PART) for text in texts]
    wanted = [pair for pair in pairs if len(pair) == _PARTS]
    if not wanted:
        return [None] * len(texts)
    keys = store.keys(queue)
    stored = iter(answers(store.server, (("HGET", keys.unacked(consumer), tag) for consumer, tag in wanted)))
    ids = (id_of(next(stored) or b"") if len(pair) == _PARTS else None for pair in pairs)
    return [
        None if id is None else Holder(id, RUNNING, name=pair[1], consumer=pair[0])
        for pair, id in zip(pairs, ids, strict=True)
    ]


def _current(text: str) -> Holder | None:
    words = text.partition(_PART)[0].split(" ", _WORDS - 1)
    if len(words) < _WORDS or words[0][:1] not in (READY, SCHEDULED, AGAIN):
        return None
    return Holder(id_in(words[-1]), words[0][0], words[-1])
