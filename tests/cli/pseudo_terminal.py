"""A process on a terminal of its own."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import termios
from collections.abc import Mapping, Sequence
from pathlib import Path
from select import select
from types import TracebackType
from typing import Any

from tools.harness.celery_command import CELERY
from tools.harness.forked_process import ForkedProcess
from tools.harness.process import Started, wait_until

#: What is written to a terminal beside text: styles, and where the cursor is.
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def _let_control_c_through() -> None:
    """Have Ctrl-C reach this process, and end it, also if the tests run in the background of a shell, where
    it is ignored."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    signal.signal(signal.SIGINT, signal.SIG_DFL)


class PseudoTerminal:
    """Runs a command as if a person had typed it.

    Arguments:
        command: forked from a process that has imported Celery, if it begins with `CELERY`.
        environment: what the command finds there, beside the size of the terminal.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], columns: int = 80) -> None:
        self._ours, self._theirs = pty.openpty()
        fcntl.ioctl(self._theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        self.settings = self._settings()
        unset = {"COLUMNS", "LINES", "FORCE_COLOR", "TTY_COMPATIBLE"}
        environment = {name: value for name, value in environment.items() if name not in unset}
        environment["TERM"] = "xterm-256color"
        self._process: Started
        if tuple(command[:3]) == CELERY:
            self._process = ForkedProcess(
                command[3:], self._theirs, environment, Path.cwd(), given=self._theirs
            )
        else:
            self._process = subprocess.Popen(
                command,
                stdin=self._theirs,
                stdout=self._theirs,
                stderr=self._theirs,
                env=environment,
                start_new_session=True,
                preexec_fn=_let_control_c_through,
            )
        self.written = ""

    def __enter__(self) -> PseudoTerminal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        os.close(self._ours)
        os.close(self._theirs)

    def press(self, keys: str) -> None:
        os.write(self._ours, keys.encode())

    def send_signal(self, number: int) -> None:
        os.kill(self._process.pid, number)

    def shows(self, text: str) -> bool:
        self._read()
        return text in self.written

    def end(self) -> int:
        """Wait until the command has ended. Returns its exit status."""

        def ended() -> bool:
            # It cannot end before somebody has read what it writes.
            self._read()
            return self._process.poll() is not None

        wait_until(ended, 30, "that the command ends")
        self._read()
        return self._process.wait()

    @property
    def lines(self) -> list[str]:
        """What was written, without styles."""
        return _CONTROL.sub("", self.written).splitlines()

    @property
    def is_as_before(self) -> bool:
        """Whether the terminal treats what is typed as it did before the command."""
        return self._settings() == self.settings

    def _settings(self) -> list[Any]:
        return termios.tcgetattr(self._theirs)

    def _read(self) -> None:
        while select([self._ours], [], [], 0.01)[0]:
            self.written += os.read(self._ours, 65536).decode(errors="replace")
