"""Replies, and the errors among them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from redis.exceptions import (
    AskError,
    ClusterDownError,
    NoPermissionError,
    OutOfMemoryError,
    ResponseError,
    TryAgainError,
)

from kombu_redisdelay.broker.keys import expected_type
from kombu_redisdelay.broker.server.wire import Argument, Command
from kombu_redisdelay.refusals import refusal_of, what_is_said

#: What a server of a cluster replies instead of running a command: it does not serve the slot, or not now.
RELOCATIONS = (AskError, TryAgainError, ClusterDownError)


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
    refusal, said = refusal_of(error), what_is_said(error)
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
    found = {key: server.call("TYPE", key).decode() for key in dict.fromkeys(keys)}
    return "; ".join(
        f"WRONGTYPE: key {key!r} holds a {kind}, where a {expected_type(key)} belongs"
        for key, kind in found.items()
        if kind not in ("none", expected_type(key))
    )
