"""The Lua scripts, composed from ``lua/`` and run by their digest."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from hashlib import sha1
from importlib.resources import files
from types import SimpleNamespace
from typing import Any

from redis.exceptions import NoScriptError, ResponseError

from kombu_redisdelay.broker.server.line import Ack, AckReply
from kombu_redisdelay.broker.server.server import Server
from kombu_redisdelay.broker.server.wire import (
    Argument,
    Caller,
    Command,
    PackedKeys,
    checked,
    explained,
    explained_all,
)

_LUA = files("kombu_redisdelay") / "lua"
#: Lines that follow each other, at the same depth.
_INCLUDES = re.compile(r"^( *)-- include: \w+\n(?:\1-- include: \w+\n)*", re.MULTILINE)
_INCLUDED = re.compile(r"include: (\w+)")
_COMMENT = re.compile(r"--.*")
#: The names that a script gives to ARGV, in their order.
_NAMES = re.compile(r"^local\s+([\w\s,]+?)\s*= unpack\(ARGV\)$", re.MULTILINE)

#: The first line of each script, for Dragonfly, which refuses keys that a script does not declare. Which keys
#: a message needs, only the script itself finds out. For Redis it is a comment.
FLAGS = "--!df flags=allow-undeclared-keys\n"

#: The scripts by their digests.
SCRIPTS: dict[str, Script] = {}


def digest(text: str) -> str:
    """The digest by which a server knows the script with this *text*."""
    return sha1(text.encode(), usedforsecurity=False).hexdigest()


def composed(text: str, there: set[str]) -> str:
    """The *text* of a script, with what it includes, and what that includes, each once and before it is used.

    Arguments:
        there: the names of what is there already; what is put in is added.
    """

    def put_in(match: re.Match[str]) -> str:
        # What is put into a function is not there behind it.
        known = set(there) if match[1] else there
        return "".join(_included(name, known) for name in _INCLUDED.findall(match[0]))

    return _INCLUDES.sub(put_in, text)


def _included(name: str, there: set[str]) -> str:
    if name in there:
        return ""
    there.add(name)
    return composed((_LUA / "include" / f"{name}.lua").read_text("utf-8"), there)


class Script:
    """One script of ``lua/``, with the text of its ``-- include: name`` lines put in.

    KEYS, ARGV and what it returns are described at the top of its file. Keys must be complete,
    because the client adds no prefix.

    Attributes:
        names: what the script calls its ARGV, in their order. Empty if it goes by their numbers.
    """

    def __init__(self, name: str) -> None:
        source = (_LUA / f"{name}.lua").read_text("utf-8")
        self.text = FLAGS + composed(source, set())
        self.sha = digest(self.text)
        declaration = _NAMES.search(_COMMENT.sub("", source))
        self.names = tuple(re.findall(r"\w+", declaration[1])) if declaration else ()
        SCRIPTS[self.sha] = self

    def command(self, keys: Sequence[str], args: Sequence[Argument]) -> Command:
        """The command that runs the script, if the server has it."""
        packed = (keys.packed,) if isinstance(keys, PackedKeys) else keys
        return ("EVALSHA", self.sha, len(keys), *packed, *args)

    def arguments(self, rest: Iterable[Argument] = (), /, **named: Argument) -> list[Argument]:
        """ARGV of a script that has names for them.

        Arguments:
            rest: what follows those with names.
            named: each of :attr:`names`, in their order.

        Raises:
            TypeError: the script has other names, or another order.
        """
        if tuple(named) != self.names:
            raise TypeError(f"The ARGV of the script are {', '.join(self.names)}; not {', '.join(named)}")
        return [*named.values(), *rest]

    def as_ack(
        self,
        server: Server,
        queue: str,
        tag: str,
        keys: Sequence[str],
        args: Sequence[Argument],
        *,
        is_once: bool = False,
        told: AckReply | None = None,
    ) -> Ack:
        """The ack that runs the script, which returns 0 if the message was not held. For the others, see
        :class:`~kombu_redisdelay.broker.server.line.Ack`."""
        _, _, text = server.prepared(("SCRIPT", "LOAD", self.text))
        command = server.prepared(self.command(keys, args))
        return Ack(queue, tag, command, script=str(text), is_once=is_once, told=told)

    def __call__(self, server: Caller, keys: Sequence[str], args: Sequence[Argument]) -> Any:
        """Run it. Raises what redis-py raises. If a key has a wrong type, the error names the key."""
        try:
            try:
                return server.call(*self.command(keys, args))
            except NoScriptError:
                # The server lacks it: it is new, restarted, failed over, or flushed. EVAL also stores it.
                return server.call("EVAL", self.text, len(keys), *keys, *args)
        except ResponseError as exc:
            better = explained(exc, server, keys)
            try:
                if better is exc:
                    raise
                raise better from exc
            finally:
                # The error refers to this frame, and the frame to the error: this breaks the cycle.
                del better


#: A script, with its KEYS and ARGV.
ScriptCall = tuple[Script, Sequence[str], Sequence[Argument]]


def try_each(server: Server, calls: Sequence[ScriptCall]) -> list[Any]:
    """Run scripts whose order does not matter, in one round trip, or in two if the server lacks one of them.

    Returns:
        The replies. If the server refused a script, its reply is a ``ResponseError``.

    Raises:
        RedisError: the connection failed.
    """
    if not calls:
        return []
    replies = server.call_all(*(script.command(keys, args) for script, keys, args in calls))
    unknown = [index for index, reply in enumerate(replies) if isinstance(reply, NoScriptError)]
    if unknown:
        scripts = dict.fromkeys(calls[index][0] for index in unknown)
        loading: list[Command] = [("SCRIPT", "LOAD", script.text) for script in scripts]
        again = [calls[index] for index in unknown]
        commands = [script.command(keys, args) for script, keys, args in again]
        later = server.call_all(*loading, *commands)
        loaded = dict(zip(scripts, later, strict=False))
        for index, reply in zip(unknown, later[len(loading) :], strict=True):
            # Who may not load scripts is told so, not that there is none.
            replies[index] = loaded[calls[index][0]] if isinstance(reply, NoScriptError) else reply
    return explained_all(replies, server, [keys for _, keys, _ in calls])


def run_each(server: Server, calls: Sequence[ScriptCall]) -> list[Any]:
    """As :func:`try_each`, but a refusal is raised.

    Raises:
        RedisError: the connection failed, or the server refused one of them.
    """
    return list(checked(try_each(server, calls)))


def named(reply: Sequence[Any]) -> SimpleNamespace:
    """The *reply* of a script that tells the name of each value before the value."""
    names = (name.decode() for name in reply[::2])
    return SimpleNamespace(**dict(zip(names, reply[1::2], strict=True)))


PUT = Script("put")
SCHEDULE = Script("schedule")
PUBLISH_UNIQUE = Script("publish_unique")
CLEAR = Script("clear")
TAKE = Script("take")
LOOK = Script("look")
ACK = Script("ack")
CHECK_UNIQUE = Script("check_unique")
SET_LIMITS = Script("set_limits")
COUNT_KEYS = Script("count_keys")
CHECK_KEYS = Script("check_keys")
RELIST = Script("relist")
READ_KEYS = Script("read_keys")
READ_ORDERS = Script("read_orders")
FIND_GREATEST = Script("find_greatest")
FIND_LARGE = Script("find_large")
CLEAR_KEYS = Script("clear_keys")
GIVE_BACK = Script("give_back")
FIND_UNKNOWN = Script("find_unknown")
PARK = Script("park")
KEEP = Script("keep")
TRIM = Script("trim")
MOVE_DEAD = Script("move_dead")
FINISH = Script("finish")
MEND_SCHEDULE = Script("mend_schedule")
RENEW = Script("renew")
KNOWN = Script("known")
CONSUMERS = Script("consumers")
TIDY = Script("tidy")
UNLIST = Script("unlist")
FORWARD = Script("forward")
STATS = Script("stats")
FIND_ISOLATED = Script("find_isolated")
RECORD = Script("record")
HISTORY = Script("history")
PAGE = Script("page")
FIND = Script("find")
REMOVE = Script("remove")
RESCHEDULE = Script("reschedule")
CLAIM = Script("claim")
PAGE_LIST = Script("page_list")
MOVE_READY = Script("move_ready")
READ_UNACKED = Script("read_unacked")
TAKE_OUT = Script("take_out")
ADOPT = Script("adopt")
BIND = Script("bind")
