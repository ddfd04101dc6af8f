"""How large the package is, and how far its features reach: files, scripts, lines of code, and how many
files name a feature that are not its own. Comments and docstrings do not count.

``python -m tools.weight`` prints the figures that ``tests/test_weight.py`` holds.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator, Mapping
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "kombu_redisdelay"

#: Feature -> how the names of its own files are. All that has to do with it is named after it elsewhere.
FEATURES: Mapping[str, re.Pattern[str]] = {
    "unique": re.compile("unique"),
    "fair": re.compile("fair|limits|_keys|read_orders|find_greatest|relist"),
}

#: The wings of the core: no feature should be in every room of them.
CORE = ("broker", "transport")

_NO_CODE = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT}
_WITH_DOCSTRING = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def python_lines(path: Path) -> dict[int, str]:
    """The lines of code of a file: number -> what is in it."""
    source = path.read_text()
    docstrings: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, _WITH_DOCSTRING) and ast.get_docstring(node) is not None:
            text = node.body[0]
            docstrings.update(range(text.lineno, (text.end_lineno or text.lineno) + 1))
    lines: dict[int, str] = {}
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in _NO_CODE and token.string:
            for number in range(token.start[0], token.end[0] + 1):
                if number not in docstrings:
                    lines[number] = f"{lines.get(number, '')} {token.string}"
    return lines


def lua_lines(path: Path) -> dict[int, str]:
    """The same of a script."""
    lines = enumerate(path.read_text().splitlines(), 1)
    return {number: line for number, line in lines if line.strip() and not line.strip().startswith("--")}


def _python(*wings: str) -> Iterator[Path]:
    for wing in wings:
        yield from sorted((PACKAGE / wing).rglob("*.py"))


def naming(feature: str) -> dict[str, int]:
    """The files of the core, and the scripts, that name *feature* and are not its own: how many lines do."""
    found = {}
    files = [(path, python_lines) for path in _python(*CORE)]
    files += [(path, lua_lines) for path in sorted((PACKAGE / "lua").glob("*.lua"))]
    for path, lines_of in files:
        if not FEATURES[feature].search(path.name):
            count = sum(feature in line.lower() for line in lines_of(path).values())
            if count:
                found[str(path.relative_to(PACKAGE))] = count
    return found


def figures() -> dict[str, int]:
    """What is held: name -> how many."""
    counts = {
        "Python files": len([*_python("")]),
        "scripts": len([*(PACKAGE / "lua").glob("*.lua")]),
        "lines of Lua": sum(len(lua_lines(path)) for path in (PACKAGE / "lua").rglob("*.lua")),
    }
    wings = sorted(path.name for path in PACKAGE.iterdir() if (path / "__init__.py").exists())
    for wing in wings:
        counts[f"lines of {wing}"] = sum(len(python_lines(path)) for path in _python(wing))
    for feature in FEATURES:
        files = naming(feature)
        for wing in CORE:
            counts[f"files of {wing} that name {feature}"] = sum(name.startswith(wing) for name in files)
        counts[f"scripts that name {feature}"] = sum(name.startswith("lua") for name in files)
    return counts


def main() -> None:
    for name, count in figures().items():
        print(f'    "{name}": {count:_},')
    for feature in FEATURES:
        print(f"\n{feature}:")
        for file, count in naming(feature).items():
            print(f"{count:6} {file}")


if __name__ == "__main__":
    main()
