"""What an operator allows for a queue: whether it is paused, how many messages may be taken, and how many may
be held. It holds for all consumers together, from their next take on."""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import ceil, isclose
from typing import Any, NamedTuple

from kombu_redisdelay.broker.server.replies import checked
from kombu_redisdelay.broker.server.scripts import SET_CONTROL, run_each
from kombu_redisdelay.broker.server.wire import Argument
from kombu_redisdelay.broker.store import Store

#: The unit of a rate, and how many microseconds it has.
_UNITS = {"s": 1_000_000, "m": 60_000_000, "h": 3_600_000_000}

_RATE = re.compile(r"(\d+(?:\.\d+)?)(?:/([smh]))?")


class Control(NamedTuple):
    """What is allowed for a queue. ``None`` is no limit.

    Attributes:
        paused_ms: since when it is paused, ms since the epoch; ``None`` if it is not.
        interval_us: microseconds from one message to the next, on average.
        burst: how many may be taken at once after a while without any; ``None`` without a rate.
        concurrency: how many messages all consumers together may hold.
        held_back: how many takes left ready messages where they were because of this.
    """

    paused_ms: int | None = None
    interval_us: float | None = None
    burst: int | None = None
    concurrency: int | None = None
    held_back: int = 0

    @property
    def rate(self) -> str | None:
        """How many messages may be taken in which time, such as ``100/m``."""
        if self.interval_us is None:
            return None
        counts = {unit: microseconds / self.interval_us for unit, microseconds in _UNITS.items()}
        whole = (unit for unit, count in counts.items() if count >= 1 and isclose(count, round(count)))
        unit = next(whole, "h")
        return f"{counts[unit]:.10g}/{unit}"


#: The fields of the hash in Redis, in the order of the attributes.
_FIELDS = ("paused_ms", "interval_us", "burst", "concurrency", "held_back")


def interval_us(rate: str | float) -> float:
    """Microseconds from one message to the next.

    Arguments:
        rate: as Celery's ``rate_limit``: ``"100/m"``, or with ``/s`` or ``/h``, or a number of messages a
            second.

    Raises:
        ValueError: it is none of these, or not above 0.
    """
    match = None if isinstance(rate, bool) else _RATE.fullmatch(str(rate).strip())
    if match is None or float(match[1]) <= 0:
        raise ValueError(
            f"a rate is a number above 0, with or without a unit, such as 10/s, 100/m or 1000/h, not {rate!r}"
        )
    return _UNITS[match[2] or "s"] / float(match[1])


def default_burst(interval: float) -> int:
    """What a rate with this interval allows in a second, at least one message."""
    return max(1, ceil(_UNITS["s"] / interval))


class Controls:
    """Reads and changes the control of the queues in *store*, each of which is a partition or has none."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def get(self, queues: Sequence[str]) -> list[Control]:
        """The control of each of *queues*."""
        commands = (("HMGET", self._store.keys(queue).control, *_FIELDS) for queue in queues)
        return [control_of(row) for row in checked(self._store.server.call_all(*commands))]

    def pause(self, queues: Sequence[str]) -> None:
        """Have nothing taken from *queues*."""
        self._set(queues, {"paused_ms": int(self._store.now_ms())})

    def resume(self, queues: Sequence[str]) -> None:
        """End the pause of *queues*. Their limits stay."""
        self._set(queues, {"paused_ms": ""})

    def limit(
        self, queues: Sequence[str], interval_us: float | None, burst: int | None, concurrency: int | None
    ) -> None:
        """Give each of *queues* these limits. Without a value, what was limited is not any more."""
        self._set(
            queues,
            {
                "interval_us": "" if interval_us is None else repr(interval_us),
                "burst": "" if burst is None else burst,
                "concurrency": "" if concurrency is None else concurrency,
                **({"full_at_us": ""} if interval_us is None else {}),
            },
        )

    def _set(self, queues: Sequence[str], fields: dict[str, Argument]) -> None:
        # Noted, so that they are shown though they may be empty.
        self._store.remember(*queues)
        each = [self._store.keys(queue) for queue in queues]
        args = [argument for field in fields.items() for argument in field]
        run_each(self._store.server, [(SET_CONTROL, (keys.control, keys.wake), args) for keys in each])


def control_of(row: Sequence[Any]) -> Control:
    """The control that has these values of its fields in Redis."""
    paused_ms, interval, burst, concurrency, held_back = row
    return Control(
        paused_ms=_int(paused_ms),
        interval_us=None if interval is None else float(interval),
        burst=_int(burst),
        concurrency=_int(concurrency),
        held_back=_int(held_back) or 0,
    )


def _int(value: Any) -> int | None:
    return None if value is None else int(value)
