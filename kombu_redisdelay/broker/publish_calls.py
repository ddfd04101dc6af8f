"""The calls that publish messages: a push, which needs no script, or a script."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, groupby
from typing import Any, NamedTuple

from kombu_redisdelay.broker.message import KEEP
from kombu_redisdelay.broker.portions import BYTES_PER_CALL, MESSAGES_PER_CALL, portions
from kombu_redisdelay.broker.server.scripts import SCHEDULE, Script
from kombu_redisdelay.broker.server.wire import Argument, Command

#: Milliseconds until a token expires that no consumer takes.
TOKEN_MS = 300_000

#: How many KEYS and ARGV ``schedule.lua`` gets for a message that needs no binding, in a queue that does not
#: expire; and of these ARGV, those of a queue.
_KEYS, _ARGS, _OF_QUEUE = 5, 7, 2


class Push:
    """Adds a message to the tail of its ready list, as put.lua does, but faster, because it needs no script.

    The wake-up token is added by commands of its own. If these are lost or refused, consumers notice the
    message about a second later. If only the message is refused, the token is taken back.

    KEYS are the ready list and the wake zset, ARGV is the message.
    """

    def command(self, keys: Sequence[str], args: Sequence[Argument]) -> Command:
        """The command that adds the message, without the one that adds the token."""
        return ("LPUSH", keys[0], args[0])


def token(wake_key: str) -> tuple[Command, Command]:
    """As ``lua/include/wake.lua``."""
    return ("ZADD", wake_key, 0, "1"), ("PEXPIRE", wake_key, TOKEN_MS)


PUSH = Push()

#: A script or a push, with its KEYS and ARGV.
Call = tuple[Script | Push, Sequence[str], Sequence[Argument]]


class Bindings(NamedTuple):
    """The bindings of an exchange when a message was routed.

    Attributes:
        key: of the set of bindings.
        members: of that set.
    """

    key: str
    members: tuple[bytes, ...]


def only_if(
    bindings: Bindings | None, script: Script, keys: tuple[str, ...], args: tuple[Argument, ...]
) -> Call:
    if bindings is None:
        return script, keys, args
    return script, (*keys, bindings.key), (*args, *bindings.members)


def joined(calls: Sequence[Call]) -> Iterator[tuple[Call, int]]:
    """The *calls* in their order, each with the number of calls that it stands for: messages that are
    scheduled in one queue, one after the other, have one script for many of them."""
    for keys, group in groupby(calls, _keys_of_simple):
        if keys is None:
            yield from ((call, 1) for call in group)
            continue
        for some in portions(group, _size, MESSAGES_PER_CALL, BYTES_PER_CALL):
            messages = chain.from_iterable(args[_OF_QUEUE + 1 :] for _, _, args in some)
            yield (SCHEDULE, keys, (*some[0][2][:_OF_QUEUE], len(some), *messages)), len(some)


def _keys_of_simple(call: Any) -> tuple[str, ...] | None:
    script, keys, args = call
    is_simple = script is SCHEDULE and len(keys) == _KEYS and len(args) == _ARGS and args[1] == KEEP
    return keys if is_simple else None


def _size(call: Any) -> int:
    return len(call[2][-1])
