"""A file with a line for each event, which any number of processes add to and anybody reads meanwhile."""

from __future__ import annotations

import os
from pathlib import Path


def add_line(path: Path, line: str) -> None:
    # One write in append mode: the lines of different processes do not mix, and what was written is there
    # whatever happens to the process next.
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(descriptor, f"{line}\n".encode())
    finally:
        os.close(descriptor)


def whole_lines(path: Path) -> list[str]:
    """The lines so far, in the order in which they were written; none if there is no file yet."""
    if not path.exists():
        return []
    # What follows the last line break is a line that is being written: a write that crosses the end of a
    # page is seen in two steps.
    *lines, _ = path.read_text().split("\n")
    return lines
