"""Checks whether the server allows every command that is used, with its keys and channels."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, islice
from typing import Any, NamedTuple
from uuid import uuid4

from redis.connection import AbstractConnection
from redis.exceptions import NoPermissionError, ResponseError

from kombu_redisdelay.broker.keys import (
    bindings,
    expected_type,
    known_queues,
    shared_exchanges,
    unbound,
)
from kombu_redisdelay.broker.server.server import OneServer
from kombu_redisdelay.broker.server.wire import Argument, Command, pack
from kombu_redisdelay.broker.store import Store
from kombu_redisdelay.operations.doctor.finding import Finding, ok, wrong
from kombu_redisdelay.operations.doctor.names import Name, Names
from kombu_redisdelay.words import first_of

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


#: The largest number of commands in one transaction.
_PORTION = 10_000

#: Up to this number of queues, each is checked by some 250 commands. With more, an invented queue is tried
#: first: its refusal would stand in the log of the server.
_MANY = 100

#: Refusals that a finding names. Its rules are for all of them.
MOST_NAMED = 8

#: Commands whose second word is a part of their name.
_WITH_SUBCOMMANDS = "SCRIPT", "CLUSTER", "MEMORY"

_BEGIN, _END = Use(("MULTI",)), Use(("EXEC",))


def check_permissions(store: Store, names: Names, silent: Collection[str]) -> Iterator[Finding]:
    """
    Arguments:
        silent: addresses of servers that do not answer, and are not asked.
    """
    commands, keys, channels = {}, {}, {}
    servers = [one for one in store.server.servers() if one.address not in silent]
    refusals = (_refused_of(one, store, names) for one in servers)
    for use, error in chain.from_iterable(refusals):
        # All versions of Redis and Valkey use these words in their errors.
        if "to run the" in error:
            commands[_name(use)] = _rule(use)
        elif "channel" in error:
            channels[use.of] = use.rule
        else:
            keys[use.of] = use.rule
    if _name(_BEGIN) in commands:
        needed = chain((_BEGIN, _END), uses(store, names))
        every = dict.fromkeys(rule for use in needed for rule in (_rule(use), use.rule) if rule)
        yield wrong(
            "permissions",
            f"commands refused: {', '.join(commands)}; without MULTI, doctor cannot look at the others",
            f"All that is needed: ACL SETUSER <user> {' '.join(map(_written, every))}",
        )
        return
    why = {"commands": " (scripts need every command that they call)"}
    for what, refused in (("commands", commands), ("keys", keys), ("channels", channels)):
        if refused:
            rules = " ".join(map(_written, dict.fromkeys(refused.values())))
            yield wrong(
                "permissions",
                f"{what} refused: {first_of(list(refused), MOST_NAMED)}",
                f"ACL SETUSER <user> {rules}{why.get(what, '')}",
            )
    if not (commands or keys or channels):
        yield ok("permissions", "all commands, keys and channels are allowed")


def _name(use: Use) -> str:
    """The name of its command, as rules have it but for the case."""
    command, *rest = map(str, use.command)
    return f"{command}|{rest[0]}" if command in _WITH_SUBCOMMANDS else command


def _rule(use: Use) -> str:
    return f"+{_name(use).lower()}"


def _written(rule: str) -> str:
    """A rule as one writes it at the prompt of redis-cli."""
    escaped = "".join(each if each.isprintable() else f"\\x{ord(each):02x}" for each in rule)
    return rule if escaped == rule else f'"{escaped}"'


def _refused_of(server: OneServer, store: Store, names: Names) -> Iterable[tuple[Use, str]]:
    """The uses that *names* need and the server refuses."""
    if len(names.queues) > _MANY:
        # Rules only allow. So a user that may use an invented name may use any queue.
        nobodys = f"\0{uuid4().hex}"
        any_queue = replace(names, queues=[Name(nobodys, nobodys)])
        if not list(_refused(server, uses(store, any_queue))):
            return []
    return _refused(server, uses(store, names))


def _refused(server: OneServer, wanted: Iterator[Use]) -> Iterator[tuple[Use, str]]:
    """The uses that the server refuses, each with the text of its error.

    Raises:
        ResponseError: the server cannot begin a transaction now.
    """
    while portion := list(islice(wanted, _PORTION)):
        connection = server.new_connection("")
        try:
            # EXEC is sent outside a transaction, so it executes nothing.
            yield from ((use, str(exc)) for use, exc in _errors(connection, [_END]) if _is_refusal(exc))
            failed = list(_errors(connection, [_BEGIN]))
            for use, exc in failed:
                if not _is_refusal(exc):
                    raise exc
                yield use, str(exc)
            if failed:
                # Without MULTI, the server would execute the next commands.
                return
            # The second MULTI changes nothing, unless redis-py has replaced the connection meanwhile.
            errors = _errors(connection, [_BEGIN, *portion])
            yield from ((use, str(exc)) for use, exc in errors if _is_refusal(exc))
        finally:
            # This also ends the transaction, without executing it.
            connection.disconnect()


def _errors(connection: Any, wanted: Sequence[Use]) -> Iterator[tuple[Use, ResponseError]]:
    # redis-py checks the health of a connection with PING. In a transaction, the server would queue the PING,
    # and redis-py would read this as a failure.
    connection.send_packed_command([pack(*use.command) for use in wanted], check_health=False)
    for use in wanted:
        try:
            # Not as ours, which closes the connection if the server does not write: permissions come first.
            AbstractConnection.read_response(connection)
        except ResponseError as exc:
            yield use, exc


def _is_refusal(error: ResponseError) -> bool:
    # The second condition is for EXEC: all of its errors say that a transaction was discarded.
    return isinstance(error, NoPermissionError) or "NOPERM" in str(error)
