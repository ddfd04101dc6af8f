"""The files of the package say what they are for, and the page names no other."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.once

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "kombu_redisdelay"
PAGE = (ROOT / "docs" / "architecture.rst").read_text()
FILES = sorted(PACKAGE.rglob("*.py"))

_NAME = re.compile(r"``([\w/]+\.(?:py|lua))``")
_FUNCTION = re.compile(r"``([\w/]+\.py):([\w.]+)``")


def test_each_file_says_what_it_is_for() -> None:
    silent = [path for path in FILES if not ast.get_docstring(ast.parse(path.read_text()))]
    assert silent == []


def test_each_wing_is_on_the_page() -> None:
    wings = {path.parent for path in FILES if path.parent.parent == PACKAGE}
    assert {wing.name for wing in wings if f"{wing.name}/" not in PAGE} == set()


@pytest.mark.parametrize("name", sorted(set(_NAME.findall(PAGE))))
def test_a_file_that_is_named_exists(name: str) -> None:
    assert [*PACKAGE.rglob(name), *ROOT.glob(name)]


@pytest.mark.parametrize(("file", "name"), sorted(set(_FUNCTION.findall(PAGE))))
def test_a_function_that_is_named_exists(file: str, name: str) -> None:
    body: list[ast.stmt] = ast.parse((PACKAGE / file).read_text()).body
    for part in name.split("."):
        [found] = [
            each for each in body if isinstance(each, ast.ClassDef | ast.FunctionDef) and each.name == part
        ]
        body = found.body
    assert isinstance(found, ast.FunctionDef)
