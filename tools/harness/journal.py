"""A file with a line for each event. Any number of processes add lines while others read them."""

from __future__ import annotations

import os
from pathlib import Path


def add_line(path: Path, line: str) -> None:
    # One write in append mode: the lines of different processes do not mix, and a written line stays,
    # whatever happens to the process next.
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(descriptor, f"{line}\n".encode())
    finally:
        os.close(descriptor)


def whole_lines(path: Path) -> list[str]:
    """The lines so far, in the order in which they were written. Empty if there is no file yet."""
    if not path.exists():
        return []
    # What follows the last line break is a line that is being written: a write that crosses the end of a
    # page is seen in two steps.
    *lines, _ = path.read_text().split("\n")
    return lines
