"""The memory limit that Linux keeps a process of this machine to: that of its container, or of its unit."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path, PurePosixPath

#: Where version 2 of control groups has its limits, and where version 1 has them.
_V2, _V1 = ("sys/fs/cgroup", "memory.max"), ("sys/fs/cgroup/memory", "memory.limit_in_bytes")

#: Version 1 says a number that is larger if there is no limit.
_NO_LIMIT = 2**60

#: Linux cuts off the name of a program.
_LONGEST_NAME = 15

#: Seconds by which two ways to tell the age of a process may differ.
_TOLERANCE = 3.0


def memory_limit(pid: int, executable: str, age: float, root: Path = Path("/")) -> int | None:
    """The limit of process *pid*, in bytes. ``None`` if it has none, or if it may be a process of another
    machine.

    Arguments:
        executable: the name of its program.
        age: for how many seconds it has been running.
    """
    try:
        if not _is_it(root / "proc", pid, executable, age):
            return None
        lines = (root / f"proc/{pid}/cgroup").read_text("utf-8").splitlines()
    except (OSError, ValueError):
        return None
    limits = []
    for line in lines:
        number, controllers, path = line.split(":", 2)
        if number == "0":
            limits += _limits(root, *_V2, path)
        elif "memory" in controllers.split(","):
            limits += _limits(root, *_V1, path)
    return min(limits, default=None)


def _is_it(proc: Path, pid: int, executable: str, age: float) -> bool:
    stat = (proc / f"{pid}/stat").read_text("utf-8", "replace")
    # proc(5): the name of the program, cut off, in brackets; the 22nd field is when it started.
    name, fields = stat[stat.index("(") + 1 : stat.rindex(")")], stat[stat.rindex(")") + 2 :].split()
    up = float((proc / "uptime").read_text("ascii").split()[0])
    its_age = up - int(fields[19]) / os.sysconf("SC_CLK_TCK")
    return name == executable[:_LONGEST_NAME] and abs(its_age - age) < _TOLERANCE


def _limits(root: Path, mount: str, name: str, path: str) -> list[int]:
    """Those of a group and of the groups around it. In a container, only the outermost may be seen."""
    found = []
    group = PurePosixPath(path.lstrip("/"))
    for each in (group, *group.parents):
        with suppress(OSError, ValueError):
            found.append(int((root / mount / each / name).read_text("ascii")))
    return [limit for limit in found if limit < _NO_LIMIT]
