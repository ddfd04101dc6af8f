"""Celery's settings for the workers and the producers of a row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tests.combinations.dimensions import Row
from tests.combinations.plan import FIRST
from tests.combinations.servers import Servers

#: Seconds after which our transport gives back what a silent worker holds, unless it knows that it is dead.
#: A silent server and a failover are shorter.
LEASE = 10.0
#: With kombu's: whatever is held for longer runs again, so it is more than a row lasts.
VISIBILITY_TIMEOUT = 60.0
#: Of the first queue, where it has any.
PARTITIONS = 2
#: Less than what comes at once.
BOUND = 30
#: The transport option.
KEEP_FAILED: Mapping[str, Any] = {
    "default": {},
    "one": {"keep_failed": {"count": 1}},
    "none": {"keep_failed": None},
}


def settings(row: Row, servers: Servers, queues: Sequence[str], *, stock: bool) -> dict[str, Any]:
    """For those who use our transport, or kombu's (*stock*)."""
    return {
        "broker_transport_options": _kombu(servers) if stock else _ours(row, servers),
        "broker_connection_retry_on_startup": True,
        "broker_connection_max_retries": None,
        "task_default_queue": queues[0],
        "task_queues": {queue: _queue(row, queue, stock=stock) for queue in queues},
        "task_acks_late": row["acks"] == "late",
        "worker_prefetch_multiplier": int(row["prefetch"]),
        **_results(row, servers, stock=stock),
    }


def _ours(row: Row, servers: Servers) -> dict[str, Any]:
    confirmed = {"confirm_replicas": 1} if row["middle"] == "failover" else {}
    return {
        "visibility_timeout": LEASE,
        **confirmed,
        **KEEP_FAILED[row["keep_failed"]],
        **operating(row, servers),
    }


def operating(row: Row, servers: Servers) -> dict[str, Any]:
    """The transport options that an operator needs, too."""
    spread = {"partitions": {FIRST: PARTITIONS}} if row["partitions"] == "yes" else {}
    return {**spread, **servers.options}


def _queue(row: Row, queue: str, *, stock: bool) -> dict[str, Any]:
    arguments: dict[str, Any] = {}
    if row["fair"] == "arguments" and not stock:
        arguments["x-fair"] = True
    if row["bound"] == "yes" and not stock:
        arguments |= {"x-max-length": BOUND, "x-overflow": "reject-publish"}
    return {"exchange": queue, "routing_key": queue, "queue_arguments": arguments}


def _kombu(servers: Servers) -> dict[str, Any]:
    return {"visibility_timeout": VISIBILITY_TIMEOUT, **servers.options}


def _results(row: Row, servers: Servers, *, stock: bool) -> Mapping[str, Any]:
    if row["backend"] == "none":
        return {"task_ignore_result": True}
    url = servers.ours() if row["backend"] == "ours" and not stock else servers.results()
    return {
        "result_backend": url,
        "result_backend_transport_options": dict(servers.options),
        # Without it, Celery's pools of threads and greenlets lose a task whose result cannot be stored.
        "result_backend_always_retry": True,
    }
