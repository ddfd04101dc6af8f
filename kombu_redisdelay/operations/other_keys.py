"""Estimates what takes the rest of a database: results, replies, and what other programs keep there."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from heapq import nlargest
from operator import itemgetter
from typing import Any

from redis.exceptions import ResponseError

from kombu_redisdelay.broker.server.server import OneServer
from kombu_redisdelay.broker.server.wire import Command
from kombu_redisdelay.operations.content import message_of
from kombu_redisdelay.operations.queue_bytes import ENTRY_SAMPLES, memory_usages
from kombu_redisdelay.public import public

#: Keys of each server that are looked at. Redis tells them in no order.
KEYS_LOOKED_AT = 1000

#: Keys that are named, and bytes that the entries of a list have on average, at most, for one to be read.
MOST_NAMED, MOST_BYTES_OF_ENTRY = 2, 256 * 1024

#: Entries of a key whose sizes Redis looks at.
SAMPLES = 100

RESULTS, REPLIES, STOCK, BINDINGS, OTHERS = (
    "results of tasks",
    "replies of remote control",
    "unacked of redis://",
    "bindings of exchanges",
    "other keys",
)

#: What Celery's result backends begin their keys with, behind a prefix.
_RESULT = re.compile(rb"celery-task-meta-|celery-taskset-meta-|chord-unlock-")
_REPLY = re.compile(rb"\.reply\.celery\.pidbox")

#: How Celery names the queue of the results of ``rpc://``, behind a prefix: a UUID, on a cluster in braces.
_RESULTS_FOR = re.compile(rb".*[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\}?", re.DOTALL)


@public
@dataclass(frozen=True, slots=True)
class LargeKey:
    """A large key of another program.

    Attributes:
        name: its name. It may be anything.
        type: such as "string"; ``None`` if this user may not ask for it.
        bytes: about how many bytes of Redis it takes.
        may_be_queue: whether it is a list whose first entry looks like a message: it may be a queue of
            ``redis://`` that no app declares.
        has_results: whether it is a list of results of ``rpc://`` that nobody has fetched, as its name and
            its first entry say.
    """

    name: str
    type: str | None
    bytes: int
    may_be_queue: bool
    has_results: bool = False


@public
@dataclass(frozen=True, slots=True)
class OtherKeys:
    """Keys that are not of our queues.

    Attributes:
        what: such as "results of tasks".
        keys: about how many there are.
        bytes: about how many bytes of Redis they take.
        largest: of "other keys", the largest ones that were looked at; empty for the others.
    """

    what: str
    keys: int
    bytes: int
    largest: Sequence[LargeKey] = ()


class NotAllowed(Exception):
    """The user may not look at these keys."""


def other_keys(
    servers: Sequence[OneServer],
    is_ours: Callable[[bytes], bool],
    stock_keys: Collection[str],
    database: int,
    results: Collection[str] = (),
) -> list[OtherKeys]:
    """What there is beside our queues, the largest first.

    Arguments:
        is_ours: whether a key is one of our queues.
        stock_keys: the keys in which workers of ``redis://`` keep what they have taken.
        database: its number.
        results: what keys of results begin with, beside Celery's usual names.

    Raises:
        NotAllowed: the user may not do that. It says what is missing.
    """
    found: dict[str, list[float]] = {}
    large: list[tuple[int, float, bytes, OneServer]] = []
    for server in servers:
        for key, what, scale, size in _of_server(server, is_ours, stock_keys, database, results):
            counts = found.setdefault(what, [0.0, 0.0])
            counts[0] += scale
            counts[1] += scale * size
            if what == OTHERS:
                large.append((size, scale, key, server))
    named = []
    for size, scale, key, server in nlargest(MOST_NAMED, large, key=itemgetter(0)):
        # A single large key does not stand for others that were not looked at.
        found[OTHERS][0] -= scale - 1
        found[OTHERS][1] -= (scale - 1) * size
        named.append(_large_key(server, key, size))
    rows = [
        OtherKeys(what, round(keys), round(size), named if what == OTHERS else ())
        for what, (keys, size) in found.items()
    ]
    return sorted(rows, key=lambda row: -row.bytes)


def other_databases(servers: Sequence[OneServer], database: int) -> list[str]:
    """The other databases of the servers that have keys."""
    names = {name for server in servers for name in server.info("keyspace")}
    return sorted(names - {f"db{database}"})


def _of_server(
    server: OneServer,
    is_ours: Callable[[bytes], bool],
    stock_keys: Collection[str],
    database: int,
    results: Collection[str],
) -> Iterator[tuple[bytes, str, float, int]]:
    try:
        there: Any = server.info("keyspace").get(f"db{database}", {})
        cursor, scanned = server.call("SCAN", 0, "COUNT", KEYS_LOOKED_AT)
    except ResponseError as exc:
        raise NotAllowed(str(exc)) from exc
    stock = {key.encode() for key in stock_keys}
    keys = [key for key in scanned if not is_ours(key) and key not in stock]
    scale = 1.0 if cursor == b"0" else max(1.0, int(there.get("keys", 0)) / max(1, len(scanned)))
    for key, size in zip(keys, _usages(server, keys, SAMPLES), strict=True):
        yield key, _kind(key, results), scale, size
    ours = sorted(stock)
    for key, size in zip(ours, _usages(server, ours, ENTRY_SAMPLES), strict=True):
        if size:
            yield key, STOCK, 1.0, size


def _large_key(server: OneServer, key: bytes, size: int) -> LargeKey:
    type_name, message = None, None
    with suppress(ResponseError):
        type_name = server.call("TYPE", key).decode(errors="replace")
        if type_name == "list" and size <= MOST_BYTES_OF_ENTRY * int(server.call("LLEN", key)):
            message = next(map(_message_in, server.call("LRANGE", key, 0, 0)), None)
    has_results = message is not None and _is_result(key, message)
    is_message = message is not None and not has_results
    return LargeKey(key.decode(errors="replace"), type_name, size, is_message, has_results)


def _message_in(entry: bytes) -> Mapping[str, Any] | None:
    """The message that an *entry* is; ``None`` if it is none."""
    try:
        return message_of(entry)
    except Exception:
        # Foreign bytes may make the decoder raise any exception.
        return None


def _is_result(key: bytes, message: Mapping[str, Any]) -> bool:
    """Whether *message* is a result of ``rpc://``, in the list that its client gets them from."""
    is_answer = "task" not in message["headers"] and bool(message["properties"].get("correlation_id"))
    return is_answer and _RESULTS_FOR.fullmatch(key) is not None


def _usages(server: OneServer, keys: Sequence[bytes], samples: int) -> Iterator[int]:
    commands: list[Command] = [("MEMORY", "USAGE", key, "SAMPLES", samples) for key in keys]
    for size in memory_usages(server, commands):
        if size is None:
            raise NotAllowed("MEMORY USAGE is not allowed for all keys")
        yield size


def _kind(key: bytes, results: Collection[str]) -> str:
    if _RESULT.search(key) or any(key.startswith(prefix.encode()) for prefix in results):
        return RESULTS
    if _REPLY.search(key):
        return REPLIES
    return BINDINGS if b"_kombu.binding" in key else OTHERS
