"""Estimates what takes the rest of a database: results, replies, and what other programs keep there."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from redis.exceptions import ResponseError

from kombu_redisdelay.broker.server.server import OneServer
from kombu_redisdelay.broker.server.wire import Command
from kombu_redisdelay.operations.queue_bytes import ENTRY_SAMPLES, memory_usages
from kombu_redisdelay.public import public

#: Keys of each server that are looked at. Redis tells them in no order.
KEYS_LOOKED_AT = 1000

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


@public
@dataclass(frozen=True, slots=True)
class OtherKeys:
    """Keys that are not of our queues.

    Attributes:
        what: such as "results of tasks".
        keys: about how many there are.
        bytes: about how many bytes of Redis they take.
    """

    what: str
    keys: int
    bytes: int


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
    for server in servers:
        for what, keys, size in _of_server(server, is_ours, stock_keys, database, results):
            counts = found.setdefault(what, [0.0, 0.0])
            counts[0] += keys
            counts[1] += size
    rows = [OtherKeys(what, round(keys), round(size)) for what, (keys, size) in found.items()]
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
) -> Iterator[tuple[str, float, float]]:
    try:
        there: Any = server.info("keyspace").get(f"db{database}", {})
        cursor, scanned = server.call("SCAN", 0, "COUNT", KEYS_LOOKED_AT)
    except ResponseError as exc:
        raise NotAllowed(str(exc)) from exc
    stock = {key.encode() for key in stock_keys}
    keys = [key for key in scanned if not is_ours(key) and key not in stock]
    scale = 1.0 if cursor == b"0" else max(1.0, int(there.get("keys", 0)) / max(1, len(scanned)))
    for key, size in zip(keys, _usages(server, keys, SAMPLES), strict=True):
        yield _kind(key, results), scale, scale * size
    for size in _usages(server, sorted(stock), ENTRY_SAMPLES):
        if size:
            yield STOCK, 1, size


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
