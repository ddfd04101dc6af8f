"""Commands and replies of the Redis protocol, and the errors of a server."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import isinf
from typing import Any, Protocol

from redis.exceptions import (
    AskError,
    ClusterDownError,
    ConnectionError,
    NoPermissionError,
    OutOfMemoryError,
    ResponseError,
    TryAgainError,
)

from kombu_redisdelay.broker.keys import expected_type, siblings
from kombu_redisdelay.refusals import Refusal, error_text, refusal_of

#: What a server of a cluster replies instead of running a command: it does not serve the slot, or not now.
RELOCATIONS = (AskError, TryAgainError, ClusterDownError)


@dataclass(frozen=True, slots=True)
class Packed:
    """Some arguments of a command, as they are sent.

    Attributes:
        count: how many arguments.
        first: the first of them.
    """

    count: int
    data: bytes
    first: str


#: What a command is made of. A number is written as Python writes it.
Argument = str | bytes | float | Packed


Command = tuple[Argument, ...]


def packed(arguments: Sequence[str | bytes | float]) -> Packed:
    """*arguments* that are sent again and again."""
    return Packed(len(arguments), b"".join(map(_packed, arguments)), str(arguments[0]))


class PackedKeys(tuple[str, ...]):
    """Keys that are sent again and again, so they are packed once."""

    @cached_property
    def packed(self) -> Packed:
        return packed(self)


class WrongServer(ConnectionError):
    """The server that answers is of another kind than the broker URL says. Connecting again would not help:
    the URL has to be changed."""


class NothingDone(ConnectionError):
    """The server was not reached, or has refused. So it does no harm to try again.

    Attributes:
        refusal: what the server has answered; ``None`` if it was not reached, or no row knows the answer.
    """

    refusal: Refusal | None = None

    def __init__(self, said: str = "", refusal: Refusal | None = None) -> None:
        super().__init__(said)
        self.refusal = refusal

    def __repr__(self) -> str:
        # That of redis-py 8 names only the class. Celery logs it.
        return f"{type(self).__name__}({str(self)!r})"


class Unreachable(NothingDone):
    """There is no connection to the server, and none can be made."""


class Refuses(NothingDone):
    """The server is there, and refuses for a while: :mod:`kombu_redisdelay.refusals`."""


class TooFewReplicas(NothingDone):
    """The server does not write, because too few replicas follow it: ``min-replicas-to-write``."""


class NotThePrimary(NothingDone):
    """The server that answers is a replica, or has just become one."""


def pack(*command: Argument) -> bytes:
    """*command* as bytes, ready to be sent. redis-py takes three times as long for this."""
    count, parts = len(command), []
    for argument in command:
        if type(argument) is str:
            data = argument.encode()
        elif type(argument) is int:
            data = b"%d" % argument
        elif isinstance(argument, Packed):
            count += argument.count - 1
            parts.append(argument.data)
            continue
        else:
            data = argument if isinstance(argument, bytes) else str(argument).encode()
        parts.append(b"$%d\r\n%b\r\n" % (len(data), data))
    return b"*%d\r\n%b" % (count, b"".join(parts))


def without_last(command: Command, count: int = 1) -> bytes:
    """What is sent of *command* before its last arguments, *count* of them, which are empty here."""
    return pack(*command)[: -count * len(b"$0\r\n\r\n")]


def unpacked(command: Command) -> list[str | bytes | float]:
    """The arguments of *command* one by one, for redis-py."""
    arguments: list[str | bytes | float] = []
    for argument in command:
        if not isinstance(argument, Packed):
            arguments.append(argument)
            continue
        at = 0
        while at < len(argument.data):
            begin = argument.data.index(b"\r\n", at) + 2
            end = begin + int(argument.data[at + 1 : begin - 2])
            arguments.append(argument.data[begin:end])
            at = end + 2
    return arguments


#: Commands that we use and that have no key.
KEYLESS = frozenset(("PING", "SCRIPT", "TIME", "WAIT"))

#: Where the first key of these commands comes: behind the digest or text of a script and the number of its
#: keys, or behind a subcommand.
_FIRST_KEY = {"EVAL": 3, "EVALSHA": 3, "MEMORY": 2}


def first_key(command: Command) -> str:
    """The first key of *command*, which has one."""
    key = command[_FIRST_KEY.get(str(command[0]), 1)]
    return key.first if isinstance(key, Packed) else str(key)


def _packed(argument: str | bytes | float) -> bytes:
    text = argument if isinstance(argument, bytes) else str(argument).encode()
    return b"$%d\r\n%b\r\n" % (len(text), text)


def first_score(reply: Any) -> float | None:
    """The first score in the *reply* to a command with ``WITHSCORES``; ``None`` if there is none."""
    if not reply:
        return None
    # RESP3 makes pairs of members and scores.
    return float(reply[0][1] if isinstance(reply[0], (list, tuple)) else reply[1])


def first_due_ms(reply: Any) -> float | None:
    """The same of a schedule: when its first message is due, ms since the epoch. What waits for its key is
    never due (lua/include/unique.lua)."""
    score = first_score(reply)
    return None if score is None or isinf(score) else score


def clock_ms(reply: Any) -> float:
    """The time in the *reply* to ``TIME``, in ms since the epoch, with a fraction."""
    seconds, microseconds = reply
    return (int(seconds) * 1_000_000 + int(microseconds)) / 1000


class Caller(Protocol):
    """An object that runs a command and returns the reply as it comes."""

    def call(self, *command: Argument) -> Any: ...


class Packer(Caller, Protocol):
    """An object that also runs several commands in one round trip."""

    def call_all(self, *commands: Command) -> list[Any]: ...


def checked(replies: Sequence[Any]) -> Sequence[Any]:
    """*replies*, if none of them is an error.

    Raises:
        ResponseError: the first error among them.
    """
    for reply in replies:
        if isinstance(reply, ResponseError):
            try:
                raise reply
            finally:
                # The error refers to this frame. A cycle would keep the error and all frames of the callers.
                del reply, replies
    return replies


def without_frames(error: ResponseError) -> ResponseError:
    """Take the traceback off a caught *error* that is kept as a reply. The traceback would keep the frames of
    all callers, and one of them keeps the reply: a cycle."""
    return error.with_traceback(None)


#: Instead of Redis' own words, which name a script and its line.
FULL = "the server is out of memory (maxmemory) and has refused it: nothing was done"

#: Keys that an error names, and what stands before them.
KEYS_NAMED = 3

_WITH_KEYS = " (keys: "


#: Redis before 7 wraps the error of a command in an error of the script. redis-py does not see it there.
_OUT_OF_MEMORY = "-OOM "


def explained(error: ResponseError, server: Caller, keys: Sequence[str]) -> ResponseError:
    """The *error* of an operation on *keys*, or one that says more."""
    if isinstance(error, OutOfMemoryError) or _OUT_OF_MEMORY in str(error):
        return OutOfMemoryError(FULL)
    refusal, said = refusal_of(error), error_text(error)
    if refusal is not None and refusal.reason == "noperm" and keys and _WITH_KEYS not in said:
        some = ", ".join([repr(key) for key in keys[:KEYS_NAMED]] + ["..."] * (len(keys) > KEYS_NAMED))
        return NoPermissionError(f"{said}{_WITH_KEYS}{some})")
    if refusal is not None and refusal.is_for_a_while and said != str(error):
        return type(error)(said)
    if "WRONGTYPE" in str(error):
        return ResponseError(_explain_wrong_type(server, keys) or str(error))
    return error


def explained_all(replies: Sequence[Any], server: Caller, used: Sequence[Sequence[str]]) -> list[Any]:
    """The *replies*, with :func:`explained` errors. *used* has the keys of each."""
    return [
        explained(reply, server, keys) if isinstance(reply, ResponseError) else reply
        for reply, keys in zip(replies, used, strict=True)
    ]


def answers(server: Packer, commands: Iterable[Command]) -> list[Any]:
    """The replies to *commands*, each of which has its key behind its name.

    Raises:
        ResponseError: the first error among them. It names a key that holds something else.
    """
    packet = list(commands)
    used = [[str(key)] for _, key, *_ in packet]
    replies = explained_all(server.call_all(*packet), server, used)
    try:
        return list(checked(replies))
    finally:
        # One of them may be the error, which refers to this frame.
        del replies


def _explain_wrong_type(server: Caller, keys: Sequence[str]) -> str:
    # A script makes names of keys of the same queue itself.
    return _of_wrong_type(server, keys) or _of_wrong_type(server, siblings(keys))


def _of_wrong_type(server: Caller, keys: Sequence[str]) -> str:
    found = {key: server.call("TYPE", key).decode() for key in dict.fromkeys(keys)}
    return "; ".join(
        f"WRONGTYPE: key {key!r} holds a {kind}, where a {expected_type(key)} belongs"
        for key, kind in found.items()
        if kind not in ("none", expected_type(key))
    )
