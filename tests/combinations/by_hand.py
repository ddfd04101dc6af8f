"""What a program does that knows Redis, and knows kombu's messages from reading about them."""

from __future__ import annotations

import base64
import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import redis
import redis.cluster
import redis.sentinel

#: Content types: what every worker decodes, and what none does that was not told to.
JSON = "application/json"
PICKLE = "application/x-python-serialize"

_STEP = "\x06\x16"


@dataclass(frozen=True)
class Address:
    """Where the servers are.

    Attributes:
        kind: "single", "sentinel" or "cluster".
        ports: of the server, of all sentinels or of all nodes, on this machine.
        master: the name by which sentinels know the primary.
    """

    kind: str
    ports: Sequence[int]
    password: str | None = None
    master: str = ""

    def client(self) -> Any:
        if self.kind == "cluster":
            nodes = [redis.cluster.ClusterNode("127.0.0.1", port) for port in self.ports]
            return redis.cluster.RedisCluster(startup_nodes=nodes)
        if self.kind == "sentinel":
            sentinels = redis.sentinel.Sentinel([("127.0.0.1", port) for port in self.ports])
            return sentinels.master_for(self.master, password=self.password)
        return redis.Redis("127.0.0.1", self.ports[0], password=self.password)

    def ready_list(self, queue: str, priority: int = 0) -> str:
        """The list of a queue's ready messages of a priority step."""
        name = f"{{{queue}}}" if self.kind == "cluster" else queue
        return f"{name}{_STEP}{priority}" if priority else name


def message(
    task: str,
    id: str,
    args: Sequence[Any],
    queue: str,
    priority: int = 0,
    content_type: str = JSON,
    headers: Mapping[str, Any] | None = None,
) -> str:
    """A task, as it stands in the list of a queue."""
    body = json.dumps([args, {}, {"callbacks": None, "errbacks": None, "chain": None, "chord": None}])
    return json.dumps(
        {
            "body": base64.b64encode(body.encode()).decode(),
            "content-encoding": "utf-8" if content_type == JSON else "binary",
            "content-type": content_type,
            "headers": {
                "lang": "py",
                "task": task,
                "id": id,
                "root_id": id,
                "parent_id": None,
                "group": None,
                "retries": 0,
                "eta": None,
                "expires": None,
                "timelimit": [None, None],
                **(headers or {}),
            },
            "properties": {
                "correlation_id": id,
                "delivery_mode": 2,
                "delivery_info": {"exchange": "", "routing_key": queue},
                "priority": priority,
                "body_encoding": "base64",
                "delivery_tag": str(uuid.uuid4()),
            },
        }
    )
