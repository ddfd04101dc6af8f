"""The Lua scripts, composed from ``lua/`` and run by their digest."""

from __future__ import annotations

import re
from collections.abc import Sequence
from hashlib import sha1
from importlib.resources import files
from typing import Any, Protocol

from redis.exceptions import NoScriptError, OutOfMemoryError, ReadOnlyError, ResponseError

from kombu_redisdelay.broker.keys import expected_type
from kombu_redisdelay.broker.server.line import checked
from kombu_redisdelay.broker.server.single import Client
from kombu_redisdelay.broker.server.wire import Argument, Command

_LUA = files("kombu_redisdelay") / "lua"
_INCLUDE = re.compile(r"^-- include: (\w+)$", re.MULTILINE)


class Server(Protocol):
    """What runs a command and returns its reply as it came."""

    def call(self, *command: Argument) -> Any: ...


class Script:
    """One script of ``lua/``, with the text of its ``-- include: name`` lines put in.

    KEYS, ARGV and what it returns are described at the top of its file. Keys must be complete: the
    client must not be one that adds a prefix.
    """

    def __init__(self, name: str) -> None:
        source = (_LUA / f"{name}.lua").read_text("utf-8")
        self.text = _INCLUDE.sub(
            lambda match: (_LUA / "include" / f"{match[1]}.lua").read_text("utf-8"), source
        )
        self.sha = sha1(self.text.encode(), usedforsecurity=False).hexdigest()

    def command(self, keys: Sequence[str], args: Sequence[Argument]) -> Command:
        """The command that runs it, if the server knows it."""
        return ("EVALSHA", self.sha, len(keys), *keys, *args)

    def __call__(self, server: Server, keys: Sequence[str], args: Sequence[Argument]) -> Any:
        """Run it. Raises what redis-py raises; a wrong type is told with the key that has it."""
        try:
            try:
                return server.call(*self.command(keys, args))
            except NoScriptError:
                # The server does not have it: new, restarted, failed over, or flushed. EVAL also stores it.
                return server.call("EVAL", self.text, len(keys), *keys, *args)
        except ResponseError as exc:
            better = explained(exc, server, keys)
            try:
                if better is exc:
                    raise
                raise better from exc
            finally:
                # It refers to this frame, and that to it.
                del better


#: What to run, with its KEYS and ARGV.
ScriptCall = tuple[Script, Sequence[str], Sequence[Argument]]

#: Redis before 7 puts an error of a command into one about the script, where redis-py does not see it.
_OF_A_COMMAND = {"-OOM ": OutOfMemoryError, "-READONLY ": ReadOnlyError}


def explained(error: ResponseError, server: Server, keys: Sequence[str]) -> ResponseError:
    """The *error* of something that was done with *keys*, or a better one."""
    for code, kind in _OF_A_COMMAND.items():
        if code in str(error):
            return kind(str(error))
    if "WRONGTYPE" in str(error):
        return ResponseError(_explain_wrong_type(server, keys) or str(error))
    return error


def explained_all(replies: Sequence[Any], server: Server, used: Sequence[Sequence[str]]) -> list[Any]:
    """The *replies*, with :func:`explained` errors. *used* are the keys behind each."""
    return [
        explained(reply, server, keys) if isinstance(reply, ResponseError) else reply
        for reply, keys in zip(replies, used, strict=True)
    ]


def _explain_wrong_type(server: Server, keys: Sequence[str]) -> str:
    found = {key: server.call("TYPE", key).decode() for key in dict.fromkeys(keys)}
    return "; ".join(
        f"WRONGTYPE: key {key!r} holds a {kind}, where a {expected_type(key)} belongs"
        for key, kind in found.items()
        if kind not in ("none", expected_type(key))
    )


def try_each(client: Client, calls: Sequence[ScriptCall]) -> list[Any]:
    """Run scripts whose order does not matter, in one round trip, or in two if the server has to learn one.

    Returns:
        The replies; that of a script which the server refused is a ``ResponseError``.

    Raises:
        RedisError: the connection failed.
    """
    if not calls:
        return []
    replies = client.call_all(*(script.command(keys, args) for script, keys, args in calls))
    unknown = [index for index, reply in enumerate(replies) if isinstance(reply, NoScriptError)]
    if unknown:
        scripts = dict.fromkeys(calls[index][0] for index in unknown)
        loading: list[Command] = [("SCRIPT", "LOAD", script.text) for script in scripts]
        again = [calls[index] for index in unknown]
        commands = [script.command(keys, args) for script, keys, args in again]
        later = client.call_all(*loading, *commands)[len(loading) :]
        for index, reply in zip(unknown, later, strict=True):
            replies[index] = reply
    return explained_all(replies, client, [keys for _, keys, _ in calls])


def run_each(client: Client, calls: Sequence[ScriptCall]) -> list[Any]:
    """As :func:`try_each`, for who needs all of them.

    Raises:
        RedisError: the connection failed, or the server refused one of them.
    """
    return list(checked(try_each(client, calls)))


PUT = Script("put")
SCHEDULE = Script("schedule")
TAKE = Script("take")
GIVE_BACK = Script("give_back")
RECOVER = Script("recover")
PARK = Script("park")
DEAD_LETTER = Script("dead_letter")
SWEEP = Script("sweep")
RENEW = Script("renew")
CONSUMERS = Script("consumers")
REMEMBER = Script("remember")
UNUSED = Script("unused")
TIDY = Script("tidy")
FORGET = Script("forget")
LEAVE = Script("leave")
FORWARD = Script("forward")
STATS = Script("stats")
PAGE = Script("page")
FIND = Script("find")
CANCEL = Script("cancel")
REMOVE = Script("remove")
RESCHEDULE = Script("reschedule")
PAGE_DEAD = Script("page_dead")
REMOVE_DEAD = Script("remove_dead")
