"""The page of what fills Redis."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from kombu_redisdelay.operations.memory_words import kind_of, number_of_messages, of_redis, remarks
from kombu_redisdelay.web.site import render, site_of
from kombu_redisdelay.words import percent, size

#: Tasks that are shown.
MOST_TASKS = 50


def memory(request: Request) -> Response:
    """What fills Redis, by queue, state and task, the largest first."""
    read = site_of(request).memory.get()
    found = read.value
    rest = found.tasks[MOST_TASKS:]
    return render(
        request,
        "memory.html",
        tasks=found.tasks[:MOST_TASKS],
        others=len(rest),
        bytes_of_others=sum(task.bytes for task in rest),
        about={(state.queue, state.state) for state in found.states if state.is_about},
        is_about=any(task.is_about for task in found.tasks),
        any_expired=any(task.expired for task in found.tasks[:MOST_TASKS]),
        kind_of=kind_of,
        number_of_messages=number_of_messages,
        of_redis=lambda bytes: of_redis(bytes, found),
        size=size,
        percent=percent,
        remarks=list(remarks(found)),
        read=read.moment,
    )
