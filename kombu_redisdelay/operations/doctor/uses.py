"""Lists the commands that are used, with their keys and channels: a user needs the permission for them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple
from uuid import uuid4

from kombu_redisdelay.broker.keys import (
    bindings,
    expected_type,
    known_queues,
    shared_exchanges,
    unbound,
)
from kombu_redisdelay.broker.server.wire import Argument, Command
from kombu_redisdelay.broker.store import Store
from kombu_redisdelay.operations.doctor.names import Name, Names

_Arguments = tuple[Argument, ...]

_NO_SCRIPT = "0" * 40

#: Commands without a key or a channel. EXEC and MULTI are missing: the check of the permissions itself uses
#: them.
_KEYLESS: Mapping[str, _Arguments] = {
    "PING": (),
    "TIME": (),
    "SCAN": (0,),
    "SCRIPT LOAD": ("return 1",),
    "SCRIPT EXISTS": (_NO_SCRIPT,),
    "EVAL": ("return 1", 0),
    "EVALSHA": (_NO_SCRIPT, 0),
}

#: Besides, at a cluster: redis-py asks for the servers, and follows a slot that moves.
_OF_A_CLUSTER: Mapping[str, _Arguments] = {"ASKING": (), "CLUSTER SLOTS": (), "INFO": ()}

#: The commands for keys of any type, and for the keys of each type: command -> its arguments after the key.
_WITH_ANY: Mapping[str, _Arguments] = {
    "TYPE": (),
    "EXISTS": (),
    "PTTL": (),
    "PEXPIRE": (60_000,),
    "DEL": (),
    "UNLINK": (),
    "MEMORY USAGE": (),
}
_WITH: Mapping[str, Mapping[str, _Arguments]] = {
    "list": {
        "LLEN": (),
        "LINDEX": (0,),
        "LRANGE": (0, 0),
        "LPUSH": ("",),
        "RPUSH": ("",),
        "RPOP": (),
        "LREM": (1, ""),
        "LTRIM": (0, -1),
    },
    "hash": {
        "HLEN": (),
        "HGET": ("",),
        "HMGET": ("",),
        "HKEYS": (),
        "HEXISTS": ("",),
        "HSTRLEN": ("",),
        "HSCAN": (0,),
        "HRANDFIELD": (-1,),
        "HSET": ("", ""),
        "HSETNX": ("", ""),
        "HINCRBY": ("", 1),
        "HDEL": ("",),
    },
    "zset": {
        "ZCARD": (),
        "ZCOUNT": (0, 1),
        "ZSCORE": ("",),
        "ZMSCORE": ("",),
        "ZSCAN": (0,),
        "ZRANGE": (0, 0),
        "ZRANGEBYSCORE": (0, 1),
        "ZRANGEBYLEX": ("-", "+"),
        "ZRANDMEMBER": (),
        "ZADD": (0, ""),
        "ZREM": ("",),
        "BZPOPMIN": (1,),
    },
    "set": {
        "SCARD": (),
        "SISMEMBER": ("",),
        "SMEMBERS": (),
        "SADD": ("",),
        "SREM": ("",),
    },
}


class Use(NamedTuple):
    """A command that is used.

    Attributes:
        command: the command with its arguments.
        of: the key or the channel in it; empty if there is none.
        rule: the rule for ``ACL SETUSER`` that allows this key or channel: a pattern after ``~`` or ``&``.
    """

    command: Command
    of: str = ""
    rule: str = ""


def uses(store: Store, names: Names) -> Iterator[Use]:
    """Every use that *names* need, as it is sent to the server."""
    keyless = {**_KEYLESS, **_OF_A_CLUSTER} if store.server.has_slots else _KEYLESS
    yield from (Use((*command.split(), *arguments)) for command, arguments in keyless.items())
    if store.confirms:
        yield Use(("WAIT", 0, 1))
    prefix = store.prefix
    for queue in names.queues:
        keys = store.keys(queue.text)
        yield from _of_ready_lists(store, queue)
        # A pattern that begins with `*` covers these keys, too: the queue's name is in the middle of them.
        of_name = store.keys(queue.pattern).unacked("").removesuffix("unacked:")
        rule = _rule_of_all(store, queue) if queue.pattern.startswith("*") else f"~{of_name}*"
        for key in (*keys.own, keys.unacked(uuid4().hex)):
            yield from _of_key(key, expected_type(key), rule)
    for queue in names.fanout_queues:
        yield from _of_ready_lists(store, queue)
    yield from _of_key(known_queues(prefix), "zset", f"~{known_queues(prefix)}")
    of_bindings = prefix + bindings(store.server.has_slots)
    for exchange in dict.fromkeys(names.exchanges):
        for key in (f"{of_bindings}.{exchange}", f"{of_bindings}_permanent.{exchange}"):
            yield from _of_key(key, "set", f"~{of_bindings}*")
    yield from _of_key(f"{of_bindings}_deadlines", "zset", f"~{of_bindings}*")
    shared = prefix + shared_exchanges(store.server.has_slots)
    yield from _of_key(shared, "set", f"~{of_bindings}*")
    for queue in names.queues:
        key = prefix + unbound(store.server.has_slots, queue.text)
        yield from _of_key(key, "hash", f"~{of_bindings}*")
    for channel, pattern in names.published.items():
        yield Use(("PUBLISH", prefix + channel, ""), prefix + channel, f"&{prefix}{pattern}")
    for pattern in dict.fromkeys(names.subscribed):
        # kombu 5.5 and 5.6 send UNSUBSCRIBE instead of PUNSUBSCRIBE.
        for command in ("PSUBSCRIBE", "PUNSUBSCRIBE", "UNSUBSCRIBE"):
            yield Use((command, prefix + pattern), prefix + pattern, f"&{prefix}{pattern}")


def _of_ready_lists(store: Store, queue: Name) -> Iterator[Use]:
    keys = store.keys(queue.text)
    for key in store.ready_keys(queue.text):
        if "*" in queue.pattern:
            rule = _rule_of_all(store, queue)
        elif key == keys.ready:
            rule = f"~{key}"
        else:
            # Not `~celery*`: that is `celery-task-meta-*`, too, the results of all tasks.
            rule = f"~{keys.ready}{keys.separator}*"
        yield from _of_key(key, "list", rule)


def _rule_of_all(store: Store, queue: Name) -> str:
    """The rule for all keys that begin as the names of these queues do."""
    pattern = queue.pattern.rstrip("*")
    # A pattern that begins with `*` covers the brace.
    has_brace = store.server.has_slots and not pattern.startswith("*")
    return f"~{store.prefix}{{{pattern}*" if has_brace else f"~{store.prefix}{pattern}*"


def _of_key(key: str, kind: str, rule: str) -> Iterator[Use]:
    for command, arguments in {**_WITH_ANY, **_WITH[kind]}.items():
        yield Use((*command.split(), key, *arguments), key, rule)
    yield Use(("EVALSHA", _NO_SCRIPT, 1, key), key, rule)
