"""The page that says what each file is for: it knows every file."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "kombu_redisdelay"
PAGE = (ROOT / "docs" / "architecture.rst").read_text()

#: Folders of which the page says that each file is one of many alike.
ALIKE = {PACKAGE / "operations" / "doctor"}


def test_every_file_is_named() -> None:
    named = set(re.findall(r"``(\w+\.py)``", PAGE))
    # Of these the page says that each is a command.
    commands = {
        path
        for path in (PACKAGE / "cli").glob("*.py")
        if "\ncommand" in path.read_text() or "def command" in path.read_text()
    }
    files = {
        path for path in PACKAGE.rglob("*.py") if path.name != "__init__.py" and path.parent not in ALIKE
    }
    missing = sorted(str(path.relative_to(PACKAGE)) for path in files - commands if path.name not in named)
    assert not missing


def test_every_file_that_is_named_exists() -> None:
    there = {path.name for path in PACKAGE.rglob("*.py")}
    assert set(re.findall(r"``(\w+\.py)``", PAGE)) <= there
