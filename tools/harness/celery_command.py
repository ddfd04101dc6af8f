"""``celery`` commands as a shell runs them, forked from a process that has imported Celery."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryFile

from tools.harness.forked_process import ForkedProcess

ROOT = Path(__file__).parents[2]

#: How the command begins if it is started.
CELERY = (sys.executable, "-m", "celery")


def run_celery(
    words: Sequence[str], environment: Mapping[str, str], folder: Path = ROOT, timeout: float = 60
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, with nothing as its standard input."""
    with TemporaryFile() as printed, TemporaryFile() as errors:
        process = ForkedProcess(words, printed, environment, folder, errors=errors)
        process.wait(timeout)
        for file in (printed, errors):
            file.seek(0)
        return subprocess.CompletedProcess(
            ["celery", *words], process.wait(), printed.read().decode(), errors.read().decode()
        )
