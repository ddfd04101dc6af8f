"""How a test tells the app of its workers what to do: through environment variables."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_BROKER = "END_TO_END_BROKER"
_LEDGER = "END_TO_END_LEDGER"
_SETTINGS = "END_TO_END_SETTINGS"


@dataclass(frozen=True)
class Environment:
    """What differs between the workers of the tests."""

    broker: str
    ledger: Path
    settings: dict[str, Any] = field(default_factory=dict)

    def variables(self) -> dict[str, str]:
        return {
            _BROKER: self.broker,
            _LEDGER: str(self.ledger),
            _SETTINGS: json.dumps(self.settings),
        }

    @classmethod
    def of_this_process(cls) -> Environment:
        variables = os.environ
        settings = json.loads(variables[_SETTINGS])
        return cls(variables[_BROKER], Path(variables[_LEDGER]), settings)
