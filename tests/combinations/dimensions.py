"""What is combined with what, and which of it cannot be. A feature adds its line here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

#: Name of a dimension -> the value that a row has of it.
Row = Mapping[str, str]

#: Name of a dimension -> its values.
DIMENSIONS: Mapping[str, tuple[str, ...]] = {
    "pool": ("prefork", "solo", "threads", "gevent", "eventlet"),
    "acks": ("early", "late"),
    # `worker_prefetch_multiplier`; with 0 a worker takes as much as there is.
    "prefetch": ("1", "4", "0"),
    "topology": ("single", "sentinel", "cluster"),
    # Who publishes: our transport, the same in a batch, kombu's, or any program that does LPUSH.
    "producer": ("ours", "batch", "redis", "lpush"),
    # The healthy tasks are ready at once, have a countdown, or retry themselves once.
    "sending": ("ready", "countdown", "retry"),
    # Of two healthy tasks that follow each other in a queue, with one key: its mode.
    "keys": ("none", "waiting", "done", "latest"),
    "queues": ("1", "12"),
    "priorities": ("no", "yes"),
    # How the queues are fair: not at all, because an operator or their arguments say so, with limits of keys,
    # or on and off while all runs.
    "fair": ("no", "command", "arguments", "limited", "switched"),
    # Whether the producer is refused what is too much for a queue.
    "bound": ("no", "yes"),
    # Of the first queue.
    "partitions": ("no", "yes"),
    "backend": ("none", "redis", "ours"),
    # What an operator does to the first queue, or to all.
    "control": ("nothing", "pause", "rate", "concurrency"),
    # What is wrong in the same queues.
    "beside": (
        *("nothing", "rejects", "kills", "raises", "fails", "unreadable", "expired", "revoked", "unknown"),
    ),
    # How much a queue keeps of tasks that have failed.
    "keep_failed": ("default", "one", "none"),
    # What happens in the middle.
    "middle": ("nothing", "SIGKILL", "SIGTERM", "CLIENT KILL", "silence", "failover"),
    # What the servers answer for a while just then: they are there, and refuse.
    "trouble": ("no", "MISCONF", "BUSY", "OOM", "NOREPLICAS", "max clients"),
    "hiredis": ("without", "with"),
    "celery": ("newest", "oldest"),
}


@dataclass(frozen=True)
class Exclusion:
    """Values that cannot meet in a row.

    Attributes:
        values: name of a dimension -> the values of it that are meant.
        why: in a line, for the reader of the report.
    """

    values: Mapping[str, tuple[str, ...]]
    why: str

    def holds(self, row: Row) -> bool:
        """Whether a row, or a part of one, is excluded."""
        return all(row.get(name) in values for name, values in self.values.items())


#: All but none.
TROUBLES = DIMENSIONS["trouble"][1:]

EXCLUSIONS = (
    Exclusion(
        {"producer": ("redis",), "topology": ("cluster",)},
        "kombu's redis:// cannot use a cluster",
    ),
    Exclusion(
        {"producer": ("lpush",), "sending": ("countdown",)},
        "who pushes by hand has no countdown",
    ),
    Exclusion(
        {"keys": ("waiting", "done", "latest"), "producer": ("redis", "lpush")},
        "other programs know no keys",
    ),
    Exclusion(
        {"partitions": ("yes",), "producer": ("redis", "lpush")},
        "other programs know no partitions, so that one of them has all the load",
    ),
    Exclusion(
        {"bound": ("yes",), "producer": ("redis", "lpush")},
        "other programs know no bound",
    ),
    Exclusion(
        {"keys": ("done", "latest"), "acks": ("early",)},
        "with an early ack, nobody knows when a task is done",
    ),
    Exclusion(
        {"beside": ("kills",), "pool": ("solo", "threads", "gevent", "eventlet")},
        "the task's process is the worker there, so this is the SIGKILL of a worker",
    ),
    Exclusion(
        {"middle": ("failover",), "topology": ("single",)},
        "one server has nothing to fail over to",
    ),
    Exclusion(
        {"trouble": TROUBLES, "middle": ("failover",)},
        "the primary that is in trouble is gone then",
    ),
    Exclusion(
        {"trouble": ("OOM",), "backend": ("ours",)},
        "a full Redis does not keep results",
    ),
    Exclusion(
        {"backend": ("ours",), "topology": ("cluster",)},
        "Celery's result backend cannot use a cluster",
    ),
)


def excluded(row: Row) -> str | None:
    """Why a row, or a part of one, cannot be; ``None`` if it can."""
    return next((exclusion.why for exclusion in EXCLUSIONS if exclusion.holds(row)), None)
