"""Whether the server allows all that is used, with the keys and channels that it is used with.

The server is asked in a transaction that is never executed. When a command is queued, the server checks it as
if it were to run, and nothing else happens: no key changes, and nobody receives a message. That needs no
right but MULTI, and Redis 6.2 knows it, too. ``ACL DRYRUN`` is for administrators, and needs Redis 7.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

from redis.exceptions import NoPermissionError, ResponseError

from kombu_redisdelay.broker.server.wire import pack
from kombu_redisdelay.broker.store import Store
from kombu_redisdelay.operations.doctor.finding import Finding, ok, wrong
from kombu_redisdelay.operations.doctor.names import Names
from kombu_redisdelay.operations.doctor.uses import Use, uses

#: Commands that the server keeps queued at a time.
_PORTION = 10_000

_BEGIN, _END = Use(("MULTI",)), Use(("EXEC",))


def check_permissions(store: Store, names: Names) -> Iterator[Finding]:
    commands, keys, channels = {}, {}, {}
    for use, error in _refused(store, uses(store, names)):
        # Of Redis and Valkey, in all their versions.
        if "to run the" in error:
            name = "|".join(map(str, use.command[: 2 if use.command[0] == "SCRIPT" else 1]))
            commands[name] = f"+{name.lower()}"
        elif "channel" in error:
            channels[use.of] = use.rule
        else:
            keys[use.of] = use.rule
    why = {"commands": " (scripts need every command that they call)"}
    for what, refused in (("commands", commands), ("keys", keys), ("channels", channels)):
        if refused:
            rules = " ".join(dict.fromkeys(refused.values()))
            yield wrong(
                "permissions",
                f"{what} refused: {', '.join(refused)}",
                f"ACL SETUSER <user> {rules}{why.get(what, '')}",
            )
    if not (commands or keys or channels):
        yield ok("permissions", "all commands, keys and channels are allowed")


def _refused(store: Store, wanted: Iterator[Use]) -> Iterator[tuple[Use, str]]:
    """What the server refuses, with its words.

    Raises:
        ResponseError: there can be no transaction now.
    """
    while portion := list(islice(wanted, _PORTION)):
        connection = store.server.new_connection()
        try:
            # Without a transaction, there is none to be executed.
            yield from ((use, str(exc)) for use, exc in _errors(connection, [_END]) if _is_refusal(exc))
            failed = list(_errors(connection, [_BEGIN]))
            for use, exc in failed:
                if not _is_refusal(exc):
                    raise exc
                yield use, str(exc)
            if failed:
                # What came next would be executed.
                return
            # The second MULTI changes nothing, unless redis-py has replaced the connection meanwhile.
            errors = _errors(connection, [_BEGIN, *portion])
            yield from ((use, str(exc)) for use, exc in errors if _is_refusal(exc))
        finally:
            # Ends the transaction, too.
            connection.disconnect()


def _errors(connection: Any, wanted: Sequence[Use]) -> Iterator[tuple[Use, ResponseError]]:
    # redis-py checks connections by a PING, and takes one that is queued for a failure.
    connection.send_packed_command([pack(*use.command) for use in wanted], check_health=False)
    for use in wanted:
        try:
            connection.read_response()
        except ResponseError as exc:
            yield use, exc


def _is_refusal(error: ResponseError) -> bool:
    # The second is for EXEC, whose errors all say that a transaction was discarded.
    return isinstance(error, NoPermissionError) or "NOPERM" in str(error)
