"""Keeps scripts from running on half of a queue while a cluster moves its slot from one server to another.

A slot is moved key by key. Meanwhile a server refuses a command with several keys if it does not have all of
them: the caller is to try again. But a script also uses keys that it makes itself, and the server does not
check these. So every script gets one more key, of the same slot, that never exists. Then no server has all
keys of a slot that is being moved, and each of them refuses the script until the slot has arrived.
"""

from __future__ import annotations

from functools import cache

from kombu_redisdelay.broker.keys import known_queues
from kombu_redisdelay.broker.server.scripts import SCRIPTS, digest
from kombu_redisdelay.broker.server.wire import Argument, Command, Packed, first_key

#: The script does not see the key.
_PRELUDE = "KEYS[#KEYS] = nil\n"


def guarded(command: Command) -> Command:
    """The *command*, with one more key if it runs a script of ours."""
    match command[0]:
        case "EVALSHA" if str(command[1]) in SCRIPTS:
            return _with_guard(command, _guarded_sha(str(command[1])))
        case "EVAL" if digest(str(command[1])) in SCRIPTS:
            return _with_guard(command, _PRELUDE + str(command[1]))
        case "SCRIPT" if digest(str(command[2])) in SCRIPTS:
            return (*command[:2], _PRELUDE + str(command[2]))
    return command


def _with_guard(command: Command, script: str) -> Command:
    name, _, count, *rest = command
    key = first_key(command)
    if key.endswith(known_queues("")):
        # The script has no other key.
        return command
    keys = 1 if isinstance(rest[0], Packed) else int(count)  # type: ignore[arg-type]
    # The same slot, because the key has the queue in braces. The same permissions, too.
    guard: Argument = key + ":never"
    return (name, script, int(count) + 1, *rest[:keys], guard, *rest[keys:])  # type: ignore[arg-type]


@cache
def _guarded_sha(sha: str) -> str:
    return digest(_PRELUDE + SCRIPTS[sha].text)
