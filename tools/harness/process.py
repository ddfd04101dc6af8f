"""A child process with a directory of its own that leaves nothing behind."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Protocol

from tools.harness import leash

if TYPE_CHECKING:
    # In `typing` from Python 3.11 on.
    from typing_extensions import Self


def wait_until(condition: Callable[[], object], timeout: float, what: str) -> None:
    """Return as soon as *condition* holds.

    Raises:
        TimeoutError: it does not hold after *timeout* seconds. The error says *what* was awaited.
    """
    deadline, pause = time.monotonic() + timeout, 0.01
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"after {timeout:g} s: {what}")
        time.sleep(pause)
        # To ask costs CPU, which what is awaited may need.
        pause = min(1.1 * pause, 0.05)


class Started(Protocol):
    """What is used of `subprocess.Popen`."""

    pid: int

    @property
    def returncode(self) -> int | None: ...

    def poll(self) -> int | None: ...

    def wait(self, timeout: float | None = None) -> int: ...

    def terminate(self) -> None: ...

    def kill(self) -> None: ...


class ChildProcess(ABC):
    """A process group led by one command, ended when the ``with`` block is left.

    On Linux the command is killed as well when this process dies, however it dies. The kernel
    takes the thread that called ``start`` for the parent, so call it from a thread that lives on.
    """

    def __init__(self) -> None:
        # Short, because a Unix socket may be put here, and its path may have 107 bytes at most.
        self.directory = Path(tempfile.mkdtemp(prefix="redisdelay-"))
        self._log = self.directory / "log"
        self._process: Started | None = None

    @abstractmethod
    def command(self) -> Sequence[str]:
        """The command to start."""

    @abstractmethod
    def is_ready(self) -> bool:
        """Whether the started process already does its work."""

    def environment(self) -> Mapping[str, str]:
        """The command's environment."""
        return os.environ

    def working_directory(self) -> Path | None:
        """Where the command runs; None for here."""
        return None

    def start(self) -> None:
        """Start the command with an empty log. Call `wait_ready` before you use it."""
        # Killed workers leave files in their temporary directory. We remove this one.
        environment = {**self.environment(), "TMPDIR": str(self.directory)}
        with self._log.open("wb") as log:
            self._process = self.launch(log, environment)

    def launch(self, log: IO[bytes], environment: Mapping[str, str]) -> Started:
        """Start the command as the leader of a session that dies with this process."""
        return subprocess.Popen(
            [sys.executable, "-IS", leash.__file__, str(os.getpid()), *self.command()],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=environment,
            cwd=self.working_directory(),
            start_new_session=True,
        )

    def wait_ready(self, timeout: float = 30) -> None:
        """Wait until the process is ready.

        Raises:
            TimeoutError: it is not ready after *timeout* seconds. The error has the end of the log.
            RuntimeError: it has ended. The error has the end of the log.
        """
        try:
            wait_until(lambda: self.is_ready() or not self.running, timeout, "not ready")
        except TimeoutError as error:
            raise TimeoutError(f"{error}\n{self._tail()}") from None
        if not self.running:
            raise RuntimeError(f"ended with status {self._started.returncode}\n{self._tail()}")

    def stop(self, timeout: float = 10) -> None:
        """Ask the process to end, and wait for it.

        Raises:
            TimeoutError: it has not ended after *timeout* seconds, and was killed.
        """
        self._started.terminate()
        try:
            self._started.wait(timeout)
        except subprocess.TimeoutExpired:
            raise TimeoutError(f"not stopped after {timeout:g} s\n{self._tail()}") from None
        finally:
            self.kill()

    def kill(self, *, whole_group: bool = True) -> None:
        """SIGKILL the process and all that it started, or only the process itself."""
        if whole_group:
            # The group outlives its leader, and is gone when its last process is.
            with suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
        else:
            self._started.kill()
        self._started.wait()

    @property
    def running(self) -> bool:
        return self._started.poll() is None

    @property
    def pid(self) -> int:
        return self._started.pid

    def log(self) -> str:
        """What the process has written since its last start."""
        return self._log.read_text(errors="replace")

    def __enter__(self) -> Self:
        try:
            self.start()
            self.wait_ready()
        except BaseException:
            self._clean_up()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self._clean_up()

    def _clean_up(self) -> None:
        if self._process is not None:
            self.kill()
        shutil.rmtree(self.directory, ignore_errors=True)

    @property
    def _started(self) -> Started:
        if self._process is None:
            raise RuntimeError("not started")
        return self._process

    def _tail(self) -> str:
        return "\n".join(self.log().splitlines()[-40:])
