"""What a worker of the run is told, through environment variables."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_VARIABLE = "REDISDELAY_CHAOS"


@dataclass(frozen=True)
class Environment:
    """What differs between runs, and between the workers of a run.

    Attributes:
        imports: a module to import for the sake of the transport that it registers, or "".
        worker: the worker's name, which no other one of the run has or had.
    """

    broker: str
    ledger: Path
    worker: str
    imports: str = ""
    settings: dict[str, Any] = field(default_factory=dict)

    def variables(self) -> dict[str, str]:
        said = [self.broker, str(self.ledger), self.worker, self.imports, self.settings]
        return {_VARIABLE: json.dumps(said)}

    @classmethod
    def of_this_process(cls) -> Environment:
        broker, ledger, worker, imports, settings = json.loads(os.environ[_VARIABLE])
        return cls(broker, Path(ledger), worker, imports, settings)
