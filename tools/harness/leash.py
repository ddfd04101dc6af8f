"""Run a command that dies with its parent: ``python leash.py PARENT_PID COMMAND...``.

It is a program and not a ``preexec_fn``, which is unsafe in a process that has threads.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def die_with(parent: int) -> None:
    """Have the kernel kill this process when its *parent* dies: on Linux."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        # The parent may have died before the request was made.
        if os.getppid() != parent:
            sys.exit("the parent is gone")


if __name__ == "__main__":
    parent, command = int(sys.argv[1]), sys.argv[2:]
    die_with(parent)
    os.execvp(command[0], command)
