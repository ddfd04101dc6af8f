"""Names of consumers, whether their processes have ended, and what a forked process does first.

A consumer's name is ``<boot id>:<PID namespace>:<PID>:<start time>:<random>``, and ``/`` and the name of the
Celery worker, if it is one. If boot id and
namespace are our own, the kernel can tell whether that very process still exists. If it does not, its
messages cannot be acked any more, and there is no need to wait for its lease. In any doubt, only the lease
counts.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from socket import gethostname
from uuid import uuid4

_UNKNOWN = "-"


#: What a name of a worker may have. It becomes a part of names of keys.
_UNUSUAL = re.compile(r"[^\w.@+-]", re.ASCII)

#: The longest name of a worker, in characters.
_LONGEST_WORKER = 100


def new_consumer(worker: str = "") -> str:
    """A name for a new consumer in this process.

    Arguments:
        worker: the name of the Celery worker; empty if it is none.
    """
    pid = os.getpid()
    start_time = _start_time(pid)
    its_worker = f"/{_UNUSUAL.sub('_', worker)[:_LONGEST_WORKER]}" if worker else ""
    return ":".join((_host(), str(pid), start_time or _UNKNOWN, uuid4().hex + its_worker))


def worker_of(consumer: str) -> str | None:
    """The name of the Celery worker that a consumer belongs to; ``None`` if its name does not tell."""
    return consumer.rpartition(":")[2].partition("/")[2] or None


def process_of(consumer: str) -> str:
    """The part of the name that all consumers of one process share."""
    return consumer.rpartition(":")[0]


def host_and_pid(consumer: str) -> tuple[str | None, int | None]:
    """Where a consumer is, for people: the name of this host if it runs here, else the boot id of its host;
    and its PID there. ``None`` for what its name does not tell."""
    try:
        host, pid_text, _ = process_of(consumer).rsplit(":", 2)
        pid = int(pid_text)
    except ValueError:
        return None, None
    if host == _UNKNOWN:
        return None, pid
    return gethostname() if host == _host() else host.partition(":")[0], pid


def has_ended(process: str) -> bool:
    """Whether this process provably has ended.

    Arguments:
        process: as :func:`process_of` returns it.
    """
    try:
        host, pid_text, start_time = process.rsplit(":", 2)
        pid = int(pid_text)
    except ValueError:
        return False
    if host != _host() or _UNKNOWN in (host, start_time):
        return False
    try:
        # The kernel answers this even where /proc hides the processes of other users.
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except OverflowError:
        return False
    except PermissionError:
        pass
    found = _start_time(pid)
    return found is not None and found != start_time


def in_each_child(run: Callable[[], object]) -> None:
    """Have *run* called in each process that is forked from this one. On Windows, there are none."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=run)


def _host() -> str:
    return _host_of(os.getpid())


@lru_cache(maxsize=1)
def _host_of(this_pid: int) -> str:
    """Boot id and PID namespace of this process, or "-" where they cannot be told for sure."""
    try:
        # In a PID namespace that kept its parent's /proc, that /proc is about other processes.
        if os.readlink("/proc/self") != str(this_pid):
            return _UNKNOWN
        boot_id = Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
        return f"{boot_id}:{os.stat('/proc/self/ns/pid').st_ino}"
    except OSError:
        return _UNKNOWN


def _start_time(pid: int) -> str | None:
    """When *pid* started, in clock ticks since boot; "exited" for a zombie; ``None`` if it is unknown."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace")
    except OSError:
        return None
    # proc(5): the second field, the command in brackets, may contain anything. The rest follows the last ")".
    fields = stat[stat.rindex(")") + 2 :].split()
    state, threads, start_time = fields[0], int(fields[17]), fields[19]
    if state in "ZX" and threads <= 1:
        return "exited"
    return start_time
