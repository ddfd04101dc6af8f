"""Draws `docs/_static/terminal.svg`, the picture of the first page: what the tutorial prints in a real run.

python -m tests.docs.picture
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator
from html import escape
from pathlib import Path

from tests.docs.page import DOCS, blocks
from tests.docs.session import Session

PICTURE = DOCS / "_static" / "terminal.svg"

#: What is shown of the tutorial: how the command begins, or a line that the worker prints.
_COMMANDS = (
    "celery -A shop call shop.remind --args '[\"Ada\"]'",
    "celery -A shop delayed list",
    "celery -A shop call shop.charge",
    "sleep 1; kill",
    "celery -A shop delayed stats",
)
_WORKER = re.compile(r"(\d\d:\d\d:\d\d),\d+: \w+/\w+(?:-\d+)?\] (.*(?:interested|Recovered|Order 42).*)")

_COLUMNS = 84
_WIDTH, _LINE, _LETTER = 780, 21, 8.6
#: So many seconds pass in the picture while 30 pass in the tutorial.
_SPEED = 20 / 30


def _lines() -> Iterator[tuple[float, str, str]]:
    """Second, class and text of each line."""
    with tempfile.TemporaryDirectory() as directory:
        session = Session(Path(directory))
        try:
            session.run(blocks(DOCS / "tutorial.rst"))
        finally:
            session.close()
    record = session.record
    start = next(second for second, what, _ in record if what.startswith("$ celery -A shop call"))
    lists = 0
    for second, what, printed in record:
        at = max(0, (second - start) * _SPEED)
        if what.startswith("Terminal"):
            for time, text in _WORKER.findall(printed):
                yield at, "worker", f"worker {time}  {text}"
        elif what[2:].startswith(_COMMANDS):
            lists += "delayed list" in what
            if "delayed list" in what and lists > 1:
                continue
            yield at, "command", what
            for line in printed.splitlines():
                yield at, "", line


def _drawn(lines: list[tuple[float, str, str]]) -> str:
    height = _LINE * (len(lines) + 1) + 14
    drawn = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" role="img">',
        "<title>A terminal: a task waits in Redis and runs when it is due; "
        "a worker is killed, and its task comes back</title>",
        "<style>",
        "text { font: 14px ui-monospace, Menlo, Consolas, 'DejaVu Sans Mono', monospace; fill: #d6dae0;"
        " white-space: pre }",
        ".command { fill: #8bd5ff } .worker { fill: #a8d99c }",
        "@media (prefers-reduced-motion: no-preference) { text { animation: come .2s backwards } }",
        "@keyframes come { from { opacity: .3 } }",
        "</style>",
        f'<rect width="{_WIDTH}" height="{height}" rx="8" fill="#1b1f24"/>',
    ]
    for number, (second, kind, text) in enumerate(lines, 1):
        shown = text if len(text) <= _COLUMNS else text[: _COLUMNS - 1] + "…"
        drawn.append(
            f'<text x="16" y="{number * _LINE + 7}" class="{kind}" style="animation-delay:{second:.1f}s" '
            f'textLength="{len(shown) * _LETTER:.0f}" xml:space="preserve">{escape(shown)}</text>'
        )
    return "\n".join([*drawn, "</svg>", ""])


if __name__ == "__main__":
    PICTURE.write_text(_drawn(list(_lines())))
    print(f"wrote {PICTURE}")
