"""Keeps who did what as JSON, one line for each action."""

from __future__ import annotations

import json
import logging
from datetime import datetime, timezone
from logging.handlers import WatchedFileHandler
from pathlib import Path


def audit_file(path: Path) -> logging.Handler:
    """A handler that appends to a file what the page logs of actions. The file may be renamed while it is
    used, as logrotate does.

    Raises:
        OSError: it cannot be written to.
    """
    handler = WatchedFileHandler(path, encoding="utf-8")
    handler.addFilter(lambda record: hasattr(record, "audit"))
    handler.setFormatter(_JsonLine())
    return handler


class _JsonLine(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        time = datetime.fromtimestamp(record.created, timezone.utc).isoformat(timespec="milliseconds")
        return json.dumps({"time": time, **record.__dict__["audit"]})
