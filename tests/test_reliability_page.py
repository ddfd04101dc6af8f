"""The page that says which test shows what: each of them exists."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "reliability.rst").read_text()
_NAMED = re.compile(r"``((?:\w+/)+test_\w+\.py)``|``((?:test_|Test)\w+)``")


def named() -> list[tuple[str, str | None]]:
    """File and test, as the page names them: a test stands behind the file that it is in."""
    found: list[tuple[str, str | None]] = []
    for file, test in _NAMED.findall(PAGE):
        found.append((file, None) if file else (found[-1][0], test))
    return found


def test_every_test_that_is_named_exists() -> None:
    missing = []
    for file, test in named():
        path = ROOT / "tests" / file
        if not path.exists() or (test and not re.search(rf"\b(def|class) {test}\b", path.read_text())):
            missing.append((file, test))
    assert not missing
    assert len(named()) > 50


def test_every_row_names_one() -> None:
    table = PAGE.partition("     - shown by\n")[2].partition("\nThe paths are below")[0]
    rows = re.split(r"^   \* - ", table, flags=re.MULTILINE)[1:]
    assert len(rows) > 20
    assert [row for row in rows if not _NAMED.search(row)] == []
