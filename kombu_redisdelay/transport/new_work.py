"""Tells new work from what follows of work that was accepted before. Only new work may be refused: its
publisher is there to hear of it, and nothing waits for it yet."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kombu_redisdelay.broker.printable import shortened

#: Headers of Celery's tasks. A retry has the first one, what a task publishes (and what comes after it in a
#: chain, its callbacks, the body of a chord) the second, and members of a group but for the first the third.
_FOLLOWS = ("retries", "parent_id", "group_index")

#: What AMQP calls a message that need not outlive the server. Celery's events and replies are such.
TRANSIENT = 1


def is_new_work(message: Mapping[str, Any]) -> bool:
    """Whether *message* may be refused. Answers and events may not."""
    headers, properties = message["headers"] or {}, message["properties"]
    if "task" in headers:
        return not any(map(headers.get, _FOLLOWS))
    return properties.get("delivery_mode") != TRANSIENT and not properties.get("correlation_id")


def name_of(message: Mapping[str, Any]) -> str:
    """What people know *message* by: its task, else where it goes. It has a bounded length."""
    task = (message["headers"] or {}).get("task")
    if task:
        return f"task {shortened(str(task))}"
    info = message["properties"].get("delivery_info") or {}
    return f"a message for {shortened(str(info.get('routing_key') or info.get('exchange') or ''))}"
