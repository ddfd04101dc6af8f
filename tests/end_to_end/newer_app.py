"""The app of tomorrow: it has a task more."""

from __future__ import annotations

from typing import Any

from tests.end_to_end.app import _work, app


@app.task(name="newer", bind=True)
def newer(self: Any, label: str, seconds: float = 0, gate: str | None = None) -> str:
    return _work(self.request, label, seconds, gate)
