"""The names in Redis: every key that we use, and the partitions of a queue.

Ready messages stay where kombu's ``redis`` transport keeps them, so that stock producers and consumers
can work beside us. All our own keys of a queue carry ``{queue}``, so they share a slot of a cluster. On a
cluster, where kombu's ``redis`` transport does not work, the ready lists carry it, too.

A queue that is larger than a node of a cluster is spread over several queues, its partitions. The first one
has the name of the queue, the others have :data:`MARK` and a number appended. So each has keys of its own,
and is in a slot of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple
from zlib import crc32

#: The states of messages that are over, and kept (:mod:`~kombu_redisdelay.broker.archive`).
FAILED, DEAD = ARCHIVED = ("failed", "dead")

#: The Redis types of the keys of a queue, by their names behind what all of them begin with.
_TYPES: dict[str, str] = {}

#: The same of keys of which a queue has several, by what their names begin with.
_TYPES_OF_SEVERAL = {"turns:": "zset", "unacked:": "hash", "claim:": "hash", "finished:sent:": "hash"}

#: Between the name of a queue and the number of a partition.
MARK = "#"


#: What becomes of a key when nobody uses its queue: the queue stays while it has this key; the key goes with
#: the queue; or the key goes by itself, or with another key.
STAYS, GOES, ITSELF = "stays", "goes", "itself"


class _Key:
    """A key of a queue: its Redis type, what becomes of it when nobody uses the queue, what it holds, and its
    name, if the attribute has another one."""

    def __init__(self, type: str, unused: str, what: str, name: str = "") -> None:
        self._type = type
        self.name = name
        self.unused = unused
        self.__doc__ = what

    def __set_name__(self, owner: type[RedisKeys], attribute: str) -> None:
        self._attribute, self.name = attribute, self.name or attribute
        _TYPES[self.name] = self._type

    def __get__(self, keys: RedisKeys, owner: type[RedisKeys]) -> str:
        """Of an object, the attribute is the complete key. It is made when it is first read: who publishes to
        many queues needs few keys of each. Later, it is a plain attribute."""
        key = vars(keys)[self._attribute] = keys.base + self.name
        return key


class ArchiveKeys(NamedTuple):
    """The keys of messages that are over (lua/include/archive.lua). The first three are as those of what is
    scheduled. Of dead letters, none has returned."""

    names: str
    messages: str
    duplicates: str
    heads: str
    groups: str
    returned: str


class RedisKeys:
    """The keys of one queue, complete with ``global_keyprefix``.

    Arguments:
        ready: list, ready messages of priority step 0: the name of the queue, on a cluster in braces. The
            other steps have *separator* and the step appended.
        base: what all others begin with.
    """

    schedule = _Key("zset", STAYS, "message id -> due time in ms since the epoch")
    messages = _Key("hash", STAYS, "message id -> scheduled message")
    duplicates = _Key("zset", GOES, "names of those whose id another scheduled one had before; score 0")
    unknown = _Key("zset", GOES, "which scheduled ones wait for a worker that knows their task; score 0")
    unique = _Key("hash", GOES, "which messages that wait hold keys (lua/include/unique.lua)")
    running = _Key("hash", GOES, "which unacked messages hold keys")
    consumers = _Key("zset", STAYS, "consumer -> when its lease ends, ms since the epoch")
    wake = _Key("zset", GOES, "at most one wake-up token")
    dead = _Key("list", STAYS, "dead letters, where an older release keeps them (lua/move_dead.lua)")
    dead_index = _Key("zset", STAYS, "name of a dead letter -> when it came, ms since epoch", "dead:index")
    dead_messages = _Key("hash", GOES, "name of a dead letter -> its message", "dead:messages")
    dead_duplicates = _Key("zset", GOES, "names whose id another one had before", "dead:duplicates")
    dead_heads = _Key("hash", GOES, "name of a dead letter -> what is noted of it", "dead:heads")
    dead_groups = _Key("hash", GOES, "task and kind of the reason -> how many, first, last", "dead:groups")
    failed = _Key("zset", STAYS, "name of a failed task -> when it failed, ms since the epoch")
    failed_messages = _Key("hash", ITSELF, "name of a failed task -> its message", "failed:messages")
    failed_duplicates = _Key("zset", ITSELF, "names whose id another one had before", "failed:duplicates")
    failed_heads = _Key("hash", ITSELF, "name of a failed task -> what is noted of it", "failed:heads")
    failed_groups = _Key("hash", ITSELF, "task and exception -> how many, first, last", "failed:groups")
    failed_returned = _Key("zset", ITSELF, "those that have returned -> when", "failed:returned")
    finished = _Key("list", STAYS, "lines about finished tasks, the newest first (lua/finish.lua)")
    limits = _Key("hash", STAYS, "what an operator allows: whether it is paused, and its limits", "control")
    history = _Key("hash", ITSELF, "what has happened in the last minutes and hours")
    fair = _Key("hash", STAYS, "how many messages of a fair queue are sorted by key (lua/include/fair.lua)")
    limited = _Key("hash", GOES, "the keys of a fair queue that are at a limit")
    unacked_keys = _Key("hash", GOES, "consumer and tag -> key of that message, if counted", "unacked-keys")
    unacked_by_key = _Key(
        "hash", GOES, "key of a fair queue -> how many are unacked, if that is limited", "active"
    )
    key_limits = _Key("hash", ITSELF, "key of a fair queue -> its own limits", "key-limits")
    rate_clocks = _Key("zset", ITSELF, "key of a fair queue -> how much of its rate is used", "tats")
    alarms = _Key("zset", GOES, "key of a fair queue -> when its rate allows the next message")

    def __init__(self, ready: str, base: str, separator: str) -> None:
        self.ready = ready
        self.separator = separator
        self.base = base

    @property
    def scheduling(self) -> tuple[str, str, str]:
        """The keys of what is scheduled."""
        return self.schedule, self.messages, self.duplicates

    def around(self, list_: str) -> tuple[str, ...]:
        """A list that may have messages, and where these may go (``lua/move_ready.lua``)."""
        return list_, self.wake, *self.scheduling, self.ready

    @property
    def waiting(self) -> tuple[str, str, str, str]:
        """All keys of what waits: for its time, or for a worker that knows its task."""
        return *self.scheduling, self.unknown

    @property
    def of_what_waits(self) -> tuple[str, ...]:
        """The same, and what says which of these messages hold unique keys."""
        return *self.waiting, self.unique

    @property
    def own(self) -> tuple[str, ...]:
        """All keys that are not kombu's, except those of which there are several."""
        return tuple(self.base + name for name in _TYPES)

    def archive(self, state: str) -> ArchiveKeys:
        """The keys of the messages in *state*, one of :data:`ARCHIVED`."""
        # That of failed tasks is older, and has no name behind it.
        index = state if state == FAILED else f"{state}:index"
        names = (f"{state}:{name}" for name in ArchiveKeys._fields[1:])
        return ArchiveKeys(*(self.base + name for name in (index, *names)))

    def unused(self, becomes: str) -> list[str]:
        """Those of which this becomes when nobody uses the queue: :data:`STAYS` or :data:`GOES`."""
        return [self.base + name for name in names_of(becomes)]

    def finished_sent(self, consumer: str) -> str:
        """Hash, ``number`` -> that of the latest lines that *consumer* has sent."""
        return f"{self.base}finished:sent:{consumer}"

    def turns(self, step: int) -> str:
        """Zset, key of a fair queue -> its next turn."""
        return f"{self.base}turns:{step}"

    def key_list(self, step: int, key: str) -> str:
        """The list of ready messages of *key* in a fair queue, of priority *step*."""
        return f"{self.base}{step or ''}:{key}"

    def ready_at(self, step: int) -> str:
        """The list of ready messages with priority *step*."""
        return f"{self.ready}{self.separator}{step}" if step else self.ready

    def unacked(self, consumer: str) -> str:
        """Hash, delivery tag -> message: the unacked messages of *consumer*."""
        return f"{self.base}unacked:{consumer}"

    def claim(self, what: str) -> str:
        """Hash, ``by`` -> the worker that does *what*, so that no other worker does it."""
        return f"{self.base}claim:{what}"


_KEYS = tuple(key for key in vars(RedisKeys).values() if isinstance(key, _Key))


def names_of(unused: str) -> list[str]:
    """The names of the keys of which this becomes when nobody uses their queue."""
    return [key.name for key in _KEYS if key.unused == unused]


@lru_cache(maxsize=4096)
def redis_keys(prefix: str, queue: str, separator: str, in_slots: bool = False) -> RedisKeys:
    """The keys of *queue*, behind the ``global_keyprefix`` *prefix*.

    Arguments:
        in_slots: whether all of them must be in one slot, as on a cluster.

    Raises:
        ValueError: with this name, they cannot be in one slot.
    """
    if in_slots and (not queue or queue.startswith("}")):
        raise ValueError(f"a queue of a cluster cannot be named {queue!r}: its name begins with '}}'")
    # No f-strings: a name may be a member of an Enum, which has another text there.
    ready = prefix + "{" + queue + "}" if in_slots else prefix + queue
    return RedisKeys(ready, prefix + "redisdelay:{" + queue + "}:", separator)


def known_queues(prefix: str) -> str:
    """Zset, queue -> when it was last noted as in use, ms since the epoch. It holds the queues that
    have a consumer, a scheduled message or a dead letter, and those that producers declare and publish to."""
    return prefix + "redisdelay:known-queues"


def bindings(in_slots: bool) -> str:
    """What kombu's keys of exchanges begin with, behind the ``global_keyprefix``.

    Arguments:
        in_slots: whether all of them must be in one slot, as on a cluster: kombu has scripts that use the
            bindings of an exchange together with a key for all exchanges.
    """
    return "{_kombu.binding}" if in_slots else "_kombu.binding"


def shared_exchanges(in_slots: bool) -> str:
    """Set, the exchanges to which queues of other names are bound. This key and the next are ours, and begin
    as kombu's do: a user that may use the bindings may use them."""
    return bindings(in_slots) + ":redisdelay:exchanges"


def unbound(in_slots: bool, queue: str) -> str:
    """Hash, what was unbound of *queue*, or ``""`` if it was deleted -> ``-``, or ``+`` if it was declared
    anew since the queue was deleted (lua/bind.lua). It has a TTL."""
    return bindings(in_slots) + ":redisdelay:unbound:" + queue


def is_ours(queue: str) -> bool:
    """Whether a queue of this name would be a key of ours: what is published to it would be, for example, a
    dead letter of another queue."""
    return queue.startswith("redisdelay:{") or queue == known_queues("")


def expected_type(key: str) -> str:
    """The Redis type of *key*: one of a :class:`RedisKeys`, that of the known queues, or one of bindings."""
    base, mark, name = key.rpartition("}:")
    if mark and "redisdelay:{" in base:
        several = (kind for begin, kind in _TYPES_OF_SEVERAL.items() if name.startswith(begin))
        return next(several, _TYPES.get(name, "list"))
    if key.endswith(known_queues("")):
        return "zset"
    if "_kombu.binding" in key:
        return "hash" if ":redisdelay:unbound:" in key else "set"
    # A queue may be named as one of ours is.
    return "list"


def siblings(keys: Iterable[str]) -> list[str]:
    """All keys of the queue that *keys* belong to, but those of which it has several; none if they belong to
    several queues."""
    bases = {base + mark for base, mark, _ in (key.rpartition("}:") for key in keys) if mark}
    return [base + name for base in bases for name in _TYPES] if len(bases) == 1 else []


class Partitions:
    """The queues that have partitions.

    Arguments:
        counts: queue -> how many partitions it has.

    Attributes:
        spread: the queues that have partitions.
    """

    def __init__(self, counts: Mapping[str, int]) -> None:
        self._names = {
            queue: (queue, *(f"{queue}{MARK}{number}" for number in range(1, count)))
            for queue, count in counts.items()
        }
        self.spread: Sequence[str] = tuple(counts)
        self._queues = {name: queue for queue, names in self._names.items() for name in names}

    def names(self, queue: str) -> Sequence[str]:
        """The partitions of *queue*: itself, if it has no others."""
        return self._names.get(queue) or (queue,)

    def all_names(self, queues: Iterable[str]) -> list[str]:
        """The partitions of all *queues*, each once."""
        return list(dict.fromkeys(name for queue in queues for name in self.names(queue)))

    def pick(self, queue: str, message_id: str) -> str:
        """The partition of *queue* for a message: always the same one for the same id."""
        names = self._names.get(queue)
        # Not hash(), which differs from process to process.
        return queue if names is None else names[crc32(message_id.encode()) % len(names)]

    def queue_of(self, name: str) -> str:
        """The queue that has this partition."""
        return self._queues.get(name, name)


def equal_shares(number: int, count: int) -> list[int]:
    """What each of *count* partitions gets of *number*."""
    whole, rest = divmod(number, count)
    return [whole + (index < rest) for index in range(count)]


def taken(name: str, queue: str) -> str:
    """Why a queue cannot be named *name*, if this is the name of a partition of *queue*."""
    return (
        f"a queue cannot be named {name!r}, because this is a partition of the queue {queue!r} (transport "
        "option 'partitions'): give it another name"
    )
