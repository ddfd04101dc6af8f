"""What a producer is told, and says: in files of a directory."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.combinations.by_hand import Address
from tests.combinations.plan import Plan, Send

#: Files: what to publish; what was published; when to begin; and that it is enough.
ORDERS, SUBMISSIONS, GO, STOP = "orders", "submissions", "go", "stop"
#: What the producer prints when it is connected.
READY = "the producer is ready"


@dataclass(frozen=True)
class Orders:
    """What to publish, and how.

    Attributes:
        producer: the value of this dimension.
    """

    plan: Plan
    producer: str
    address: Address

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self)))

    @classmethod
    def read(cls, path: Path) -> Orders:
        said = json.loads(path.read_text())
        plan = {**said["plan"], "sends": [Send(**send) for send in said["plan"]["sends"]]}
        return cls(Plan(**plan), said["producer"], Address(**said["address"]))
