"""Tells what fills a server that is filling up."""

from __future__ import annotations

from collections.abc import Iterator

from kombu_redisdelay.operations.access import Access
from kombu_redisdelay.operations.doctor.finding import Finding, ok, warning
from kombu_redisdelay.operations.memory import memory_use
from kombu_redisdelay.operations.memory_words import fill_of, kind_of
from kombu_redisdelay.operations.server_memory import memories
from kombu_redisdelay.words import percent, size

#: Below this share of its memory, nothing is looked at.
LEAST_SHARE = 0.5

#: A server that will be full in less than so many seconds is worth a warning.
SOON = 6 * 3600.0

#: Tasks that are named.
MOST_TASKS = 3


def check_filling(access: Access) -> Iterator[Finding]:
    """What fills the servers, if one is more than half full."""
    fullest = max((memory.share for _, memory in memories(access.store)), default=0.0)
    if fullest < LEAST_SHARE:
        return
    found = memory_use(access)
    whole = found.bytes or 1
    tasks = [
        f"{kind_of(task)}, {task.state} in {task.queue}: {size(task.bytes)} ({percent(task.bytes / whole)})"
        for task in found.tasks[:MOST_TASKS]
    ]
    said = "; ".join(["queues have " + size(found.bytes), *tasks])
    soon = [server for server in found.servers if server.full_in is not None and server.full_in < SOON]
    if not soon:
        yield ok("what fills Redis", said)
        return
    for server in soon:
        yield warning(
            "what fills Redis",
            f"{server.server}: {fill_of(server)}; {said}",
            "See `celery delayed memory`. Have fewer tasks published, start more workers, or bound it.",
        )
