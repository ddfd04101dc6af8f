"""Runs a page as a reader does: writes its files into an empty folder, and enters its commands.

A block of code with a caption is a file of this name; ``at the end of NAME`` adds to it. A block ``console``
is what a terminal shows: commands behind ``$``, and what they print. A line ``...`` there stands for any
lines. A block with the caption ``Terminal 2`` belongs to a terminal of its own, in which the last command may
go on running: what a later block of this terminal shows without a ``$``, that command prints then. ``^C``
ends it. The commands of other blocks have ended before the next one is entered.

What is printed is compared by its shape: times, lengths of time, ids and large numbers differ from run to
run. An id that was shown stands in later commands for the one that took its place.

A command that only looks is entered again for some seconds if it does not print what is shown: a worker that
is busy may come to it a moment later.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from tests.docs.page import Block
from tools.harness.forked_process import ForkedProcess
from tools.harness.process import Started, wait_until
from tools.harness.redis_server import HOST, RedisServer, free_port
from tools.harness.server_binary import servers

ROOT = Path(__file__).parents[2]

#: What the pages call the server.
_ADDRESS = "localhost:6379"

#: Whoever runs the tests has done this, or has no use for it.
_INSTALLS = re.compile(r"^(pip install|python3 -m venv|\. \.venv/bin/activate)\b")

_LOOKS = re.compile(r"^celery -A \w+ delayed (?:count|list|show|stats)\b")

#: Seconds.
_PATIENCE = 20

_ID = re.compile(r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b")
_SHAPES = [
    (re.compile(r"'[0-9a-f-]{36}:\d+:\d+:\d+:[0-9a-f]{32}(?:/[\w.@+-]+)?'"), "'CONSUMER'"),
    (_ID, "ID"),
    (re.compile(r"\b\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:\+\d\d:\d\d|Z)?"), "TIME"),
    (re.compile(r"\b(?:\d+d)?(?:\d+h)?(?:\d+m)?\d+(?:\.\d+)?(?:e-\d+)?(?:us|ms|s|m|h|d)\b"), "DURATION"),
    (re.compile(r"\bcelery@[\w.-]+"), "celery@HOST"),
    (re.compile(r"\bprocess \d+ on [\w.-]+"), "process PID on HOST"),
    (re.compile(r"[\w.-]+:\d{3,}$"), "HOST:PID"),
    (re.compile(r"\b[\d,]*\d{3}(?:\.\d+)?\b"), "NUMBER"),
    (re.compile(r"[▏▎▍▌▋▊▉█]+"), "BAR"),
    (re.compile(r"\bForkPoolWorker-\d+"), "ForkPoolWorker-N"),
    (re.compile(r" +"), " "),
]


def shape(text: str) -> str:
    """*text* without what differs from run to run."""
    for pattern, name in _SHAPES:
        text = pattern.sub(name, text)
    return "\n".join(line.strip() for line in text.strip("\n").split("\n"))


def matches(shown: str, printed: str, *, to_the_end: bool = True) -> bool:
    """Whether *printed* has the shape of what is *shown*, in which a line ``...`` stands for any lines."""
    lines = [re.escape(line) + "\n" if line != "..." else "(?:.*\n)*?" for line in shape(shown).split("\n")]
    pattern = "".join(lines)
    printed = shape(printed) + "\n"
    return bool(re.fullmatch(pattern, printed) if to_the_end else re.match(pattern, printed))


class Terminal:
    """Runs one command at a time. Its output is in a file."""

    def __init__(self, name: str, session: Session) -> None:
        self._session = session
        self._log = session.logs / name.lower().replace(" ", "-")
        self._seen = 0
        self._process: Started | None = None

    def enter(self, command: str) -> None:
        self._seen = 0
        folder, environment = self._session.folder, self._session.environment
        with self._log.open("wb") as log:
            # It takes half a second of CPU to import Celery once more.
            if command.startswith("celery "):
                self._process = ForkedProcess(shlex.split(command)[1:], log, environment, folder)
                return
            self._process = subprocess.Popen(
                ["bash", "-c", command],
                cwd=folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def printed(self) -> str:
        """What was printed since somebody has `seen` it."""
        return self._log.read_text(errors="replace")[self._seen :]

    def await_end(self, timeout: float = 120) -> None:
        assert self._process is not None
        self._process.wait(timeout)

    def await_shown(self, shown: str, what: object, timeout: float = 40) -> None:
        """Wait until what is *shown* has been printed."""
        try:
            wait_until(lambda: matches(shown, self.printed, to_the_end=False), timeout, str(what))
        except TimeoutError:
            raise AssertionError(f"{what}: not printed\n{shown}\n--- but\n{self.printed}") from None

    def seen(self) -> str:
        printed = self.printed
        self._seen += len(printed)
        return printed

    def interrupt(self) -> None:
        assert self._process is not None
        os.killpg(self._process.pid, signal.SIGINT)
        self.await_end()

    def close(self) -> None:
        if self._process is not None and self._process.poll() is None:
            for number in (signal.SIGTERM, signal.SIGKILL):
                with suppress(ProcessLookupError):
                    os.killpg(self._process.pid, number)
                with suppress(subprocess.TimeoutExpired):
                    self._process.wait(10)
                    break


class Session:
    """An empty folder with terminals, beside a server that has nothing in it.

    Arguments:
        server: the server that the page talks to; ``None`` if the page starts it with ``redis-server``.
    """

    def __init__(self, directory: Path, server: RedisServer | None = None) -> None:
        self.folder, self.logs, binaries = (directory / name for name in ("folder", "logs", "bin"))
        for each in (self.folder, self.logs, binaries):
            each.mkdir()
        port = free_port() if server is None else server.port
        self.address = f"{HOST}:{port}"
        command = shlex.join([servers()[0].path, "--bind", HOST, "--port", str(port)])
        starter = binaries / "redis-server"
        starter.write_text(f'#!/bin/sh\nexec {command} "$@"\n')
        starter.chmod(0o755)
        self.environment = {
            **os.environ,
            "PATH": os.pathsep.join([str(binaries), str(Path(sys.executable).parent), os.environ["PATH"]]),
            "PYTHONPATH": str(ROOT),
            "PYTHONUNBUFFERED": "1",
            "PYTHONWARNINGS": "ignore",
        }
        #: Command and what it has printed, as a reader sees them.
        self.record: list[tuple[float, str, str]] = []
        self._terminals: dict[str, Terminal] = {}
        self._ids: dict[str, str] = {}

    def run(self, blocks: Iterable[Block]) -> None:
        for block in blocks:
            if block.language == "console":
                self._show(block)
            elif block.caption:
                name = block.caption.removeprefix("at the end of ")
                path = self.folder / name
                path.parent.mkdir(parents=True, exist_ok=True)
                with path.open("w" if name == block.caption else "a") as file:
                    file.write(self._ours(block.text) + "\n")

    def _show(self, block: Block) -> None:
        name = block.caption or "Terminal"
        terminal = self._terminals.setdefault(name, Terminal(name, self))
        parts = re.split(r"^(\$ .*(?:(?<=\\)\n.*)*|\^C)$\n?", block.text, flags=re.MULTILINE)
        if parts[0].strip():
            self._await(terminal, parts[0], block)
        for command, shown in zip(parts[1::2], parts[2::2], strict=True):
            if command == "^C":
                terminal.interrupt()
                continue
            if _INSTALLS.match(command[2:]):
                continue
            if block.caption:
                terminal.enter(self._ours(command[2:]))
                self._await(terminal, shown, block)
            else:
                printed = self._printed(terminal, self._ours(command[2:]), self._ours(shown))
                self._record(command, printed)
                assert matches(self._ours(shown), printed), f"{block}: {command}\n{printed}"
                self._learn(shown, printed)

    def _printed(self, terminal: Terminal, command: str, shown: str) -> str:
        """What *command* prints; of one that only looks, when it prints what is *shown*."""
        deadline = time.monotonic() + (_PATIENCE if _LOOKS.match(command) else 0)
        while True:
            terminal.enter(command)
            terminal.await_end()
            printed = terminal.seen()
            if matches(shown, printed) or time.monotonic() >= deadline:
                return printed

    def _await(self, terminal: Terminal, shown: str, block: Block) -> None:
        shown = self._ours(shown)
        if shown.strip():
            terminal.await_shown(shown, block)
            printed = terminal.seen()
            self._record(block.caption, printed)
            self._learn(shown, printed)

    def _record(self, what: str, printed: str) -> None:
        self.record.append((time.monotonic(), what, printed.replace(self.address, _ADDRESS)))

    def _learn(self, shown: str, printed: str) -> None:
        """Which id has taken the place of which: those of one block come in the same order."""
        for theirs, ours in zip(_unique(shown), _unique(printed), strict=False):
            self._ids.setdefault(theirs, ours)

    def _ours(self, text: str) -> str:
        """*text* of the page with our server and the ids of this run."""
        for theirs, ours in self._ids.items():
            text = text.replace(theirs, ours)
        return text.replace(_ADDRESS, self.address)

    def close(self) -> None:
        for terminal in reversed(self._terminals.values()):
            terminal.close()


def _unique(text: str) -> list[str]:
    # The name of a consumer begins with a boot id.
    return list(dict.fromkeys(_ID.findall(_SHAPES[0][0].sub("", text))))
