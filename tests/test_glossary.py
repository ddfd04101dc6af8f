"""The words of docs/glossary.rst: a word that has one there is not said otherwise in names.

Names are what the package defines in Python and Lua, its files, the options and JSON keys of the command
line, the columns of lists, and the headings of the docs. Prose is free.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from kombu_redisdelay.operations.columns import COLUMNS, QUEUE_COLUMNS

# To read all sources takes seconds: one process of xdist does it.
pytestmark = [pytest.mark.once, pytest.mark.xdist_group("sources")]

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "kombu_redisdelay"

#: Words, or words in a row, that names do not have -> what the glossary says instead.
OLD = {
    "add step": "portion",
    "alone": "isolated",
    "buried": "dead letter",
    "bury": "dead letter",
    "chosen": "selection",
    "control": "limits",
    "controls": "limits",
    "delayed": "scheduled",
    "died": "dead letter",
    "door": "unsorted list",
    "glance": "peek",
    "gone": "lost",
    "graveyard": "dead letter",
    "held": "unacked",
    "hot": "polled",
    "in steps": "portion",
    "in vain": "missed ack",
    "janitor": "maintenance",
    "judge": "retry verdict",
    "lane": "order",
    "lanes": "order",
    "let go": "unblocked",
    "lets go": "unblocked",
    "per step": "portion",
    "picked": "selection",
    "place": "position",
    "places": "permit",
    "purge": "cancel",
    "sort in": "sorted by key",
    "sorted in": "sorted by key",
    "stray": "stranded",
    "strays": "stranded",
    "superseded": "unique key",
    "suspect": "isolated",
    "sweep": "maintenance",
    "tat": "rate clock",
    "tats": "rate clock",
}

#: Names in which such a word means another thing. One that is not needed any more has to go.
ALLOWED = {
    "alone": {"With kombu alone"},
    # The name of a key in Redis, and Celery's remote control.
    "control": {"control", "_add_remote_control", "remote_control"},
    "delayed": {"delayed"},
    # Celery's purge, and the hint for those who look for it.
    "purge": {"purge", "_purge"},
    # A field of JSON that users read.
    "sorted in": {"sorted_in"},
    # Of kombu.
    "sweep": {"sweep_bindings"},
}


@cache
def words(name: str) -> list[str]:
    """``READ_HELD``, ``ReadHeld`` and ``--read-held`` are ``["read", "held"]``."""
    return [word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)]


def of_python(source: str) -> Iterator[str]:
    """What is defined: names, arguments, functions, classes, attributes, and keys of dicts."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                yield name
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.arg(arg=name):
                yield name
            case ast.Dict(keys=keys):
                yield from (
                    key.value for key in keys if isinstance(key, ast.Constant) and isinstance(key.value, str)
                )
            case ast.Constant(value=str(text)) if re.fullmatch("--[a-z-]+", text):
                yield text


def of_lua(source: str) -> Iterator[str]:
    """What is local: variables, functions and their parameters."""
    for name, parameters in re.findall(r"\bfunction (\w*)\s*\(([^)]*)\)", source):
        yield from re.findall(r"\w+", f"{name} {parameters}")
    for names in re.findall(r"\b(?:local|for) (?!function)([\w, ]+?)(?: in\b|\s*=|\n)", source):
        yield from re.findall(r"\w+", names)


def headings(page: str) -> list[str]:
    return re.findall(r"^(.+)\n[=~^-]{3,}$", page, re.MULTILINE)


@cache
def names() -> tuple[tuple[str, str], ...]:
    """Where each name is, and the name."""
    return tuple(_names())


def _names() -> Iterator[tuple[str, str]]:
    for path in sorted(PACKAGE.rglob("*")):
        where = str(path.relative_to(ROOT))
        if path.suffix in {".py", ".lua", ".html", ".css", ".js"}:
            yield where, path.stem
        of = {".py": of_python, ".lua": of_lua}.get(path.suffix)
        if of is not None:
            yield from ((where, name) for name in of(path.read_text()))
    for path in sorted((ROOT / "docs").glob("*.rst")):
        where = str(path.relative_to(ROOT))
        yield where, path.stem
        yield from ((where, heading) for heading in headings(path.read_text()))
    columns = {
        **{name: column.label for name, column in COLUMNS.items()},
        **{name: column.label for name, column in QUEUE_COLUMNS.items()},
    }
    yield from (("columns of lists", name) for column in columns.items() for name in column)


def has(name: str, old: str) -> bool:
    return f" {old} " in f" {' '.join(words(name))} "


@pytest.mark.parametrize("old", OLD)
def test_no_name_has_an_old_word(old: str) -> None:
    allowed = ALLOWED.get(old, set())
    found = sorted({f"{where}: {name}" for where, name in names() if name not in allowed and has(name, old)})
    assert not found, f"{old!r} is {OLD[old]!r} in docs/glossary.rst"


@pytest.mark.parametrize("new", sorted(set(OLD.values())))
def test_the_glossary_has_the_new_word(new: str) -> None:
    assert re.search(rf"\b{new}\b", (ROOT / "docs" / "glossary.rst").read_text())


def test_each_exception_is_needed() -> None:
    used = {name for _, name in names()}
    assert [name for allowed in ALLOWED.values() for name in sorted(allowed - used)] == []


@pytest.mark.parametrize(
    ("name", "expected"),
    [("READ_HELD", ["read", "held"]), ("HeldCall", ["held", "call"]), ("held_for_ms", ["held", "for", "ms"])],
)
def test_the_words_of_a_name(name: str, expected: list[str]) -> None:
    assert words(name) == expected


def test_what_scripts_define() -> None:
    lua = "local a, b = 1\nlocal function f(c, d)\nfor i, e in ipairs(x) do\nlocal\n  -- A comment.\n  g = 1"
    assert {*of_lua(lua)} >= set("abcdefi")
