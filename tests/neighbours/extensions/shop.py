"""The files of a page about neighbours in a folder, and the programs that run them."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from tests.docs.page import DOCS, blocks
from tests.docs.session import Session
from tools.harness.celery_worker import CeleryWorker
from tools.harness.process import ChildProcess
from tools.harness.redis_server import RedisServer

PAGE = DOCS / "neighbours-tasks.rst"


class Beat(ChildProcess):
    """``celery beat`` for an app."""

    def __init__(self, app: str, shop: Shop, args: Sequence[str] = ()) -> None:
        super().__init__()
        self._app, self._shop, self._args = app, shop, args

    def command(self) -> Sequence[str]:
        return [sys.executable, "-m", "celery", "-A", self._app, "beat", "-l", "INFO", *self._args]

    def environment(self) -> dict[str, str]:
        return self._shop.environment

    def working_directory(self) -> Path:
        return self._shop.folder

    def is_ready(self) -> bool:
        return "beat: Starting..." in self.log()

    def sent(self) -> int:
        return self.log().count("Sending due task")


class Shop:
    """Everything that was started ends with the ``with`` block."""

    def __init__(self, directory: Path, server: RedisServer, page: Path = PAGE) -> None:
        session = Session(directory, server)
        session.run(block for block in blocks(page) if block.language == "python" and block.caption)
        self.folder, self.environment, self.address = session.folder, session.environment, session.address
        self._exit = ExitStack()

    def worker(self, app: str, *, pool: str = "solo", concurrency: int = 1, **options: str) -> CeleryWorker:
        """A worker that is ready, and reads its environment with these *options* in it."""
        return self._exit.enter_context(
            CeleryWorker(
                app,
                pool=pool,
                concurrency=concurrency,
                args=["--without-gossip", "--without-mingle"],
                env={**self.environment, **options},
                cwd=self.folder,
            )
        )

    def beat(self, app: str, *args: str) -> Beat:
        return self._exit.enter_context(Beat(app, self, args))

    def run(self, *command: str) -> str:
        """What a command prints that ends well."""
        done = subprocess.run(
            command, cwd=self.folder, env=self.environment, capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def python(self, code: str) -> list[str]:
        """The words that *code* prints."""
        return self.run(sys.executable, "-c", code).split()

    def close(self) -> None:
        self._exit.close()


def printed(worker: ChildProcess, pattern: str) -> list[str]:
    """What tasks have printed, in their order."""
    return re.findall(rf"WARNING/\S+\] ({pattern})$", worker.log(), re.MULTILINE)
