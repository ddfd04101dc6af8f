"""The transports that can be put to the test, each with settings that are fair to it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

#: The longest countdown, seconds.
LONGEST_COUNTDOWN = 10.0


@dataclass(frozen=True)
class Transport:
    """How to use a transport, and what to expect of it.

    Attributes:
        imports: module that registers the URL scheme; "" where installing is enough.
        visibility_timeout: its option of that name, seconds.
        patience: how long nothing may happen, seconds, before we give up waiting for what is missing:
            more than the longest time after which the transport gives back what a dead worker held.
        expected: regular expression for the keys that may be left in Redis at the end.
        options: further transport options.
    """

    name: str
    scheme: str
    visibility_timeout: float
    patience: float
    expected: str
    imports: str = ""
    options: dict[str, Any] = field(default_factory=dict)

    def settings(self, queues: Sequence[str], options: Mapping[str, Any]) -> dict[str, Any]:
        """Celery's, for workers and producers of *queues*, with further transport options."""
        return {
            "broker_transport_options": {
                "visibility_timeout": self.visibility_timeout,
                **self.options,
                **options,
            },
            "broker_connection_retry_on_startup": True,
            "broker_connection_max_retries": None,
            "task_default_queue": queues[0],
            "task_queues": {queue: {"exchange": queue, "routing_key": queue} for queue in queues},
            "task_ignore_result": True,
            "worker_prefetch_multiplier": 4,
        }

    def is_expected(self, key: str) -> bool:
        return re.fullmatch(self.expected, key) is not None


_BINDINGS = r"(\{_kombu\.binding\}|_kombu\.binding).*"

TRANSPORTS = {
    transport.name: transport
    for transport in [
        Transport(
            name="redisdelay",
            scheme="redisdelay",
            visibility_timeout=3,
            patience=20,
            # A queue keeps its history as long as it is known; for an hour it is noted that one was searched.
            expected=rf"{_BINDINGS}|redisdelay:known-queues|redisdelay:\{{.*\}}:(history|claim:unlisted)",
            # In a long run, more fail than are kept by default.
            options={"keep_failed": {"count": 10**6, "bytes": 10**9}},
        ),
        Transport(
            name="redis",
            scheme="redis",
            # It holds countdowns in the worker, and gives back whatever was held for longer than this:
            # with less than the longest countdown and the longest task it would repeat tasks by itself.
            visibility_timeout=LONGEST_COUNTDOWN + 5,
            patience=45,
            expected=_BINDINGS,
            # By default it looks every 100 s, and gives the right to do so back after 300 s when the
            # worker that had it was killed. This is the quickest that it can be told to be.
            options={
                "unacked_restore_interval": 1,
                "unacked_restore_throttle": 1,
                "unacked_mutex_expire": 5,
            },
        ),
        Transport(
            name="celery-redis-plus",
            scheme="valkey",
            visibility_timeout=3,
            # It looks for what dead workers held every 60 s, which is not an option.
            patience=140,
            expected=_BINDINGS,
            imports="celery_redis_plus",
        ),
    ]
}

#: That of the workers of ``redis://`` that run beside ours.
STOCK_TRANSPORT = TRANSPORTS["redis"]
