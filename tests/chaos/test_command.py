"""`python -m tests.chaos`, as the documentation gives it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_a_run_without_limits() -> None:
    command = [sys.executable, "-m", "tests.chaos", "--kills", "1", "--seed", "3"]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=150)
    assert (ended.returncode, ended.stderr) == (0, ""), ended.stdout
    assert ended.stdout.endswith("As it must be.\n")
