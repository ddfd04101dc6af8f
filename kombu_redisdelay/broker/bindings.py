"""The bindings that kombu keeps in Redis, those of ``redis://`` included, whatever their separator is."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from redis.exceptions import ResponseError

from kombu_redisdelay.broker import keys
from kombu_redisdelay.broker.portions import MESSAGES_PER_CALL, NAME_BYTES_PER_CALL, portions
from kombu_redisdelay.broker.server.scripts import BIND, ScriptCall, run_each
from kombu_redisdelay.broker.server.wire import answers
from kombu_redisdelay.broker.store import Store, name_of

#: Keys that Redis looks at in one round trip.
KEYS_PER_CALL = 1000

#: Parts of a binding: routing key, pattern, queue. (``Channel.get_table`` of kombu's ``redis``.)
BINDING = 3

#: What the transport option ``sep`` is: by default, and in the applications that set it.
SEPARATORS = ("\x06\x16", ":")

#: The most characters of any other separator.
LONGEST_SEPARATOR = 4

#: Milliseconds for which processes that have declared a binding before heed that it was unbound, from when
#: one of them last did.
UNBOUND_MS = 24 * 3600 * 1000

#: What ``lua/bind.lua`` says of a binding: it was not there, or it is not there, because it was unbound.
NEW, UNBOUND = 1, -1


class Binding(NamedTuple):
    """A binding of an exchange.

    Attributes:
        separator: what its parts are joined with: the option ``sep`` of the process that declared it.
    """

    routing_key: str
    pattern: str
    queue: str
    separator: str


class QueueBinding(NamedTuple):
    """A binding as a process declares it, in the order of kombu's ``Channel._queue_bind``."""

    exchange: str
    routing_key: str
    pattern: str
    queue: str


class LastingBindings:
    """Binds queues to exchanges in Redis, and unbinds them: queues that neither expire nor go with their
    consumer. On a cluster, all of this is in one slot.

    What was unbound is noted. Processes that say again what they have declared before heed that.
    """

    def __init__(self, store: Store) -> None:
        self._store = store

    def bind(self, some: Sequence[QueueBinding], *, again: bool) -> list[int]:
        """Bind the queues.

        Arguments:
            again: whether this process has declared the bindings before.

        Returns:
            For each of them :data:`NEW`, 0 if it was there, or :data:`UNBOUND`.

        Raises:
            RedisError: the connection failed, or the server refused.
        """
        return self._run(
            (
                BIND,
                self._keys(each.exchange, each.queue),
                (
                    "again" if again else "first",
                    each.exchange,
                    _field(each.exchange, each.routing_key),
                    UNBOUND_MS,
                    self._member(each),
                ),
            )
            for each in some
        )

    def lost(self, some: Iterable[QueueBinding]) -> list[QueueBinding]:
        """Those of *some* that Redis does not have, or not in all places. Only reads."""
        found = []
        for portion in portions(some, _size, MESSAGES_PER_CALL, NAME_BYTES_PER_CALL):
            looks = [(each, look) for each in portion for look in self._looks(each)]
            replies = answers(self._store.server, (look for _, look in looks))
            found += [each for (each, _), is_there in zip(looks, replies, strict=True) if not is_there]
        return list(dict.fromkeys(found))

    def unbind(self, queue: str, exchange: str, routing_key: str) -> None:
        """Take the binding of *queue* to *exchange* by *routing_key* out, whoever has declared it."""
        found = [each for each in self._of(queue, [exchange])[exchange] if each.routing_key == routing_key]
        self._run(self._unbinding(queue, exchange, _field(exchange, routing_key), found))

    def unbind_all(self, queue: str, exchanges: Iterable[str] = ()) -> list[QueueBinding]:
        """Take all bindings of *queue* out, whoever has declared them, because it is deleted.

        Arguments:
            exchanges: where to look, beside the exchanges that are known in Redis.

        Returns:
            What was taken out.
        """
        [shared] = answers(self._store.server, [("SMEMBERS", self._shared)])
        # With Celery, most queues have an exchange of their name.
        known = dict.fromkeys((queue, *exchanges, *filter(None, map(name_of, shared))))
        found = {exchange: some for exchange, some in self._of(queue, known).items() if some}
        # Without any, the note is all that is to be done.
        for exchange, some in (found or {queue: []}).items():
            self._run(self._unbinding(queue, exchange, "", some))
        return [
            QueueBinding(exchange, each.routing_key, each.pattern, queue)
            for exchange, some in found.items()
            for each in some
        ]

    @property
    def _shared(self) -> str:
        return self._store.prefix + keys.shared_exchanges(self._store.server.has_slots)

    def _keys(self, exchange: str, queue: str) -> list[str]:
        """The keys of ``lua/bind.lua``."""
        unbound = self._store.prefix + keys.unbound(self._store.server.has_slots, queue)
        used = [_key_of(self._store, exchange), _key_of(self._store, exchange, "_permanent"), unbound]
        return used if exchange == queue else [*used, self._shared]

    def _member(self, each: QueueBinding) -> str:
        return self._store.separator.join((each.routing_key, each.pattern, each.queue))

    def _looks(self, each: QueueBinding) -> Iterator[tuple[str, str, str]]:
        bindings, permanent, _, *shared = self._keys(each.exchange, each.queue)
        yield "SISMEMBER", bindings, self._member(each)
        yield "SISMEMBER", permanent, self._member(each)
        for key in shared:
            yield "SISMEMBER", key, each.exchange

    def _of(self, queue: str, exchanges: Iterable[str]) -> dict[str, list[Binding]]:
        """The bindings of *queue* to each of *exchanges*."""
        found: dict[str, list[Binding]] = {}
        for some in portions(exchanges, len, MESSAGES_PER_CALL, NAME_BYTES_PER_CALL):
            tables = answers(self._store.server, (("SMEMBERS", _key_of(self._store, each)) for each in some))
            for exchange, members in zip(some, tables, strict=True):
                found[exchange] = [each for each in _read(self._store, members) if each.queue == queue]
        return found

    def _unbinding(
        self, queue: str, exchange: str, field: str, bindings: Sequence[Binding]
    ) -> Iterator[ScriptCall]:
        used = self._keys(exchange, queue)
        # Without any, there is the note.
        for first in range(0, max(1, len(bindings)), MESSAGES_PER_CALL):
            members = [
                each.separator.join((each.routing_key, each.pattern, each.queue))
                for each in bindings[first : first + MESSAGES_PER_CALL]
            ]
            yield BIND, used, ("unbind", exchange, field, UNBOUND_MS, *members)

    def _run(self, calls: Iterable[ScriptCall]) -> list[int]:
        replies: list[int] = []
        for some in portions(calls, _size_of_call, MESSAGES_PER_CALL, NAME_BYTES_PER_CALL):
            replies += run_each(self._store.server, some)
        return replies


def all_bindings(store: Store) -> Iterator[Binding]:
    """The bindings of all exchanges. Looks at each key of the database, in portions: kombu has no list
    of exchanges. They are on one server, not on a cluster."""
    # Celery gives a queue without a declaration an exchange of its own.
    pattern = re.sub(r"([*?\[\]\\])", r"\\\1", _key_of(store, "")) + "*"
    cursor = b"0"
    while True:
        cursor, found = store.server.call(
            "SCAN", cursor, "MATCH", pattern, "COUNT", KEYS_PER_CALL, "TYPE", "set"
        )
        for members in answers(store.server, (("SMEMBERS", key) for key in found)):
            yield from _read(store, members)
        if cursor == b"0":
            return


def bindings_of(store: Store, exchanges: Iterable[str]) -> Iterator[Binding]:
    """The bindings of *exchanges*, without those that cannot be read."""
    names = (_key_of(store, exchange) for exchange in exchanges)
    for some in portions(names, len, MESSAGES_PER_CALL, NAME_BYTES_PER_CALL):
        for members in store.server.call_all(*(("SMEMBERS", key) for key in some)):
            if not isinstance(members, ResponseError):
                yield from _read(store, members)


def separators(store: Store, bindings: Iterable[Binding]) -> list[str]:
    """The separators that programs may use at this broker: those that are common, and those of *bindings*."""
    return list(dict.fromkeys((store.separator, *SEPARATORS, *(each.separator for each in bindings))))


def _key_of(store: Store, exchange: str, kind: str = "") -> str:
    return f"{store.prefix}{keys.bindings(store.server.has_slots)}{kind}.{exchange}"


def _field(exchange: str, routing_key: str) -> str:
    return exchange + "\x1f" + routing_key


def _size(binding: QueueBinding) -> int:
    return sum(map(len, binding))


def _size_of_call(call: ScriptCall) -> int:
    _, _, args = call
    return sum(len(each) for each in args if isinstance(each, str))


def _read(store: Store, members: Iterable[bytes]) -> Iterator[Binding]:
    for member in members:
        try:
            binding = _split(member.decode(), (store.separator, *SEPARATORS))
        except UnicodeDecodeError:
            continue
        if binding is not None and binding.queue:
            yield binding


def _split(member: str, likely: Iterable[str]) -> Binding | None:
    for separator in likely:
        parts = member.split(separator)
        if len(parts) == BINDING:
            return Binding(parts[0], parts[1], parts[2], separator)
    # As Celery declares a queue: under its own name, and without a pattern.
    for size in range(1, LONGEST_SEPARATOR + 1):
        name = member[: (len(member) - 2 * size) // 2]
        separator = member[len(name) : len(name) + size]
        if name and member == name + separator + separator + name:
            return Binding(name, "", name, separator)
    return None
