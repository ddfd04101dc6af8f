"""Every key that we use in Redis, by name.

Ready messages stay where kombu's ``redis`` transport keeps them, so that stock producers and consumers
can work beside us. All our own keys of a queue carry ``{queue}``, so they share a slot of a cluster. On a
cluster, where kombu's ``redis`` transport does not work, the ready lists carry it, too.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

#: The states in which a queue keeps messages that are not delivered any more, each in a list of that name
#: (lua/include/dead.lua).
KEPT = ("dead",)

#: The keys of a fair queue, but for :attr:`QueueKeys.fair`, its turns and its lists.
_OF_KEYS = ("limited", "unacked-keys", "active", "earlier", "key-limits", "tats", "alarms")

#: The keys of failed tasks (lua/include/failed.lua).
_OF_FAILED = (
    *("failed", "failed:messages", "failed:duplicates", "failed:heads", "failed:groups"),
    "failed:returned",
)


@dataclass(frozen=True, slots=True)
class QueueKeys:
    """The keys of one queue, complete with ``global_keyprefix``.

    Attributes:
        ready: list, ready messages of priority step 0: the name of the queue, on a cluster in braces. The
            other steps have ``separator`` and the step appended.
        schedule: zset, message id -> due time in ms since the epoch.
        messages: hash, message id -> scheduled message.
        duplicates: zset, names of the messages whose id another scheduled message had before; score 0.
        consumers: zset, consumer -> when its lease ends, ms since the epoch.
        wake: zset, at most one wake-up token.
        dead: list, dead letters.
        limits: hash, what an operator allows: whether the queue is paused, and its limits.
        history: hash, what has happened in the last minutes and hours.
        unknown: zset, which of the scheduled messages wait for a worker that knows their task; score 0
            (lua/include/unknown.lua).
        unique: hash, which messages that wait hold keys (lua/include/unique.lua).
        running: hash, which unacked messages hold keys.
        fair: hash, how many messages of a fair queue are sorted in (lua/include/fair.lua).
    """

    ready: str
    schedule: str
    messages: str
    duplicates: str
    consumers: str
    wake: str
    dead: str
    limits: str
    history: str
    unknown: str
    unique: str
    running: str
    fair: str
    separator: str

    @property
    def scheduling(self) -> tuple[str, str, str]:
        """The keys of what is scheduled."""
        return self.schedule, self.messages, self.duplicates

    @property
    def waiting(self) -> tuple[str, str, str, str]:
        """All keys of what waits: for its time, or for a worker that knows its task."""
        return *self.scheduling, self.unknown

    @property
    def own(self) -> tuple[str, ...]:
        """All keys that are not kombu's, except those of consumers."""
        return (
            *(*self.waiting, self.unique, self.running, self.consumers, self.wake),
            *(*self.all_kept, *self.all_failed, self.finished, self.limits, self.history, self.fair),
            *map(self._of_keys, _OF_KEYS),
        )

    @property
    def all_kept(self) -> tuple[str, ...]:
        """The lists of all states in :data:`KEPT`."""
        return tuple(map(self.kept, KEPT))

    def kept(self, state: str) -> str:
        """The list of the messages that are kept in *state*, one of :data:`KEPT`."""
        return self._of_keys(state)

    @property
    def finished(self) -> str:
        """List, lines about finished tasks, the newest first (lua/finish.lua)."""
        return self._of_keys("finished")

    def finished_sent(self, consumer: str) -> str:
        """Hash, ``number`` -> that of the latest lines that *consumer* has sent."""
        return self._of_keys(f"finished:sent:{consumer}")

    @property
    def failed(self) -> str:
        """Zset, name of a failed task -> when it failed, ms since the epoch."""
        return self._of_keys("failed")

    @property
    def failed_messages(self) -> str:
        """Hash, name of a failed task -> its message."""
        return self._of_keys("failed:messages")

    @property
    def failed_heads(self) -> str:
        """Hash, name of a failed task -> what is noted of its failure."""
        return self._of_keys("failed:heads")

    @property
    def failed_groups(self) -> str:
        """Hash, task and exception -> how many have failed, and when the first and the last one."""
        return self._of_keys("failed:groups")

    @property
    def failed_returned(self) -> str:
        """Zset, names of those failed tasks that are known to have returned -> when that was, as in
        :attr:`failed`."""
        return self._of_keys("failed:returned")

    @property
    def all_failed(self) -> tuple[str, ...]:
        """All keys of failed tasks. The first three are as those of what is scheduled."""
        return tuple(map(self._of_keys, _OF_FAILED))

    def _of_keys(self, name: str) -> str:
        return f"{self.schedule.removesuffix('schedule')}{name}"

    @property
    def limited(self) -> str:
        """Hash, the keys of a fair queue that are at a limit."""
        return self._of_keys("limited")

    @property
    def key_limits(self) -> str:
        """Hash, key of a fair queue -> its own limits (lua/include/fair_limits.lua)."""
        return self._of_keys("key-limits")

    @property
    def active(self) -> str:
        """Hash, key of a fair queue -> how many of its messages are unacked, if that is limited."""
        return self._of_keys("active")

    @property
    def tats(self) -> str:
        """Zset, key of a fair queue -> how much of its rate is used (lua/include/fair_limits.lua)."""
        return self._of_keys("tats")

    @property
    def unacked_keys(self) -> str:
        """Hash, consumer and delivery tag -> the key of that message, if its concurrency is limited."""
        return self._of_keys("unacked-keys")

    @property
    def earlier(self) -> str:
        """Zset, what :attr:`unacked_keys` has of messages that were taken before they were counted
        (lua/include/fair_earlier.lua)."""
        return self._of_keys("earlier")

    def turns(self, step: int) -> str:
        """Zset, key of a fair queue -> its next turn."""
        return self._of_keys(f"turns:{step}")

    def key_list(self, step: int, key: str) -> str:
        """The list of ready messages of *key* in a fair queue, of priority *step*."""
        return self._of_keys(f"{step or ''}:{key}")

    def ready_at(self, step: int) -> str:
        """The list of ready messages with priority *step*."""
        return f"{self.ready}{self.separator}{step}" if step else self.ready

    def unacked(self, consumer: str) -> str:
        """Hash, delivery tag -> message: the unacked messages of *consumer*."""
        return f"{self.schedule.removesuffix('schedule')}unacked:{consumer}"

    def claim(self, what: str) -> str:
        """Hash, ``by`` -> the worker that does *what*, so that no other worker does it."""
        return f"{self.schedule.removesuffix('schedule')}claim:{what}"


@lru_cache(maxsize=4096)
def queue_keys(prefix: str, queue: str, separator: str, in_slots: bool = False) -> QueueKeys:
    """The keys of *queue*, behind the ``global_keyprefix`` *prefix*.

    Arguments:
        in_slots: whether all of them must be in one slot, as on a cluster.

    Raises:
        ValueError: with this name, they cannot be in one slot.
    """
    if in_slots and (not queue or queue.startswith("}")):
        raise ValueError(f"a queue of a cluster cannot be named {queue!r}: its name begins with '}}'")
    # No f-strings: a name may be a member of an Enum, which has another text there.
    ours = prefix + "redisdelay:{" + queue + "}:"
    return QueueKeys(
        ready=prefix + "{" + queue + "}" if in_slots else prefix + queue,
        schedule=ours + "schedule",
        messages=ours + "messages",
        duplicates=ours + "duplicates",
        consumers=ours + "consumers",
        wake=ours + "wake",
        dead=ours + "dead",
        limits=ours + "control",
        history=ours + "history",
        unknown=ours + "unknown",
        unique=ours + "unique",
        running=ours + "running",
        fair=ours + "fair",
        separator=separator,
    )


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


_TYPES = {
    "schedule": "zset",
    "messages": "hash",
    "duplicates": "zset",
    "consumers": "zset",
    "wake": "zset",
    "control": "hash",
    "history": "hash",
    "unknown": "zset",
    "unique": "hash",
    "running": "hash",
    "fair": "hash",
    "limited": "hash",
    "unacked-keys": "hash",
    "active": "hash",
    "earlier": "zset",
    "key-limits": "hash",
    "tats": "zset",
    "alarms": "zset",
    "failed": "zset",
    "failed:messages": "hash",
    "failed:duplicates": "zset",
    "failed:heads": "hash",
    "failed:groups": "hash",
    "failed:returned": "zset",
}


def expected_type(key: str) -> str:
    """The Redis type of *key*: one of a :class:`QueueKeys`, that of the known queues, or one of bindings."""
    if key.endswith(known_queues("")):
        return "zset"
    if "_kombu.binding" in key:
        return "hash" if ":redisdelay:unbound:" in key else "set"
    name = key.rpartition("}:")[2]
    if name.startswith("turns:"):
        return "zset"
    return "hash" if name.startswith(("unacked:", "claim:", "finished:sent:")) else _TYPES.get(name, "list")
