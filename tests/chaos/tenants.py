"""Who shares the fair queues of a run: the keys of messages, how much each sends, and what it is allowed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from kombu_redisdelay.broker.fair_keys import KEY_HEADER, WEIGHT_HEADER

#: How many messages of each key may be unacked, unless a key has a limit of its own.
CONCURRENCY = 8


@dataclass(frozen=True)
class Tenant:
    """One of them.

    Attributes:
        key: empty for messages without one.
        share: of all tasks, in percent.
        concurrency: how many of its messages may be unacked; ``None`` is as for each key.
        rate: messages a second; ``None`` for any number.
        is_paused: whether an operator pauses it now and then.
    """

    key: str
    share: float
    weight: float | None = None
    concurrency: int | None = None
    rate: float | None = None
    burst: int | None = None
    is_paused: bool = False

    @property
    def headers(self) -> dict[str, Any]:
        """Those of its messages."""
        if not self.key:
            return {}
        weight = {} if self.weight is None else {WEIGHT_HEADER: self.weight}
        return {KEY_HEADER: self.key, **weight}

    @property
    def allowed(self) -> int:
        """How many of its messages may be unacked."""
        return CONCURRENCY if self.concurrency is None else self.concurrency


TENANTS = (
    Tenant("", 10),
    Tenant("noisy", 44),
    Tenant("light", 10, weight=0.5),
    Tenant("heavy", 10, weight=5, is_paused=True),
    Tenant("alone", 3, concurrency=1),
    Tenant("pair", 6, weight=2.5, concurrency=2),
    Tenant("slow", 5, rate=1.5, burst=2),
    *(Tenant(f"quiet-{number}", 1) for number in range(12)),
)


def pick(random: Random, tenants: Sequence[Tenant]) -> Tenant:
    """Who sends the next task."""
    [tenant] = random.choices(tenants, [each.share for each in tenants])
    return tenant
