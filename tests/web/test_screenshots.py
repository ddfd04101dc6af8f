"""The pictures of the documentation can be taken again."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

# The browser's driver need not be installed.
pytest.importorskip("selenium")

from tools.harness.browser import missing

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


def _names(directory: Path) -> list[str]:
    return sorted(file.name for file in directory.glob("web-*.png"))


@pytest.mark.thorough
@pytest.mark.skipif(bool(missing()), reason=f"no browser: {missing()}")
def test_the_script_takes_those_that_are_there(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "tools.screenshots", str(tmp_path)], cwd=ROOT, check=True)
    assert _names(tmp_path) == _names(DOCS / "_static") != []


def test_each_is_shown() -> None:
    page = (DOCS / "web.rst").read_text()
    assert [name for name in _names(DOCS / "_static") if f"_static/{name}" not in page] == []
