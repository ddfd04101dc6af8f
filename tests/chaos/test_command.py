"""`python -m tests.chaos`, as the documentation gives it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.thorough
def test_a_run_without_limits() -> None:
    command = [sys.executable, "-m", "tests.chaos", "--kills", "1", "--seed", "3"]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=150)
    assert (ended.returncode, ended.stderr) == (0, ""), ended.stdout
    assert ended.stdout.endswith("As it must be.\n")


def test_what_it_can_be_told() -> None:
    """All that it imports is there."""
    command = [sys.executable, "-m", "tests.chaos", "--help"]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stderr) == (0, "")
    for option in ("--kills", "--seed", "--topology"):
        assert f" {option} " in ended.stdout
