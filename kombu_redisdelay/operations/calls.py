"""Says what a task is called with, as far as that may be shown."""

from __future__ import annotations

from ast import literal_eval
from dataclasses import replace

from kombu_redisdelay.operations.message import MessageInfo

#: What may be seen of the arguments of tasks, which may hold secrets: all, decoded from the body; as Celery
#: puts them into the headers; or none.
ALL, SHORTENED, NONE = "all", "shortened", "none"
ARGUMENTS = ALL, SHORTENED, NONE

#: Headers that show the arguments of a task.
_OF_ARGUMENTS = ("argsrepr", "kwargsrepr")

#: Keyword arguments with more characters in their ``repr`` are shown as they are.
_READ = 1024


def with_arguments(message: MessageInfo, arguments: str) -> MessageInfo:
    """The message with what may be seen of its arguments, one of :data:`ARGUMENTS`. Only with all of them, it
    has its payload."""
    if arguments == SHORTENED:
        return replace(message, payload=b"")
    if arguments == NONE:
        headers = {name: value for name, value in message.headers.items() if name not in _OF_ARGUMENTS}
        # What an exception says may have them, too.
        hidden = replace(message, text="(…)" if message.text else "", traceback="", payload=b"")
        return replace(hidden, args="(…)", kwargs="", headers=headers)
    decoded = message.arguments()
    return message if decoded is None else replace(message, args=repr(decoded[0]), kwargs=repr(decoded[1]))


def without_empty_headers(message: MessageInfo) -> MessageInfo:
    """The message without empty headers: Celery writes all of its headers into every message."""
    said = {name: value for name, value in message.headers.items() if not _is_empty(value)}
    return replace(message, headers=said)


def _is_empty(value: object) -> bool:
    # A time limit that is not set is a list of two.
    return value in (None, "", {}) or (isinstance(value, list) and all(each is None for each in value))


def call(message: MessageInfo) -> str:
    """A task with its arguments, on one line."""
    if message.task is None:
        return "-"
    if not (message.args or message.kwargs):
        # Clients in other languages do not write it.
        return f"{message.task}(?)"
    # Both are the output of repr, perhaps shortened. `args` is a tuple or a list.
    args = message.args[1:-1].rstrip(",")
    kwargs = _keywords(message.kwargs) if message.kwargs not in ("", "{}") else ""
    return f"{message.task}({', '.join(filter(None, (args, kwargs)))})"


def _keywords(kwargs: str) -> str:
    """Keyword arguments as in a call, where their ``repr`` can be read: it may have been shortened."""
    try:
        # A nested expression of any length may take much memory to be read.
        read = literal_eval(kwargs) if len(kwargs) <= _READ else None
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        read = None
    if not isinstance(read, dict) or not all(isinstance(name, str) and name.isidentifier() for name in read):
        return f"**{kwargs}"
    return ", ".join(f"{name}={value!r}" for name, value in read.items())
