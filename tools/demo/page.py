"""The page on the demo's queues, as `celery -A demo.tasks delayed web` serves it."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path

from tools.harness.process import ChildProcess

_ADDRESS = re.compile(r"^The queues are on (\S+)$", re.MULTILINE)


class Page(ChildProcess):
    def command(self) -> Sequence[str]:
        return [sys.executable, "-m", "celery", "-A", "tools.demo.tasks", "delayed", "web", "--port", "0"]

    def working_directory(self) -> Path:
        return Path(__file__).parent.parent

    def is_ready(self) -> bool:
        return _ADDRESS.search(self.log()) is not None

    @property
    def url(self) -> str:
        [url] = _ADDRESS.findall(self.log())
        return str(url)
