"""Tells what fills a server that is filling up."""

from __future__ import annotations

from collections.abc import Iterator

from kombu_redisdelay.operations.access import Access
from kombu_redisdelay.operations.doctor.finding import Finding, ok, warning
from kombu_redisdelay.operations.memory import memory_use
from kombu_redisdelay.operations.memory_use import MemoryUse
from kombu_redisdelay.operations.memory_words import fill_of, key_in_words, kind_of, of_redis, unknown_bytes
from kombu_redisdelay.operations.server_memory import memories
from kombu_redisdelay.words import number_of, size

#: Below this share of its memory, nothing is looked at.
LEAST_SHARE = 0.5

#: A server that will be full in less than so many seconds is worth a warning.
SOON = 6 * 3600.0

#: What is named: tasks at most, and what else has this part of what Redis uses.
MOST_TASKS, LEAST_OF_REDIS = 3, 0.05


def check_filling(access: Access) -> Iterator[Finding]:
    """What fills the servers, if one is more than half full."""
    fullest = max((memory.share for _, memory in memories(access.store)), default=0.0)
    if fullest < LEAST_SHARE:
        return
    found = memory_use(access)
    said = _said(found)
    soon = [server for server in found.servers if server.full_in is not None and server.full_in < SOON]
    if not soon:
        yield ok("what fills Redis", said)
        return
    for server in soon:
        yield warning(
            "what fills Redis",
            f"{server.server}: {fill_of(server)}; {said}",
            "See `celery delayed memory`. Remove what is not needed, have fewer tasks published, start more "
            "workers, or bound the queue.",
        )


def _said(found: MemoryUse) -> str:
    """The parts of what Redis uses, the largest first."""
    tasks = [
        f"{kind_of(task)}, {task.state} in {task.queue}, {_part(task.bytes, found)}"
        for task in found.tasks[:MOST_TASKS]
    ]
    queues = f"queues {_part(found.bytes, found)}{', of it ' if tasks else ''}{', '.join(tasks)}"
    parts = [(found.bytes, queues)]
    for each in found.others:
        if each.bytes >= LEAST_OF_REDIS * found.used:
            about = " about " if each.is_about else " "
            of_these = f": {key_in_words(each.largest[0])}" if each.largest else ""
            parts.append((each.bytes, f"{each.what}{about}{_part(each.bytes, found)}{of_these}"))
    if rest := unknown_bytes(found):
        parts.append((rest, f"Redis itself, and keys that were not looked at, {_part(rest, found)}"))
    said = [text for _, text in sorted(parts, key=lambda part: -part[0])]
    if found.unread:
        said.append(f"{number_of(len(found.unread), 'queue')} could not be read")
    return f"of what Redis uses: {'; '.join(said)}"


def _part(bytes: int, found: MemoryUse) -> str:
    return f"{size(bytes)} ({of_redis(bytes, found)})"
