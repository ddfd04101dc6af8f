"""The view of an operator on unacked messages."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from kombu_redisdelay.broker.message import split_stored
from kombu_redisdelay.broker.portions import BYTES_PER_CALL, MESSAGES_PER_CALL
from kombu_redisdelay.broker.server.scripts import READ_UNACKED
from kombu_redisdelay.broker.server.wire import answers, checked, clock_ms
from kombu_redisdelay.broker.store import Store
from kombu_redisdelay.broker.takes import taken_ms


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


def _name(member: bytes) -> str:
    return member.decode(errors="replace")
