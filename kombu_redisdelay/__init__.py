"""A Kombu transport that keeps countdown and ETA messages in Redis until they are due.

Importing this package registers its URL schemes, such as ``redisdelay``, with kombu.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from kombu_redisdelay import registration

if TYPE_CHECKING:
    from kombu_redisdelay.broker.server.server import NotReplicatedError
    from kombu_redisdelay.operations.acting import Done
    from kombu_redisdelay.operations.failed_tasks import FailureGroup
    from kombu_redisdelay.operations.fair import KeyLimits
    from kombu_redisdelay.operations.fairness import Fairness
    from kombu_redisdelay.operations.history import Period, QueueHistory
    from kombu_redisdelay.operations.key_stats import KeyStats, QueueKeys
    from kombu_redisdelay.operations.limits import QueueLimits
    from kombu_redisdelay.operations.memory_report import MemoryUse, StateMemory, TaskMemory, UnreadQueue
    from kombu_redisdelay.operations.message import MessageInfo
    from kombu_redisdelay.operations.messages import Messages, NotMarkedRevokedError
    from kombu_redisdelay.operations.other_keys import LargeKey, OtherKeys
    from kombu_redisdelay.operations.queues import Queues
    from kombu_redisdelay.operations.reading import Count, Page
    from kombu_redisdelay.operations.selection import Selection
    from kombu_redisdelay.operations.server_memory import ServerFill
    from kombu_redisdelay.operations.stats import QueueStats
    from kombu_redisdelay.operations.timeline import Span
    from kombu_redisdelay.transport import Transport
    from kombu_redisdelay.transport.admission import QueueFull
    from kombu_redisdelay.transport.batch import batch
    from kombu_redisdelay.transport.outbox import BatchPublishError
    from kombu_redisdelay.transport.patience import PartlyPublishedError
    from kombu_redisdelay.transport.settling import requeue
    from kombu_redisdelay.transport.task_keys import keys
    from kombu_redisdelay.transport.unique_results import UniqueResult, unique_conflict
    from kombu_redisdelay.transport.unique_task import Unique
    from kombu_redisdelay.transport.urls import use_for_redis_urls

__version__ = "0.1.0"
__all__ = (
    "BatchPublishError",
    "Count",
    "Done",
    "FailureGroup",
    "Fairness",
    "KeyLimits",
    "KeyStats",
    "LargeKey",
    "MemoryUse",
    "MessageInfo",
    "Messages",
    "NotMarkedRevokedError",
    "NotReplicatedError",
    "OtherKeys",
    "Page",
    "PartlyPublishedError",
    "Period",
    "QueueFull",
    "QueueHistory",
    "QueueKeys",
    "QueueLimits",
    "QueueStats",
    "Queues",
    "Selection",
    "ServerFill",
    "Span",
    "StateMemory",
    "TaskMemory",
    "Transport",
    "Unique",
    "UniqueResult",
    "UnreadQueue",
    "batch",
    "keys",
    "requeue",
    "unique_conflict",
    "use_for_redis_urls",
)

_MODULES = {
    "BatchPublishError": "transport.outbox",
    "Count": "operations.reading",
    "Done": "operations.acting",
    "FailureGroup": "operations.failed_tasks",
    "Fairness": "operations.fairness",
    "KeyLimits": "operations.fair",
    "KeyStats": "operations.key_stats",
    "MemoryUse": "operations.memory_report",
    "MessageInfo": "operations.message",
    "Messages": "operations.messages",
    "NotMarkedRevokedError": "operations.messages",
    "NotReplicatedError": "broker.server.server",
    "LargeKey": "operations.other_keys",
    "OtherKeys": "operations.other_keys",
    "Page": "operations.reading",
    "PartlyPublishedError": "transport.patience",
    "Period": "operations.history",
    "QueueFull": "transport.admission",
    "QueueHistory": "operations.history",
    "QueueKeys": "operations.key_stats",
    "QueueLimits": "operations.limits",
    "QueueStats": "operations.stats",
    "Queues": "operations.queues",
    "Selection": "operations.selection",
    "ServerFill": "operations.server_memory",
    "Span": "operations.timeline",
    "StateMemory": "operations.memory_report",
    "TaskMemory": "operations.memory_report",
    "Transport": "transport",
    "Unique": "transport.unique_task",
    "UniqueResult": "transport.unique_results",
    "UnreadQueue": "operations.memory_report",
    "batch": "transport.batch",
    "keys": "transport.task_keys",
    "requeue": "transport.settling",
    "unique_conflict": "transport.unique_results",
    "use_for_redis_urls": "transport.urls",
}

registration.register()


def __getattr__(name: str) -> Any:
    # Loaded on first use: this package is imported while kombu.serialization is still being imported
    # (see registration), and these modules need all of kombu.
    if name in _MODULES:
        return getattr(import_module(f"kombu_redisdelay.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
