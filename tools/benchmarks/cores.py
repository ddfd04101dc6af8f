"""Which cores of the machine processes run on."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Iterator
from contextlib import contextmanager

import psutil


@contextmanager
def apart(server: int) -> Iterator[None]:
    """Give a core to the process *server*, and the others to what this thread starts meanwhile.

    Two processes that wait for each other all the time are put on one core by Linux, or on two, now and then
    and for as long as it likes; on two, a round trip takes three times as long. Does nothing where there
    is one core, or another system.
    """
    if sys.platform != "linux" or len(cores := sorted(os.sched_getaffinity(0))) < 2:
        yield
        return
    _pin(server, cores[:1])
    os.sched_setaffinity(0, cores[1:])
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)
        _pin(server, cores)


def _pin(process: int, cores: Collection[int]) -> None:
    # To the system, each thread has cores of its own.
    if sys.platform == "linux":
        for thread in psutil.Process(process).threads():
            os.sched_setaffinity(thread.id, cores)
