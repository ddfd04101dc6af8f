"""What an operator allows: the limits of a queue, whether it is fair, and the limits of its keys.

They hold for all consumers together, from their next take on.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from math import ceil, isclose
from typing import Any, NamedTuple

from kombu_redisdelay.broker.fair_counts import check_keys, count_keys
from kombu_redisdelay.broker.fair_keys import OFF, ON, PLAIN, StoredKeyLimits
from kombu_redisdelay.broker.portions import finish
from kombu_redisdelay.broker.server.scripts import (
    SET_LIMITS,
    run_each,
)
from kombu_redisdelay.broker.server.wire import Argument, answers
from kombu_redisdelay.broker.store import Store
from kombu_redisdelay.broker.unlisted import search_for

#: The unit of a rate, and how many microseconds it has.
_UNITS = {"s": 1_000_000, "m": 60_000_000, "h": 3_600_000_000}

_RATE = re.compile(r"(\d+(?:\.\d+)?(?:e[+-]?\d+)?)(?:/([smh]))?", re.ASCII)

#: The lowest and the highest rate, as microseconds from one message to the next. The clock of Redis counts
#: microseconds, and :attr:`Limits.rate` shows each rate between them without an exponent.
_LONGEST_US, _SHORTEST_US = 360_000_000_000.0, 1.0

#: The limits of every key, in the hash of the limits of a queue: in the order of :class:`StoredKeyLimits`.
_KEY_FIELDS = ("key_concurrency", "key_interval_us", "key_burst")

#: The same of the limits that a key has for itself.
_OWN_FIELDS = StoredKeyLimits._fields

#: State of a queue, as it is in Redis -> state.
_STATES: Mapping[bytes | None, str] = {state.encode(): state for state in (ON, OFF)}


class Limits(NamedTuple):
    """The limits of a queue. ``None`` is no limit.

    Attributes:
        paused_ms: since when it is paused, ms since the epoch; ``None`` if it is not.
        interval_us: microseconds from one message to the next, on average.
        burst: how many may be taken at once after a while without any; ``None`` without a rate.
        concurrency: how many messages of it may be unacked.
        throttled: how many takes left ready messages because of the pause or a limit.
    """

    paused_ms: int | None = None
    interval_us: float | None = None
    burst: int | None = None
    concurrency: int | None = None
    throttled: int = 0

    @property
    def rate(self) -> str | None:
        """How many messages may be taken in which time, such as ``100/m``."""
        if self.interval_us is None:
            return None
        counts = {unit: microseconds / self.interval_us for unit, microseconds in _UNITS.items()}
        whole = (unit for unit, count in counts.items() if count >= 1 and isclose(count, round(count)))
        unit = next(whole, "h")
        return f"{counts[unit]:.10g}/{unit}"

    @property
    def per_second(self) -> float | None:
        """The rate as messages a second."""
        return None if self.interval_us is None else float(f"{_UNITS['s'] / self.interval_us:.10g}")


#: Attribute -> its field of the hash in Redis, in the order of the attributes.
_FIELDS = {name: name for name in Limits._fields} | {"throttled": "held_back"}


def interval_us(rate: str | float) -> float:
    """Microseconds from one message to the next.

    Arguments:
        rate: as Celery's ``rate_limit``: ``"100/m"``, or with ``/s`` or ``/h``, or a number of messages a
            second.

    Raises:
        ValueError: it is none of these, below 0.01/h or above 1000000/s.
    """
    match = None if isinstance(rate, bool) else _RATE.fullmatch(str(rate).strip())
    if match is None or float(match[1]) <= 0:
        raise ValueError(
            f"a rate is a number above 0, with or without a unit, such as 10/s, 100/m or 1000/h, not {rate!r}"
        )
    interval = _UNITS[match[2] or "s"] / float(match[1])
    if not _SHORTEST_US <= interval <= _LONGEST_US:
        raise ValueError(f"a rate is from 0.01/h to 1000000/s, not {rate!r}")
    return interval


def default_burst(interval: float) -> int:
    """What a rate with this interval allows in a second, at least one message."""
    # Rounded, because an interval that several partitions share has a small error.
    return max(1, ceil(round(_UNITS["s"] / interval, 6)))


class LimitStore:
    """Reads and changes the limits of the queues in *store*, each of which is a partition or has none."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def get(self, queues: Sequence[str]) -> list[Limits]:
        """The limits of each of *queues*."""
        commands = (("HMGET", self._store.keys(queue).limits, *_FIELDS.values()) for queue in queues)
        return [limits_of(row) for row in answers(self._store.server, commands)]

    def unreadable(self, queue: str) -> list[str]:
        """The fields of the limits of *queue* that do not hold what belongs there. They count as missing."""
        fields = list(_FIELDS.values())
        [row] = answers(self._store.server, [("HMGET", self._store.keys(queue).limits, *fields)])
        found = {field: value for field, value in zip(fields, row, strict=True) if value is not None}
        unreadable = [field for field, value in found.items() if number_of(value) is None]
        if "interval_us" in found and "burst" not in found:
            unreadable.append("burst")
        return unreadable

    def pause(self, queues: Sequence[str]) -> None:
        """Have nothing taken from *queues*."""
        set_limits(self._store, queues, {"paused_ms": int(self._store.now_ms())})

    def resume(self, queues: Sequence[str]) -> None:
        """End the pause of *queues*. Their limits stay."""
        set_limits(self._store, queues, {"paused_ms": ""})

    def limit(self, queues: Sequence[str], limits: Mapping[str, float | int | None]) -> None:
        """Change some limits of each of *queues*.

        Arguments:
            limits: attribute of :class:`Limits` -> its new value, ``None`` for no limit. A rate is
                ``interval_us`` and ``burst``.
        """
        set_limits(self._store, queues, {_FIELDS[name]: _text(value) for name, value in limits.items()})


def set_limits(
    store: Store, queues: Sequence[str], fields: Mapping[str, Argument], key: str | None = None
) -> None:
    """Change what is allowed for *queues*, or for one *key* of each of them.

    Arguments:
        fields: field in Redis -> its new value, empty for none.
    """
    # Noted, so that they are shown though they may be empty.
    store.remember(*queues)
    args = ["" if key is None else f":{key}", *(argument for field in fields.items() for argument in field)]
    each = [store.keys(queue) for queue in queues]
    run_each(store.server, [(SET_LIMITS, (keys.limits, keys.wake), args) for keys in each])


def limits_of(row: Sequence[Any]) -> Limits:
    """The limits that have these values of their fields in Redis."""
    paused_ms, interval, burst, concurrency, throttled = map(number_of, row)
    has_rate = interval is not None and burst is not None
    return Limits(
        paused_ms=_int(paused_ms),
        interval_us=interval if has_rate else None,
        burst=_int(burst) if has_rate else None,
        concurrency=_int(concurrency),
        throttled=_int(throttled) or 0,
    )


def number_of(value: Any) -> float | None:
    """A value in Redis as a number. ``None`` if there is none, or another program has written something else
    there. The bounds are those of lua/include/limits.lua."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return number if 1e-3 <= number <= 1e21 else None


class FairQueues:
    """Which of the queues in *store* are fair, and the limits of their keys. Each queue is a partition or has
    none."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def switch_on(self, queues: Sequence[str]) -> None:
        """Make *queues* fair, from the next take on.

        Raises:
            ValueError: one of them was declared with ``x-expires``.
        """
        for queue in queues:
            if queue in self._store.expires_ms:
                raise ValueError(f"queue {queue!r} cannot be fair, because it is declared with 'x-expires'")
        self._set(queues, {"fair": ON})

    def switch_off(self, queues: Sequence[str]) -> None:
        """Make *queues* plain again. The takes move the messages back, and then a queue is plain. One without
        messages that are sorted is plain at once. What has no turn, because a key was lost, is moved back,
        too: the database is searched for it."""
        # Also what another program has written there goes.
        fair = [queue for queue, state in zip(queues, self._states(queues), strict=True) if state is not None]
        for queue in fair:
            search_for(self._store, queue)
        self._set(fair, {"fair": OFF})

    def states(self, queues: Sequence[str]) -> list[str]:
        """:data:`ON`, :data:`OFF` or :data:`PLAIN` for each of *queues*."""
        return [_STATES.get(state, PLAIN) for state in self._states(queues)]

    def _states(self, queues: Sequence[str]) -> list[bytes | None]:
        """The same, as they are in Redis. Another program may have written anything."""
        commands = (("HGET", self._store.keys(queue).limits, "fair") for queue in queues)
        return list(answers(self._store.server, commands))

    def limits(self, queues: Sequence[str]) -> list[StoredKeyLimits]:
        """The limits of every key of each of *queues*."""
        commands = (("HMGET", self._store.keys(queue).limits, *_KEY_FIELDS) for queue in queues)
        return [_key_limits_of(row) for row in answers(self._store.server, commands)]

    def limit(self, queues: Sequence[str], limits: StoredKeyLimits) -> None:
        """Set the limits of every key of each of *queues*."""
        self._set(queues, dict(zip(_KEY_FIELDS, map(_text, limits), strict=True)))
        for queue in queues:
            self._look_at_all(queue)

    def limit_key(self, queue: str, key: str, limits: StoredKeyLimits) -> None:
        """Set the limits that *key* has for itself."""
        self._set([queue], dict(zip(_OWN_FIELDS, map(_text, limits), strict=True)), key)

    def pause_key(self, queue: str, key: str) -> None:
        """Have nothing of *key* taken."""
        self._set([queue], {"paused_ms": int(self._store.now_ms())}, key)

    def resume_key(self, queue: str, key: str) -> None:
        """End the pause of *key*. Its limits stay."""
        self._set([queue], {"paused_ms": ""}, key)

    def _set(self, queues: Sequence[str], fields: Mapping[str, Argument], key: str | None = None) -> None:
        set_limits(self._store, queues, fields, key)
        for queue in queues:
            finish(count_keys(self._store, queue))

    def _look_at_all(self, queue: str) -> None:
        begin_at: dict[str, bytes] = {}
        while True:
            finish(check_keys(self._store, [queue], begin_at))
            if begin_at[queue] == b"0":
                return


def _text(limit: float | None) -> str:
    return "" if limit is None else repr(limit)


def _int(number: float | None) -> int | None:
    return None if number is None else int(number)


def _key_limits_of(row: Sequence[Any]) -> StoredKeyLimits:
    concurrency, interval, burst = map(number_of, row)
    return StoredKeyLimits(
        concurrency=None if concurrency is None else int(concurrency),
        interval_us=interval,
        burst=None if burst is None or interval is None else int(burst),
    )
