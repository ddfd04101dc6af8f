"""Tasks of which one is enough for each key."""

from __future__ import annotations

from typing import Any

from kombu_redisdelay import Unique
from tests.end_to_end.app import _note, _work, app

__all__ = ["app"]


@app.task(name="sync", bind=True, base=Unique, unique="{account}", unique_while="latest", acks_late=True)
def sync(self: Any, account: str, label: str, gate: str | None = None) -> str:
    return _work(self.request, label, 0, gate)


@app.task(name="grow", bind=True, base=Unique, unique="{name}", unique_while="latest", acks_late=True)
def grow(self: Any, name: str, label: str, times: int, gate: str | None = None) -> str:
    """Replace itself by another call of itself, so many times."""
    _work(self.request, f"{label} {times}", 0, gate)
    if times:
        raise self.replace(grow.s(name, label, times - 1))
    return label


@app.task(name="rebuild", bind=True, base=Unique, unique="{name}", unique_while="done", acks_late=True)
def rebuild(self: Any, name: str, label: str, fails: bool = False, gate: str | None = None) -> str:
    """The first time, it may retry itself."""
    _note("started", label, self.request)
    if fails and not self.request.retries:
        raise self.retry(countdown=2)
    return _work(self.request, f"{label} done", 0, gate)
