"""The page of log lines has each line that the code can write, and no other."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tests.docs.page import DOCS

PACKAGE = Path(__file__).parents[2] / "kombu_redisdelay"
#: What is for those who look for a fault of the package is not on the page.
_LEVELS = {"info", "warning", "error", "exception", "critical"}


def _written(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.Call(
                func=ast.Attribute(value=ast.Name(id="logger"), attr=level),
                args=[ast.Constant(value=str(text)), *_],
            ) if level in _LEVELS:
                yield re.sub(r"%(?:\.\d)?[sdrf]", "…", text)


def test_each_line_is_explained() -> None:
    page = (DOCS / "logs.rst").read_text()
    terms = [line for line in page.split("\n") if line.startswith("``")]
    shown = {text for line in terms for text in re.findall(r"``(.+?)``(?:, |$)", line)}
    written = {text for path in PACKAGE.rglob("*.py") for text in _written(path)}
    assert len(written) > 25
    assert shown == written


def test_all_loggers_are_named_in_one_way() -> None:
    """So that the test above finds what they write."""
    pattern = re.compile(
        r"\b(?!logger\b)\w+\.(?:warning|error|exception|critical)\(|logging\.(?:info|warning|error)\("
    )
    found = [path.name for path in PACKAGE.rglob("*.py") if pattern.search(path.read_text())]
    assert found == []
