"""A message as an operator sees it, in whatever state it is, and what its task is called with."""

from __future__ import annotations

from ast import literal_eval
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from kombu_redisdelay.operations.content import Arguments, arguments_of
from kombu_redisdelay.operations.queue_reasons import BLOCKED
from kombu_redisdelay.public import public


def printed_worker(worker: str | None, host: str | None, pid: int | None, lost: str = "") -> str:
    """A worker as lists print it: its name, or its host, its process, and why it does not live any more."""
    said = f" ({lost})" if lost else ""
    return f"{worker or host or '?'}:{'?' if pid is None else pid}{said}"


@public
@dataclass(frozen=True, slots=True, kw_only=True)
class MessageInfo:
    """A message, wherever it is.

    Attributes:
        id: the id to select it by. For a Celery task, this is the task id. For other messages, it is the
            ``message_id``, else the ``correlation_id``, else the delivery tag. For an entry that is not a
            message, it is the SHA-1 of its bytes in hexadecimal, or the name that it has in the schedule.
        queue: name of the queue.
        state: name of its state: "scheduled", "ready", "unacked", "failed" or "dead"; or
            "finished", which is what is told of a task after its message is gone.
        task: name of the Celery task, ``None`` if the message is not a task.
        args: ``repr`` of the task's positional arguments, from the message headers. Celery shortens it. Empty
            if there is none. :meth:`arguments` has all of them.
        kwargs: the same for its keyword arguments.
        priority: the priority that it was published with, 0 if there is none.
        failures: how many deliveries of it have failed.
        size: size of the message in bytes; finished: of what is kept of it.
        due: scheduled: when it will be delivered, in UTC, by the server's clock; ``None`` while it waits for
            another message with its unique key. Else ``None``.
        expires: when a worker will discard the task instead of running it, in UTC; ``None`` if it does not
            expire, has failed or is dead.
        since: since when it is in its state, in UTC, if that is known. Ready: when it was published, or was
            due, by the publisher's clock; unknown if another transport has published it. Unacked: when a
            worker asked for it, by the server's clock. Else ``None``.
        reason: why it is in its state, in one line; empty if there is nothing to say.
        position: ready: how many messages of its queue, or of its partition, are taken before it; ``None`` if
            its key in a fair queue is paused or at a limit. Else ``None``.
        worker: unacked: the name of the Celery worker, such as ``celery@web-1``; ``None`` if it is unknown,
            or not one of Celery. Failed, finished: the worker that has run it last.
        host: unacked: the name of this host if the worker runs on it (in the same PID namespace), otherwise
            the boot id of the worker's host. ``None`` if it is unknown.
        pid: unacked: the process id of the worker on its host; ``None`` if it is unknown.
        lost: unacked: why its worker does not live any more, as far as can be told, so that the message comes
            back: "lease ended" or "process gone". Else empty.
        error: failed, finished: the name of the class of the exception, such as "KeyError". Else empty.
        text: failed: what the exception says, 1,000 characters at most. It may hold secrets.
        traceback: failed: where it was raised, 8,000 characters at most: from a longer one, the middle is
            left out.
        tries: failed, finished: how often Celery has tried it, 1 for a task that was never retried. Else
            ``None``.
        started: failed: when its last try began, in UTC, by the worker's clock; ``None`` if that is unknown.
        returned: failed: what was lost if the task is known to have returned: "continuation", what is linked
            to it, the rest of its chain or the body of its chord, perhaps in part, and its result;
            "result", only that; "hook", nothing: something that ran afterwards has raised an error. Else
            empty.
        outcome: finished: how it has ended: "succeeded", "failed", "retried", "ignored", "requeued",
            "revoked", "expired" or "terminated". Else empty.
        waited: finished: for how many seconds it was ready before it began; ``None`` if that is unknown.
        ran: finished: for how many seconds it ran; ``None`` if it did not, or that is unknown.
        unique: the unique key of a message of which one is enough (:class:`Unique`), ``None`` if it has none.
        key: the key by which it takes turns in a fair queue, such as its tenant; empty if it has none.
        headers: the headers that it was published with; empty if the entry is not a message.
        payload: the bytes of the message.
    """

    id: str
    queue: str
    state: str
    task: str | None
    args: str
    kwargs: str
    priority: int
    failures: int
    size: int
    due: datetime | None = None
    expires: datetime | None = None
    since: datetime | None = None
    reason: str = ""
    position: int | None = None
    worker: str | None = None
    host: str | None = None
    pid: int | None = None
    lost: str = ""
    error: str = ""
    text: str = field(default="", repr=False)
    traceback: str = field(default="", repr=False)
    tries: int | None = None
    started: datetime | None = None
    returned: str = ""
    outcome: str = ""
    waited: float | None = None
    ran: float | None = None
    unique: str | None = None
    key: str = ""
    headers: Mapping[str, Any] = field(default_factory=dict, repr=False)
    payload: bytes = field(default=b"", repr=False)

    @property
    def is_blocked(self) -> bool:
        """Whether it is scheduled, and waits for another message with its unique key."""
        return self.due is self.since is None and self.reason.startswith(BLOCKED)

    @property
    def blocker(self) -> str | None:
        """The id of the message that holds its unique key, if it waits for that, and if it is known."""
        begin = f"{BLOCKED} by "
        return self.reason[len(begin) :] if self.is_blocked and self.reason.startswith(begin) else None

    @property
    def moment(self) -> datetime | None:
        """When it is due, or since when it is in its state; ``None`` if that is unknown."""
        return self.since if self.due is None else self.due

    def arguments(self) -> Arguments | None:
        """The positional and the keyword arguments of the task, decoded from its body, whole.

        ``None`` if it is not a task, or if they are not in JSON. Pickle is never decoded, because that may
        run any code.
        """
        return None if self.task is None else arguments_of(self.payload)


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
