"""What an operator allows: the limits of a queue, whether it is fair, and the limits of its keys.

They hold for all consumers together, from their next take on.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from math import ceil, isclose
from typing import Any, NamedTuple

from redis.exceptions import ResponseError

from kombu_redisdelay.broker.fair_keys import OFF, ON, PLAIN, KeyLimits
from kombu_redisdelay.broker.portions import BYTES_PER_CALL, MESSAGES_PER_CALL, Chore, Doing, Turn, Upkeep
from kombu_redisdelay.broker.server.scripts import (
    CHECK_KEYS,
    COUNT_KEYS,
    SET_KEY_LIMITS,
    SET_LIMITS,
    ScriptCall,
    run_each,
)
from kombu_redisdelay.broker.server.wire import Argument, Command, answers
from kombu_redisdelay.broker.store import Store
from kombu_redisdelay.broker.unlisted import relisting, search_for

#: The unit of a rate, and how many microseconds it has.
_UNITS = {"s": 1_000_000, "m": 60_000_000, "h": 3_600_000_000}

_RATE = re.compile(r"(\d+(?:\.\d+)?(?:e[+-]?\d+)?)(?:/([smh]))?", re.ASCII)

#: The lowest and the highest rate, as microseconds from one message to the next. The clock of Redis counts
#: microseconds, and :attr:`Limits.rate` shows each rate between them without an exponent.
_LONGEST_US, _SHORTEST_US = 360_000_000_000.0, 1.0

#: How many keys one script looks at.
KEYS_PER_SCRIPT = 50

#: The limits of every key, in the hash of the limits of a queue: in the order of :class:`KeyLimits`.
_KEY_FIELDS = ("key_concurrency", "key_interval_us", "key_burst")

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
        self._set(queues, {"paused_ms": int(self._store.now_ms())})

    def resume(self, queues: Sequence[str]) -> None:
        """End the pause of *queues*. Their limits stay."""
        self._set(queues, {"paused_ms": ""})

    def limit(self, queues: Sequence[str], limits: Mapping[str, float | int | None]) -> None:
        """Change some limits of each of *queues*.

        Arguments:
            limits: attribute of :class:`Limits` -> its new value, ``None`` for no limit. A rate is
                ``interval_us`` and ``burst``.
        """
        fields: dict[str, Argument] = {
            _FIELDS[name]: "" if value is None else repr(value) for name, value in limits.items()
        }
        self._set(queues, fields)

    def _set(self, queues: Sequence[str], fields: dict[str, Argument]) -> None:
        # Noted, so that they are shown though they may be empty.
        self._store.remember(*queues)
        each = [self._store.keys(queue) for queue in queues]
        args = [argument for field in fields.items() for argument in field]
        run_each(self._store.server, [(SET_LIMITS, (keys.limits, keys.wake), args) for keys in each])


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
        messages that are sorted in is plain at once. What has no turn, because a key was lost, is moved back,
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

    def limits(self, queues: Sequence[str]) -> list[KeyLimits]:
        """The limits of every key of each of *queues*."""
        commands = (("HMGET", self._store.keys(queue).limits, *_KEY_FIELDS) for queue in queues)
        return [_key_limits_of(row) for row in answers(self._store.server, commands)]

    def limit(self, queues: Sequence[str], limits: KeyLimits) -> None:
        """Set the limits of every key of each of *queues*."""
        fields = {
            field: "" if value is None else repr(value)
            for field, value in zip(_KEY_FIELDS, limits, strict=True)
        }
        self._set(queues, fields)
        for queue in queues:
            self._look_at_all(queue)

    def limit_key(self, queue: str, key: str, limits: KeyLimits) -> None:
        """Set the limits that *key* has for itself."""
        self._set_key(queue, key, "", *(repr(value or 0) for value in limits))

    def pause_key(self, queue: str, key: str) -> None:
        """Have nothing of *key* taken."""
        self._set_key(queue, key, int(self._store.now_ms()))

    def resume_key(self, queue: str, key: str) -> None:
        """End the pause of *key*. Its limits stay."""
        self._set_key(queue, key, 0)

    def _set(self, queues: Sequence[str], fields: Mapping[str, str]) -> None:
        # Noted, so that they are shown though they may be empty.
        self._store.remember(*queues)
        args = [argument for field in fields.items() for argument in field]
        each = [self._store.keys(queue) for queue in queues]
        run_each(self._store.server, [(SET_LIMITS, (keys.limits, keys.wake), args) for keys in each])
        for queue in queues:
            count_keys(self._store, queue)

    def _set_key(self, queue: str, key: str, *values: Argument) -> None:
        self._store.remember(queue)
        keys = self._store.keys(queue)
        args = (key, *values, *([""] * (4 - len(values))))
        SET_KEY_LIMITS(self._store.server, (keys.limits, keys.wake), args)
        count_keys(self._store, queue)

    def _look_at_all(self, queue: str) -> None:
        begin_at: dict[str, tuple[bytes, bytes]] = {}
        while True:
            check_keys(self._store, [queue], begin_at)
            if begin_at[queue][1] == b"0":
                return


def count_keys(store: Store, queue: str) -> None:
    """Count of which keys messages are unacked, if this has to be done (``lua/count_keys.lua``)."""
    keys = store.keys(queue)
    counting = store.server.call("HGET", keys.limits, "counting")
    if counting is None:
        return
    used = (keys.limits, keys.wake)
    for consumer in store.server.call("ZRANGE", keys.consumers, 0, -1):
        tags = store.server.call("HKEYS", keys.unacked(consumer.decode(errors="replace")))
        while tags:
            args = (counting, BYTES_PER_CALL, consumer, *tags[:MESSAGES_PER_CALL])
            done = COUNT_KEYS(store.server, used, args)
            if done < 0:
                return
            del tags[:done]
    COUNT_KEYS(store.server, used, (counting, BYTES_PER_CALL, ""))


def check_fair(
    store: Store,
    queues: Sequence[str],
    begin_at: dict[str, tuple[bytes, bytes]],
    searched: Collection[str] = (),
) -> list[str]:
    """Do what :func:`check_keys` does, for those of *queues* that are fair, and what :func:`count_keys` does
    where somebody has begun it and did not end it. What is sorted in and not said to be fair is moved back.

    Arguments:
        begin_at: queue -> where to begin. It is kept from one call to the next.
        searched: as for :func:`check_keys`.

    Returns:
        The same as :func:`check_keys`.
    """
    commands: list[Command] = []
    for keys in map(store.keys, queues):
        commands += ("HMGET", keys.limits, "fair", "counting"), ("EXISTS", keys.fair)
    replies = store.server.call_all(*commands)
    fair, lost = [], []
    for queue, reply, has_sorted_in in zip(queues, replies[::2], replies[1::2], strict=True):
        if isinstance(reply, ResponseError):
            continue
        state, counting = reply
        if counting is not None:
            count_keys(store, queue)
        if state is not None:
            fair.append(queue)
        elif has_sorted_in == 1:
            lost.append(queue)
    run_each(store.server, [relisting(store, queue, ()) for queue in lost])
    return check_keys(store, fair, begin_at, searched) if fair else []


def check_keys(
    store: Store,
    queues: Sequence[str],
    begin_at: dict[str, tuple[bytes, bytes]],
    searched: Collection[str] = (),
) -> list[str]:
    """Look at some keys of those *queues*: free what is counted of messages that are gone, let keys go on
    that are not at a limit any more, and put right what is counted if keys in Redis were lost. Makes one
    round trip, and more if what is unacked has to be counted.

    Arguments:
        begin_at: queue -> where to begin. It is kept from one call to the next.
        searched: those that were searched for lists without a turn since the last call.

    Returns:
        Those of *queues* that have to be searched, because there may be lists without a turn.
    """
    calls: list[ScriptCall] = [
        (
            CHECK_KEYS,
            (store.keys(queue).limits, store.keys(queue).wake),
            (KEYS_PER_SCRIPT, *begin_at.get(queue, (b"0", b"0")), int(queue in searched), *store.steps),
        )
        for queue in queues
    ]
    to_search = []
    for queue, reply in zip(queues, run_each(store.server, calls), strict=True):
        unacked, limited, differs, is_counting = reply
        begin_at[queue] = unacked, limited
        if differs:
            to_search.append(queue)
        if is_counting:
            count_keys(store, queue)
    return to_search


def _int(number: float | None) -> int | None:
    return None if number is None else int(number)


def _key_limits_of(row: Sequence[Any]) -> KeyLimits:
    concurrency, interval, burst = map(number_of, row)
    return KeyLimits(
        concurrency=None if concurrency is None else int(concurrency),
        interval_us=interval,
        burst=None if burst is None or interval is None else int(burst),
    )


def _checking(upkeep: Upkeep) -> Doing:
    begin_at: dict[str, tuple[bytes, bytes]] = {}
    return lambda turn: upkeep.lost.update(check_fair(upkeep.store, turn.queues, begin_at))


def _checking_searched(upkeep: Upkeep) -> Doing:
    def check(turn: Turn) -> None:
        if upkeep.searched:
            check_fair(upkeep.store, list(upkeep.searched), {}, upkeep.searched)
            upkeep.searched.clear()

    return check


CHORES = (
    Chore("count keys of fair queues, and let them go on", _checking),
    # Next after the search.
    Chore("count what a search has found", _checking_searched, is_for_all=True),
)
