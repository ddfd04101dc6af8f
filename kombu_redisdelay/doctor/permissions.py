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

from kombu_redisdelay.broker.client import open_connection
from kombu_redisdelay.broker.store import Store
from kombu_redisdelay.broker.wire import pack
from kombu_redisdelay.doctor.finding import Finding, ok, wrong
from kombu_redisdelay.doctor.names import Names
from kombu_redisdelay.doctor.uses import Use, uses

#: Commands that the server keeps queued at a time.
_PORTION = 10_000


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
    why = {"commands": " Scripts need every command that they call."}
    for what, refused in (("commands", commands), ("keys", keys), ("channels", channels)):
        if refused:
            rules = " ".join(dict.fromkeys(refused.values()))
            yield wrong(
                "permissions",
                f"{what} refused: {', '.join(refused)}",
                f"ACL SETUSER <user> {rules}.{why.get(what, '')}",
            )
    if not (commands or keys or channels):
        yield ok("permissions", "all commands, keys and channels are allowed")


def _refused(store: Store, wanted: Iterator[Use]) -> Iterator[tuple[Use, str]]:
    """What the server refuses, with its words."""
    while portion := list(islice(wanted, _PORTION)):
        connection = open_connection(store.client.connection_pool)
        try:
            # Without a transaction, there is none to be executed.
            begin = [Use(("EXEC",)), Use(("MULTI",))]
            refused = list(_asked(connection, begin))
            yield from refused
            if not refused:
                yield from _asked(connection, portion)
        finally:
            # Ends the transaction, too.
            connection.disconnect()


def _asked(connection: Any, wanted: Sequence[Use]) -> Iterator[tuple[Use, str]]:
    connection.send_packed_command([pack(*use.command) for use in wanted])
    for use in wanted:
        try:
            connection.read_response()
        except ResponseError as exc:
            # The second is for EXEC, whose errors all say that a transaction was discarded.
            if isinstance(exc, NoPermissionError) or "NOPERM" in str(exc):
                yield use, str(exc)
            elif use.command == ("MULTI",):
                # What came next would be executed.
                raise
