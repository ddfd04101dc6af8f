"""Takes from Python what it has not on Windows. Python imports it at its start.

Celery comes first: by ``sys.platform`` it would look for modules that are gone then.
"""

from __future__ import annotations

import asyncio  # noqa: F401
import multiprocessing  # noqa: F401
import os
import select
import signal
import subprocess  # noqa: F401
import sys
from typing import Any

import celery.app.base
import celery.apps.worker
import celery.backends.redis
import celery.bin.celery
import celery.concurrency.solo
import celery.signals
import celery.worker.consumer
import kombu.transport.redis  # noqa: F401

LACKS = {
    os: "register_at_fork fork forkpty getuid getgid setuid setgid killpg getpgid setsid wait3 wait4 uname "
    "mkfifo chown fchown",
    signal: "SIGHUP SIGUSR1 SIGUSR2 SIGQUIT SIGALRM SIGKILL SIGSTOP SIGCONT SIGTSTP alarm setitimer",
    select: "epoll poll",
}
MODULES = ("fcntl", "termios", "resource", "pwd", "grp", "tty")


class _Missing:
    """Finds no module of these."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> None:
        if name in MODULES:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


celery.app.base.Celery.IS_WINDOWS = True
for module, names in LACKS.items():
    for name in names.split():
        if hasattr(module, name):
            delattr(module, name)
for name in MODULES:
    sys.modules.pop(name, None)
sys.meta_path.insert(0, _Missing)
