"""The bindings that kombu keeps in Redis, those of ``redis://`` included, whatever their separator is."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from redis.exceptions import ResponseError

from kombu_redisdelay.broker import keys
from kombu_redisdelay.broker.portions import MESSAGES_PER_CALL, NAME_BYTES_PER_CALL, portions
from kombu_redisdelay.broker.server.replies import answers
from kombu_redisdelay.broker.store import Store

#: Keys that Redis looks at in one round trip.
KEYS_PER_CALL = 1000

#: Parts of a binding: routing key, pattern, queue. (``Channel.get_table`` of kombu's ``redis``.)
BINDING = 3

#: What the transport option ``sep`` is: by default, and in the applications that set it.
SEPARATORS = ("\x06\x16", ":")

#: The most characters of any other separator.
LONGEST_SEPARATOR = 4


class Binding(NamedTuple):
    """A binding of an exchange.

    Attributes:
        separator: what its parts are joined with: the option ``sep`` of the process that declared it.
    """

    routing_key: str
    pattern: str
    queue: str
    separator: str


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
        if cursor in (b"0", 0):
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


def _key_of(store: Store, exchange: str) -> str:
    return f"{store.prefix}{keys.bindings(store.server.has_slots)}.{exchange}"


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
