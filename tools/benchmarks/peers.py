"""What is compared: the transport, and others that do the same."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec
from typing import Any


@dataclass(frozen=True)
class Peer:
    """A transport.

    Attributes:
        name: in the table.
        scheme: of its URLs.
        server: what it talks to: ``redis``, ``rabbitmq``, or "" for nothing.
        pace: how many times as many messages as kombu's redis it is given, so that a measurement of either
            takes about as long.
        imports: module that registers the scheme; "" where installing is enough.
        options: transport options, so that every publish is confirmed by the server.
    """

    name: str
    scheme: str
    server: str = "redis"
    pace: int = 1
    imports: str = ""
    options: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def missing(self) -> str | None:
        """Why it cannot be used by this interpreter; ``None`` if it can."""
        if self.imports and find_spec(self.imports) is None:
            return f"not installed (pip install {self.name}, on Python 3.13 or newer)"
        return None

    def register(self) -> None:
        """Have kombu know the scheme."""
        if self.imports:
            import_module(self.imports)


OURS = Peer("redisdelay", "redisdelay", pace=5)
REDIS = Peer("kombu redis", "redis")
REDIS_PLUS = Peer("celery-redis-plus", "valkey", imports="celery_redis_plus")
RABBITMQ = Peer("RabbitMQ", "pyamqp", server="rabbitmq", pace=3, options={"confirm_publish": True})
MEMORY = Peer("memory://", "memory", server="", pace=10)

PEERS = {peer.name: peer for peer in (OURS, REDIS, REDIS_PLUS, RABBITMQ, MEMORY)}
