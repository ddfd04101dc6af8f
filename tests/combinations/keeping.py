"""Keeps what a row has shown, for whoever wants to know why."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from tests.combinations.checks import Observed
from tests.combinations.history import History


def keep(directory: Path, observed: Observed) -> None:
    """Write the ledgers, what was published, what was done, and the logs into a directory."""
    _keep(directory / "ours", observed.ours)
    if observed.stock is not None:
        _keep(directory / "redis", observed.stock)


def _keep(directory: Path, history: History) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    for name in ("submissions", "entries", "damage"):
        lines = [json.dumps(asdict(each)) for each in getattr(history, name)]
        (directory / name).write_text("\n".join([*lines, ""]))
    (directory / "plan").write_text(json.dumps(asdict(history.plan), indent=1) + "\n")
    for worker, log in history.logs.items():
        (directory / f"{worker}.log").write_text(log)
