"""What the tests of what fills Redis have in common."""

from __future__ import annotations

import random
import string

from celery import Celery

from kombu_redisdelay import TaskMemory
from kombu_redisdelay.operations.memory_report import MemoryUse
from tests.transport.kit import Site

#: How far an estimate may be off.
NEARLY = 0.25


def text(length: int) -> str:
    """Something that cannot be compressed much."""
    return "".join(random.choices(string.ascii_letters + string.digits, k=length))


def bodies(site: Site, app: Celery, task: str, length: int) -> list[bytes]:
    """Some messages of a task."""
    for _ in range(5):
        app.send_task(task, [text(length)])
    found: list[bytes] = site.redis.lrange("celery", 0, -1)
    site.redis.delete("celery")
    return found


def by_task(found: MemoryUse) -> dict[str | None, TaskMemory]:
    tasks = {each.task: each for each in found.tasks}
    assert len(tasks) == len(found.tasks)
    return tasks


def of_state(found: MemoryUse, state: str) -> int:
    return sum(each.bytes for each in found.states if each.state == state)
