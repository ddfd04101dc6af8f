"""Checks whether the server allows every command that is used, with its keys and channels.

The commands are sent in a transaction that is never executed. When the server queues a command, it checks the
permissions as if the command were to run, and does nothing else: no key changes, and no message is sent. This
only needs the permission for MULTI, and also works with Redis 6.2. ``ACL DRYRUN`` is for administrators, and
needs Redis 7.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain, islice
from typing import Any
from uuid import uuid4

from redis.connection import AbstractConnection
from redis.exceptions import NoPermissionError, ResponseError

from kombu_redisdelay.broker.server.server import OneServer
from kombu_redisdelay.broker.server.wire import pack
from kombu_redisdelay.broker.store import Store
from kombu_redisdelay.operations.doctor.finding import Finding, ok, wrong
from kombu_redisdelay.operations.doctor.names import Name, Names
from kombu_redisdelay.operations.doctor.uses import Use, uses
from kombu_redisdelay.words import first_of

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
