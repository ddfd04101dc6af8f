"""The worker processes, of several kinds."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.chaos.environment import Environment
from tools.harness.celery_worker import CeleryWorker

ROOT = Path(__file__).parents[2]
_IN_A_NAMESPACE = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")


@dataclass(frozen=True)
class Kind:
    """What a worker is like.

    Attributes:
        isolated: in a PID namespace of its own, so that the others cannot know whether it is alive: as
            on another machine, they have to wait for the end of its lease.
        proxied: connected to Redis through the proxy.
        events: publishes Celery's events, which is something else to be caught at.
        stock: of ``redis://``, beside ours. Nobody harms it, because it loses messages then.
    """

    pool: str
    concurrency: int
    isolated: bool = False
    proxied: bool = False
    events: bool = False
    stock: bool = False


KINDS = (
    Kind("prefork", 2),
    Kind("threads", 4),
    Kind("prefork", 2, isolated=True),
    Kind("threads", 4, isolated=True, proxied=True),
    Kind("prefork", 2, proxied=True, events=True),
)

STOCK = Kind("threads", 4, stock=True)


@cache
def can_isolate() -> bool:
    """Whether there are PID namespaces to be had: that needs root."""
    if shutil.which(_IN_A_NAMESPACE[0]) is None:
        return False
    return subprocess.run([*_IN_A_NAMESPACE, "true"], capture_output=True).returncode == 0


class Worker(CeleryWorker):
    """A Celery worker that can be harmed."""

    def __init__(self, kind: Kind, name: str, environment: Environment) -> None:
        super().__init__(
            "tests.chaos.app",
            pool=kind.pool,
            concurrency=kind.concurrency,
            # Workers that come and go every second would spend their time talking about each other.
            args=("--without-mingle", "--without-gossip", *(["-E"] if kind.events else [])),
            env=environment.variables(),
            cwd=ROOT,
        )
        self.kind = kind
        self.label = name
        self._isolated = kind.isolated and can_isolate()
        self._was_ready = False

    def command(self) -> Sequence[str]:
        command = super().command()
        return [*_IN_A_NAMESPACE, *command] if self._isolated else command

    @property
    def isolated(self) -> bool:
        return self._isolated

    @property
    def ready(self) -> bool:
        # Its log, which grows with every task, need not be searched again and again.
        self._was_ready = self._was_ready or self.is_ready()
        return self._was_ready

    def terminate(self) -> None:
        """Ask Celery to end: what `unshare` was told, it would not pass on."""
        with suppress(ProcessLookupError):
            os.kill(self._celery_pid(), signal.SIGTERM)

    def freeze(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGCONT)

    def _celery_pid(self) -> int:
        if not self._isolated:
            return self.pid
        return int(Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()[0])
