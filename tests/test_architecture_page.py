"""The page that says what each file is for: it knows every file."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "kombu_redisdelay"
PAGE = (ROOT / "docs" / "architecture.rst").read_text()

_NAME = re.compile(r"``(\w+\.py)``")
WINGS = ["cli", "web", "operations", "transport", "broker", "broker/server"]


def section(wing: str) -> str:
    """What the page says of the files of a *wing*: up to the next one."""
    _, _, rest = PAGE.partition(f"\n``{wing}/``")
    return re.split(r"\n``[\w/]+/`` ?|\n---", rest, maxsplit=1)[0]


def is_command(path: Path) -> bool:
    """Of these the page says that each is a command."""
    return path.parent.name == "cli" and (
        "def command" in path.read_text() or "\ncommand" in path.read_text()
    )


@pytest.mark.parametrize("wing", WINGS)
def test_every_file_of_a_wing_is_named_there(wing: str) -> None:
    files = {path.name for path in (PACKAGE / wing).glob("*.py") if not is_command(path)} - {"__init__.py"}
    named = set(_NAME.findall(section(wing)))
    # Files of the doctor, and one that a sentence points to.
    elsewhere = {path.name for path in PACKAGE.rglob("*.py")} - files
    assert files <= named <= files | elsewhere


def test_every_file_that_is_named_exists() -> None:
    there = {path.name for path in PACKAGE.rglob("*.py")}
    assert set(_NAME.findall(PAGE)) <= there
