"""What is told of what fills Redis."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from kombu_redisdelay.operations.forecast import ServerFill
from kombu_redisdelay.operations.other_keys import OtherKeys
from kombu_redisdelay.public import public


@public
@dataclass(frozen=True, slots=True)
class TaskMemory:
    """What the messages of one task in one state of a queue hold.

    Attributes:
        queue: name of the queue.
        state: name of the state.
        kind: "task"; "no task" for messages of other programs; "not a message" for entries that nobody can
            read; "unseen" for bytes that must be in messages larger than those that were read, or in a state
            of which none were read.
        task: its name. It may be anything that a publisher has written. ``None`` for other kinds.
        bytes: about how many bytes of Redis they take.
        messages: about how many there are.
        expired: which part of them has expired, about.
        bytes_with_zlib: about how many bytes they would take with ``task_compression = "zlib"``; ``None`` if
            that is unknown.
        largest: bytes of the largest one that was read, with what is noted of its failure.
        largest_id: its id.
        seen: how many were read. With few, the numbers say little.
        is_about: whether *messages*, *expired* and the division of the bytes are estimates, because not all
            messages of the state were read.
    """

    queue: str
    state: str
    kind: str
    task: str | None
    bytes: int
    messages: int
    expired: float
    bytes_with_zlib: int | None
    largest: int
    largest_id: str
    seen: int
    is_about: bool


@public
@dataclass(frozen=True, slots=True)
class StateMemory:
    """One state of a queue.

    Attributes:
        queue: name of the queue.
        state: name of the state; "notes" for what is kept of the queue beside its messages.
        messages: how many there are; 0 for finished tasks, which are no messages.
        bytes: how many bytes of Redis they take, with the keys that lead to them.
        is_about: whether *bytes* is the number of messages times the mean size of those that were read,
            because the user may not use ``MEMORY USAGE``.
        expired: which part of them has expired, about; ``None`` if none were read.
    """

    queue: str
    state: str
    messages: int
    bytes: int
    is_about: bool
    expired: float | None


@public
@dataclass(frozen=True, slots=True)
class UnreadQueue:
    """A queue that could not be read.

    Attributes:
        queue: its name.
        error: why: what Redis said.
    """

    queue: str
    error: str


@public
@dataclass(frozen=True, slots=True)
class MemoryUse:
    """What fills Redis.

    Attributes:
        states: each state of each queue, the largest first.
        tasks: the same by task.
        others: the rest of the database, the largest first.
        servers: how full the servers are.
        not_looked_at: what was left out, in words.
        unread: the queues that could not be read: this user has no permission, or another program has
            written to their keys.
    """

    states: Sequence[StateMemory]
    tasks: Sequence[TaskMemory]
    others: Sequence[OtherKeys] = ()
    servers: Sequence[ServerFill] = ()
    not_looked_at: Sequence[str] = field(default_factory=tuple)
    unread: Sequence[UnreadQueue] = ()

    @property
    def bytes(self) -> int:
        """Bytes of all queues."""
        return sum(state.bytes for state in self.states)

    @property
    def used(self) -> int:
        """Bytes that the servers use, with what they need themselves; 0 if that is unknown."""
        return sum(server.used for server in self.servers)
