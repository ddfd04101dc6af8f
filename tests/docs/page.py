"""The blocks of code of a page."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"
PAGES = sorted(DOCS.glob("*.rst"))

_DIRECTIVE = re.compile(r"^(?P<indent> *)\.\. code-block:: (?P<language>\w+)$")
_OPTION = re.compile(r"^:(\w+): (.+)$")


@dataclass(frozen=True)
class Block:
    """A ``code-block``.

    Attributes:
        line: where it begins on its page, from 1.
    """

    page: Path
    line: int
    language: str
    text: str
    options: Mapping[str, str] = field(default_factory=dict)

    @property
    def caption(self) -> str:
        return self.options.get("caption", "")

    def __str__(self) -> str:
        return f"{self.page.name}:{self.line}"


def blocks(page: Path) -> Iterator[Block]:
    """The blocks of *page*, in their order."""
    lines = page.read_text().split("\n")
    for number, line in enumerate(lines):
        found = _DIRECTIVE.match(line)
        if found is None:
            continue
        indent = len(found["indent"]) + 1
        inside = []
        for each in lines[number + 1 :]:
            if each.strip() and not each.startswith(" " * indent):
                break
            inside.append(each)
        body = textwrap.dedent("\n".join(inside)).split("\n")
        options = {}
        while body and (option := _OPTION.match(body[0])):
            options[option[1]] = option[2]
            del body[0]
        yield Block(page, number + 1, found["language"], "\n".join(body).strip("\n"), options)
