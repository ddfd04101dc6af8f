"""What is told of what fills Redis, and how it is said in words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from kombu_redisdelay.broker.server.server import evicted_by
from kombu_redisdelay.operations.estimate import NO_TASK, NOT_A_MESSAGE, UNSEEN
from kombu_redisdelay.operations.other_keys import LargeKey, OtherKeys
from kombu_redisdelay.operations.queue_bytes import NOTES
from kombu_redisdelay.operations.server_memory import ServerFill
from kombu_redisdelay.operations.states import FINISHED
from kombu_redisdelay.public import public
from kombu_redisdelay.words import first_of, number_of, percent, size, span


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


#: Queues that are named because nobody knows how fast they grow, and characters of the name of a key.
MOST_UNKNOWN, MOST_OF_NAME = 3, 80

#: Queues that are named because they could not be read.
MOST_UNREAD = 10

#: From this part of what Redis uses on, it is said that nobody knows what it is.
LEAST_UNKNOWN = 0.1

#: From so many bytes on, the largest message is named.
LARGE_MESSAGE = 100 * 1024

#: A server that is full in less than so many seconds may be full already.
AT_ONCE = 60.0

NONE_EXPIRED = "0 %"

#: A server that is full later than in so many seconds is not about to be full.
FAR = 365 * 86_400.0

_KINDS = {NO_TASK: "(no task)", NOT_A_MESSAGE: "(not a message)", UNSEEN: "(messages that were not read)"}


def kind_of(task: TaskMemory) -> str:
    """What stands in place of a task."""
    return task.task if task.task is not None else _KINDS[task.kind]


def number_of_messages(task: TaskMemory) -> str:
    """How many messages a task has. An estimate has two digits."""
    if not task.is_about or not task.messages:
        return f"{task.messages:,}"
    step = 10 ** max(0, len(str(task.messages)) - 2)
    return f"about {round(task.messages / step) * step:,}"


def of_redis(bytes: float, found: MemoryUse) -> str:
    """Which part of what Redis uses that is; ``-`` if that is unknown."""
    return percent(min(1.0, bytes / found.used)) if found.used else "-"


def unknown_bytes(found: MemoryUse) -> int:
    """What Redis uses beside the queues and the other keys, if other keys were found; 0 if it is little."""
    rest = found.used - found.bytes - sum(each.bytes for each in found.others) if found.others else 0
    return rest if rest >= LEAST_UNKNOWN * found.used else 0


def remarks(found: MemoryUse) -> Iterator[str]:
    """What there is to say besides the tasks, a sentence each."""
    if found.tasks and found.used:
        part = of_redis(found.bytes, found)
        yield f"The queues have {size(found.bytes)} in all, {part} of what Redis uses."
    largest = max(found.tasks, key=lambda task: task.largest, default=None)
    if largest is not None and largest.largest >= LARGE_MESSAGE:
        yield f"The largest message that was read: {message_in_words(largest)}."
    finished = sum(state.bytes for state in found.states if state.state == FINISHED)
    if finished:
        yield f"The lines about finished tasks: {size(finished)}."
    notes = sum(state.bytes for state in found.states if state.state == NOTES)
    if notes:
        yield f"What is noted of the queues, such as limits, keys and history: {size(notes)}."
    for each in found.others:
        part = f", {of_redis(each.bytes, found)} of what Redis uses" if found.used else ""
        keys = number_of(each.keys, "key")
        about, of_keys = ("about " if is_about else "" for is_about in (each.is_about, each.keys_are_about))
        yield f"Beside the queues: {each.what}, {about}{size(each.bytes)} in {of_keys}{keys}{part}."
        for number, key in enumerate(each.largest):
            yield f"{'Another large one' if number else 'The largest of them'}: {key_in_words(key)}."
    rest = unknown_bytes(found)
    if rest:
        part = of_redis(rest, found)
        yield (
            f"What else Redis uses, {size(rest)}, {part}, is its own, and keys that were not looked at. "
            "`redis-cli --memkeys` names large ones."
        )
    for server in found.servers:
        yield f"Redis at {server.server}: {fill_of(server)}."
    if found.unread:
        named = "; ".join(map(unread_in_words, found.unread[:MOST_UNREAD]))
        yield f"Could not be read: {named}{_more(found)}."
    if found.not_looked_at:
        yield f"Not looked at: {'; '.join(found.not_looked_at)}."


def message_in_words(task: TaskMemory) -> str:
    """Names the largest message of a task. Safe to print."""
    id, queue = task.largest_id[:MOST_OF_NAME], task.queue[:MOST_OF_NAME]
    return f"id {id!r}, {size(task.largest)}, {task.state} in {queue!r}"


def unread_in_words(unread: UnreadQueue) -> str:
    """Names a queue that could not be read, and says why. Safe to print."""
    return f"queue {unread.queue[:MOST_OF_NAME]!r} ({unread.error})"


def _more(found: MemoryUse) -> str:
    more = len(found.unread) - MOST_UNREAD
    return f"; and {number_of(more, 'other queue')}" if more > 0 else ""


def key_in_words(key: LargeKey) -> str:
    """Names a key of another program. The name is safe to print."""
    cut = "..." if len(key.name) > MOST_OF_NAME else ""
    type_name = "of unknown type" if key.type is None else f"a {key.type}"
    about = "about " if key.is_about else ""
    said = f"{key.name[:MOST_OF_NAME]!r}{cut}, {type_name}, {about}{size(key.bytes)}"
    if key.has_results:
        said += "; results of rpc:// that nobody has fetched"
    if key.may_be_queue:
        said += "; it has text that looks like messages: it may be a queue of redis:// that no app declares"
    return said


def fill_of(server: ServerFill) -> str:
    """How full a server is, and when it is full."""
    used = f"{size(server.used)} used"
    if not server.limit:
        said = [f"{used} ({server.of_what})"]
    elif server.is_limited:
        said = [f"{used} of {size(server.limit)}"]
    else:
        said = [f"{used} of {size(server.limit)} ({server.of_what})"]
    if server.limit and server.used >= server.limit:
        said.append("it is full now")
    else:
        said += _growth_of(server)
    evicted = evicted_by(server.policy) if server.is_limited else ""
    if evicted:
        said.append(f"maxmemory-policy {server.policy}: when it is full, {evicted} may be thrown away")
    return "; ".join(said)


def _growth_of(server: ServerFill) -> Iterator[str]:
    have, queues = ("has", "queue") if len(server.unknown) == 1 else ("have", "queues")
    without = f"{first_of(server.unknown, MOST_UNKNOWN)}, which {have} no history of 15 minutes"
    if server.bytes_per_hour is None or server.measured is None:
        if server.unknown:
            yield f"nobody knows when it is full, because of {queues} {without}"
        return
    rate, over = f"{size(abs(server.bytes_per_hour))} an hour", f"measured over {span(server.measured)}"
    if round(server.bytes_per_hour) == 0:
        yield f"its queues do not grow, {over}"
    elif server.bytes_per_hour < 0:
        yield f"its queues shrink by {rate}, {over}"
    elif server.full_in is None or server.full_in > FAR:
        yield f"its queues grow by {'at least ' if server.unknown else ''}{rate}, {over}"
    elif server.unknown:
        yield (
            f"at this rate, at least {rate}, {over}, it is {_full(server.full_in)} at the latest: not "
            f"counted are {without}"
        )
    else:
        yield f"at this rate, {rate}, {over}, it is {_full(server.full_in)}"


def _full(seconds: float) -> str:
    # What Redis uses goes up and down a little. So a server that refuses may just be below its limit.
    return f"full in {span(seconds)}" if seconds >= AT_ONCE else "full now, or within a minute"
