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
    lines, _ = lines_after(path, 0)
    return lines


def lines_after(path: Path, position: int) -> tuple[list[str], int]:
    """The lines that were added since the file ended at *position*, and where it ends now, in bytes."""
    if not path.exists():
        return [], position
    with path.open("rb") as file:
        file.seek(position)
        # What follows the last line break is a line that is being written: a write that crosses the end of a
        # page is seen in two steps.
        whole, line_break, _ = file.read().rpartition(b"\n")
    if not line_break:
        return [], position
    return whole.decode().split("\n"), position + len(whole) + 1
