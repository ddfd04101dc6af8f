"""Our own transport options, checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kombu_redisdelay.broker.lease_policy import LeasePolicy
from kombu_redisdelay.broker.partitions import Partitions, taken

#: What `max_batch` may be at most.
MAX_BATCH_LIMIT = 500

#: How many partitions a queue may have at most. A consumer keeps a connection for each.
MAX_PARTITIONS = 1024

#: A message that so many workers held when they died is suspected of killing them.
ALONE_AFTER = 3

#: The longest time that a message is held alone, in seconds. A message that is never acked must not stop the
#: consumer.
ALONE_FOR = 60.0

#: Seconds. A longer lease was set for ``redis://``, whose default is an hour: long tasks needed it.
LONG_LEASE = 600


@dataclass(frozen=True, slots=True)
class Options:
    """What ``broker_transport_options`` may say beyond kombu's own options.

    Attributes:
        visibility_timeout: seconds that a consumer's lease lasts after it was last renewed. A living
            consumer renews it, so a task may take any time. After a crash, other consumers get the messages
            when it ends. kombu's option for this purpose has the same name.
        delivery_limit: failures that a message may have before it is dead-lettered; ``None`` for any
            number. With the default, and the default of *retry_wait*, that is after two minutes of waiting.
        retry_wait: seconds that a message waits after its second failure. It waits twice as long after each
            further one, up to a minute, or *retry_wait* if that is longer. After the first failure it does
            not wait. With 0 it never does.
        dead_letter: whether a message that is rejected without requeue becomes a dead letter. By
            default it is dropped, as kombu does.
        dead_letter_limit: how many dead letters a queue keeps. With more, the oldest are dropped.
        max_batch: messages that one round trip takes at most, within the prefetch count.
        confirm_replicas: how many replicas must have a message before it counts as published.
        partitions: queue -> over how many partitions it is spread.
        revoke_scheduled: whether a Celery worker that is told to revoke a task takes it out of the schedule
            of its queues.
        unknown_task_wait: seconds for which a task that a Celery worker does not know waits for one that
            does. Then it becomes a dead letter. ``None``: it is discarded at once, as Celery does.
    """

    visibility_timeout: float = 60.0
    delivery_limit: int | None = 9
    retry_wait: float = 1.0
    dead_letter: bool = False
    dead_letter_limit: int = 10_000
    max_batch: int = 64
    confirm_replicas: int = 0
    partitions: Mapping[str, int] = field(default_factory=dict)
    revoke_scheduled: bool = True
    unknown_task_wait: float | None = 3600.0

    @classmethod
    def of(cls, transport_options: Mapping[str, Any]) -> Options:
        """Pick and check ours out of kombu's *transport_options*.

        Raises:
            ValueError: an option has the wrong type or is out of range. The error names the option and its
                value.
        """
        options = cls(
            **{name: transport_options[name] for name in cls.__slots__ if name in transport_options}
        )
        timeout = options.visibility_timeout
        if not _is_number(timeout) or not 0 < timeout <= 10**9:
            raise _error("visibility_timeout", timeout, "a number of seconds above 0")
        limit = options.delivery_limit
        if limit is not None and (not _is_int(limit) or limit < 1):
            raise _error("delivery_limit", limit, "a whole number from 1, or None")
        wait = options.retry_wait
        if not _is_number(wait) or not 0 <= wait <= 10**9:
            raise _error("retry_wait", wait, "a number of seconds from 0")
        if not isinstance(options.dead_letter, bool):
            raise _error("dead_letter", options.dead_letter, "True or False")
        kept = options.dead_letter_limit
        if not _is_int(kept) or kept < 1:
            raise _error("dead_letter_limit", kept, "a whole number from 1")
        batch = options.max_batch
        if not _is_int(batch) or not 1 <= batch <= MAX_BATCH_LIMIT:
            raise _error("max_batch", batch, f"a whole number from 1 to {MAX_BATCH_LIMIT}")
        replicas = options.confirm_replicas
        if not _is_int(replicas) or replicas < 0:
            raise _error("confirm_replicas", replicas, "a whole number from 0")
        partitions = options.partitions
        if not isinstance(partitions, Mapping) or not all(
            isinstance(queue, str) and queue and _is_int(count) and 1 <= count <= MAX_PARTITIONS
            for queue, count in partitions.items()
        ):
            expected = f"a dict of queues and whole numbers from 1 to {MAX_PARTITIONS}"
            raise _error("partitions", partitions, expected)
        names = Partitions(partitions)
        whose = {name: queue for queue in partitions for name in names.names(queue)[1:]}
        for queue in partitions:
            if queue in whose:
                raise ValueError(taken(queue, whose[queue]))
        if not isinstance(options.revoke_scheduled, bool):
            raise _error("revoke_scheduled", options.revoke_scheduled, "True or False")
        unknown = options.unknown_task_wait
        if unknown is not None and (not _is_number(unknown) or not 0 < unknown <= 10**9):
            raise _error("unknown_task_wait", unknown, "a number of seconds above 0, or None")
        return options

    @property
    def alone_after(self) -> int:
        """How many workers may die while they hold a message, before it is taken and held alone. Nobody knows
        which message has killed them, so these deaths are no failures of it. Those that follow are. With 0 it
        is never held alone, and each death is a failure."""
        return min(ALONE_AFTER, (self.delivery_limit or ALONE_AFTER + 1) - 1)

    @property
    def lease_policy(self) -> LeasePolicy:
        return LeasePolicy(max(1, round(self.visibility_timeout * 1000)))

    @property
    def retry_wait_ms(self) -> float:
        return self.retry_wait * 1000


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _error(name: str, value: object, expected: str) -> ValueError:
    return ValueError(f"transport option {name!r} must be {expected}, not {value!r}")
