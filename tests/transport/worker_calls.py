"""A Celery worker that prints how many functions of ours it calls for each plain task, and ends.

Arguments: the URL of the broker, the pool, and how many places it has.
"""

import sys

if sys.argv[2] == "gevent":
    from gevent import monkey

    monkey.patch_all()

import cProfile
import os
import pstats
from collections import Counter
from pathlib import Path
from typing import Any

from celery import Celery, signals

#: Tasks that are counted together, and how often.
COUNT, TIMES = 200, 4

app = Celery(broker=sys.argv[1], set_as_current=False)
app.conf.update(worker_redirect_stdouts=False, task_ignore_result=True)
found: list[int] = []
#: The files of ours that each task comes through.
rooms: set[str] = set()
profile: list[cProfile.Profile] = []


@app.task(name="plain")
def plain() -> None:
    pass


@app.task(name="edge")
def edge() -> None:
    """Stands between those that are counted together."""


@signals.task_received.connect
def at_edge(request: Any, **kwargs: Any) -> None:
    if request.name != "edge":
        return
    if profile:
        last = profile.pop()
        last.disable()
        found.append(calls_of_each(last))
    if len(found) == TIMES:
        print("calls", min(found))
        print("rooms", *sorted(rooms), flush=True)
        os._exit(0)
    profile.append(cProfile.Profile())
    profile[0].enable()


def calls_of_each(profile: cProfile.Profile) -> int:
    """How many calls of ours each task makes. Others are made now and then, for several together: how often
    depends on the machine."""
    stats = pstats.Stats(profile).stats  # type: ignore[attr-defined]
    # Of those at the edges, some are counted on the other side.
    calls = Counter[str]()
    for (file, _, _), (_, count, *_) in stats.items():
        if "/kombu_redisdelay/" in file:
            calls[Path(file).stem] += int(count / COUNT + 0.05)
    rooms.update(calls.keys() & +calls)
    return calls.total()


for task in ([plain] * COUNT + [edge]) * (TIMES + 1):
    task.delay()
app.Worker(pool=sys.argv[2], concurrency=int(sys.argv[3]), loglevel="ERROR").start()
