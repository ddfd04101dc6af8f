"""The keys of fair queues: whose turn a message takes.

In Redis, a message says so with a member of ours (lua/include/fair_key.lua), or with headers, where its
publisher is not ours. A fair queue knows the state of each of its keys.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from random import randrange
from typing import Any, NamedTuple
from uuid import UUID

from kombu_redisdelay.broker.members import KEY, check_size
from kombu_redisdelay.broker.server.scripts import FIND_GREATEST, READ_KEYS
from kombu_redisdelay.broker.server.wire import Argument, Command, answers
from kombu_redisdelay.broker.store import Store
from kombu_redisdelay.words import shortened

#: Header that has the key: a text.
KEY_HEADER = "x-key"

#: Header that has the weight: a number. A key with twice the weight has twice the turns.
WEIGHT_HEADER = "x-key-weight"

#: The longest key, in bytes of UTF-8.
LONGEST_KEY = 64

DEFAULT_WEIGHT = 1
LEAST_WEIGHT, GREATEST_WEIGHT = 0.001, 1000

_UNUSABLE = re.compile(r'[\x00-\x1f\x7f-\x9f"\\]')
_VALUE = re.compile(r"([\d.]+) (.*)", re.DOTALL)

#: The states of a queue: it is fair, or its messages are being moved back, or neither.
ON, OFF, PLAIN = "on", "off", ""

#: Keys that are read together.
KEYS_PER_PAGE = 200

#: Where keys are chosen, they are from so many parts of the turns of each step.
PARTS = 10

_TURN = re.compile(rb"(\d{1,15}) (-?\d+)")

#: A number of messages. Another one was written by another program, and counts as none.
_NUMBER = re.compile(rb"\d{1,15}")


class FairKey(NamedTuple):
    """The key of a message, empty if it has none, and its weight."""

    key: str = ""
    weight: float = DEFAULT_WEIGHT

    @property
    def member(self) -> str:
        """What the message says of it."""
        # No exponent: it has four digits before the point at most, and three zeros behind it.
        return f"{float(self.weight):.10g} {self.key}"


def fair_key_of(headers: Mapping[str, Any]) -> FairKey | None:
    """What the *headers* of a message say of its key; ``None`` if it has none.

    Raises:
        ValueError: a header is invalid. The error names it and the value.
    """
    key, weight = headers.get(KEY_HEADER), headers.get(WEIGHT_HEADER)
    if key is None:
        if weight is not None:
            raise ValueError(f"header {WEIGHT_HEADER!r} needs header {KEY_HEADER!r}")
        return None
    task = headers.get("task")
    check_key(key, f"header {KEY_HEADER!r}{f' of task {shortened(task)}' if isinstance(task, str) else ''}")
    # What JSON makes of it: a member of an enumeration of texts may be formatted as its name.
    key = str.__str__(key)
    if weight is None:
        return FairKey(key)
    check_weight(weight, f"header {WEIGHT_HEADER!r}")
    return FairKey(key, weight)


def member_of(headers: Mapping[str, Any]) -> str | None:
    """The same as a message says it to the scripts.

    Raises:
        ValueError: as above.
    """
    found = fair_key_of(headers)
    return None if found is None else found.member


def check_key(key: object, what: str, kinds: str = "a text") -> None:
    """Raise a ``ValueError`` about *what* if *key* cannot be a key.

    Arguments:
        kinds: what it may be, in words. The caller has made a text of all that is none.
    """
    if not isinstance(key, str):
        hint = f": write str({shortened(key)})" if is_id(key) else ""
        raise ValueError(f"{what} must be {kinds}, not {shortened(key)}{hint}")
    if _UNUSABLE.search(key):
        raise ValueError(
            f"{what} must have no control characters, quotation marks or backslashes: {key[:LONGEST_KEY]!r}"
        )
    check_size(key, LONGEST_KEY, what)


def is_id(key: object) -> bool:
    """Whether *key* is a number or a UUID, as the ids of tenants often are in a database."""
    return isinstance(key, (int, UUID)) and not isinstance(key, bool)


def check_weight(weight: object, what: str) -> None:
    """Raise a ``ValueError`` about *what* if *weight* cannot be a weight."""
    if not _is_weight(weight):
        raise ValueError(
            f"{what} must be a number from {LEAST_WEIGHT} to {GREATEST_WEIGHT}, not {shortened(weight)}"
        )


def _is_weight(weight: object) -> bool:
    # NaN is in no range.
    is_number = isinstance(weight, (int, float)) and not isinstance(weight, bool)
    return is_number and LEAST_WEIGHT <= weight <= GREATEST_WEIGHT  # type: ignore[operator]


def read_key(message: Mapping[str, Any]) -> FairKey:
    """The key of a decoded *message*, as the scripts read it: what cannot be a key or a weight is none."""
    headers = message.get("headers")
    value, weight = message.get(KEY), None
    match = _VALUE.fullmatch(value) if isinstance(value, str) else None
    if match:
        key: Any = match[2]
        weight = _weight_in(match[1])
    elif isinstance(headers, Mapping):
        key, weight = headers.get(KEY_HEADER), headers.get(WEIGHT_HEADER)
    else:
        key = None
    try:
        check_key(key, "")
    except ValueError:
        key = ""
    return FairKey(key, weight if _is_weight(weight) else DEFAULT_WEIGHT)  # type: ignore[arg-type]


def key_of(payload: bytes) -> FairKey:
    """The key of a message as it is in Redis."""
    try:
        message = json.loads(payload)
    except (ValueError, RecursionError):
        return FairKey()
    return read_key(message) if isinstance(message, dict) else FairKey()


class StoredKeyLimits(NamedTuple):
    """The limits of keys. ``None`` is no limit; for one key, it is the limit of every key.

    Attributes:
        concurrency: how many messages of a key may be unacked.
        interval_us: microseconds from one message of a key to the next, on average.
        burst: how many may be taken at once after a while without any; ``None`` without a rate.
    """

    concurrency: int | None = None
    interval_us: float | None = None
    burst: int | None = None


class KeyState(NamedTuple):
    """A key of a fair queue.

    Attributes:
        ready: priority step -> how many of its messages are sorted by key, for those steps that have any.
        unacked: how many of its messages are unacked; ``None`` if that is not counted, because no concurrency
            of keys is limited.
        turns: priority step -> when its next turn begins, by the clock of the step.
        is_at_limit: whether none of its messages may be taken now, because it is at a limit or paused.
        paused_ms: since when it is paused, ms since the epoch; ``None`` if it is not.
        own: the limits that it has for itself.
    """

    key: str
    ready: Mapping[int, int]
    unacked: int | None
    turns: Mapping[int, float]
    is_at_limit: bool
    paused_ms: int | None
    own: StoredKeyLimits


def is_fair(store: Store, queue: str) -> bool:
    """Whether *queue* may have messages that are sorted by key."""
    return bool(store.server.call("EXISTS", store.keys(queue).fair))


def sorted_by_key(store: Store, queues: Sequence[str]) -> list[dict[int, int]]:
    """For each of *queues*: priority step -> how many messages are sorted by key."""
    rows = answers(store.server, (asking_for_sorted(store, queue) for queue in queues))
    return [sorted_of(store, row) for row in rows]


def asking_for_sorted(store: Store, queue: str) -> Command:
    """The command that asks for what :func:`sorted_of` reads."""
    return ("HMGET", store.keys(queue).fair, *(f"n:{step}" for step in store.steps))


def sorted_of(store: Store, row: Sequence[bytes | None]) -> dict[int, int]:
    """Priority step -> how many messages are sorted, from a reply. What another program has written there
    counts as none, as in ``stats``."""
    return {
        step: number
        for step, text in zip(store.steps, row, strict=True)
        if (number := _number(text)) is not None
    }


def iter_keys(store: Store, queue: str) -> Iterator[KeyState]:
    """The keys of *queue* that have messages, a turn, or limits of their own, each once, page by page. Those
    that are there all the time are included."""
    for some in _pages(store, _all_of(store, queue)):
        yield from _read(store, queue, some)


def iter_limited_keys(store: Store, queue: str) -> Iterator[KeyState]:
    """The same for those keys that are paused, have limits of their own, or are at a limit."""
    keys = store.keys(queue)
    # When all consumers are full, nobody has noted which of those are at a limit of which they hold messages.
    used = [("HSCAN", keys.unacked_by_key), ("ZSCAN", keys.rate_clocks)]
    for some in _pages(store, [*_limited_of(store, queue), *used]):
        yield from (state for state in _read(store, queue, some) if state.is_at_limit or any(state.own))


def iter_paused_keys(store: Store, queue: str) -> Iterator[KeyState]:
    """The same for those keys that are paused."""
    for some in _pages(store, [("HSCAN", store.keys(queue).key_limits)]):
        yield from (state for state in _read(store, queue, some) if state.paused_ms is not None)


def iter_names(store: Store, queue: str, *, only_limited: bool = False) -> Iterator[str]:
    """The names of the keys of :func:`iter_keys`, which costs less.

    Arguments:
        only_limited: those that are paused, have limits of their own, or wait at a limit.
    """
    sources = _limited_of(store, queue) if only_limited else _all_of(store, queue)
    for some in _pages(store, sources):
        yield from (key.decode(errors="replace") for key in some)


def greatest_keys(store: Store, queue: str, most: int) -> list[str]:
    """Up to *most* keys: those that have the most messages that are sorted, the greatest first. Makes a
    round trip for every :data:`KEYS_PER_PAGE` of all keys, and reads only the great ones."""
    found: dict[bytes, int] = {}
    least = 1
    for source in (*map(str, store.steps), "limited"):
        cursor = b"0"
        while True:
            args: list[Argument] = [source, cursor, KEYS_PER_PAGE, least, *store.steps]
            cursor, *pairs = FIND_GREATEST(store.server, (store.keys(queue).limits,), args)
            found |= zip(pairs[::2], pairs[1::2], strict=True)
            if len(found) >= 2 * most:
                found = _greatest(found, most)
                least = min(found.values(), default=least)
            if cursor == b"0":
                break
    return [key.decode(errors="replace") for key in _greatest(found, most)]


def some_keys(store: Store, queue: str, most: int) -> list[str]:
    """About *most* of the keys that have turns, or are at a limit, or fewer; whatever they have, if anything.
    Makes two round trips."""
    keys = store.keys(queue)
    zsets = [keys.turns(step) for step in store.steps]
    *counts, limited = answers(store.server, [*(("ZCARD", key) for key in zsets), ("HLEN", keys.limited)])
    whole = max(1, sum(counts) + limited)
    commands: list[Command] = []
    if limited:
        commands.append(("HRANDFIELD", keys.limited, math.ceil(most * limited / whole)))
    for zset, count in zip(zsets, counts, strict=True):
        # Keys with turns side by side may have come together.
        together = math.ceil(most * count / whole / PARTS)
        for _ in range(PARTS):
            first = randrange(max(1, count - together + 1))
            commands.append(("ZRANGE", zset, first, first + together - 1))
    found = {key for some in answers(store.server, commands) for key in some}
    return [key.decode(errors="replace") for key in found]


def _greatest(found: Mapping[bytes, int], most: int) -> dict[bytes, int]:
    return dict(sorted(found.items(), key=lambda each: (-each[1], each[0]))[:most])


def _all_of(store: Store, queue: str) -> list[tuple[str, str]]:
    """The commands that find keys, and where."""
    keys = store.keys(queue)
    turns = [("ZSCAN", keys.turns(step)) for step in store.steps]
    return turns + [("HSCAN", key) for key in (keys.limited, keys.key_limits, keys.unacked_by_key)]


def _limited_of(store: Store, queue: str) -> list[tuple[str, str]]:
    keys = store.keys(queue)
    return [("HSCAN", key) for key in (keys.key_limits, keys.limited)]


def _pages(store: Store, sources: Sequence[tuple[str, str]]) -> Iterator[list[bytes]]:
    """The keys that are found there, each once, page by page."""
    known: set[bytes] = set()
    for command, source in sources:
        cursor = b"0"
        while True:
            cursor, found = store.server.call(command, source, cursor, "COUNT", KEYS_PER_PAGE)
            new = [key for key in dict.fromkeys(found[::2]) if key not in known]
            known.update(new)
            for first in range(0, len(new), KEYS_PER_PAGE):
                yield new[first : first + KEYS_PER_PAGE]
            if cursor == b"0":
                break


def key_states(store: Store, queue: str, some: Sequence[str]) -> list[KeyState]:
    """The same for *some* keys, whether there is anything of them or not."""
    return [
        state
        for first in range(0, len(some), KEYS_PER_PAGE)
        for state in _read(store, queue, [key.encode() for key in some[first : first + KEYS_PER_PAGE]])
    ]


def _weight_in(digits: str) -> float | None:
    try:
        return float(digits)
    except ValueError:
        return None


def _read(store: Store, queue: str, some: Sequence[bytes]) -> list[KeyState]:
    if not some:
        return []
    args: list[Argument] = [len(store.steps), *store.steps, *some]
    rows = READ_KEYS(store.server, (store.keys(queue).limits,), args)
    return [_state_of(store.steps, key, row) for key, row in zip(some, rows, strict=True)]


def _state_of(steps: Sequence[int], key: bytes, row: Sequence[Any]) -> KeyState:
    unacked, own, is_at_limit, limited, *each = row
    paused_ms, limits = _own_of(own)
    turns = {
        step: float(start) for step, start in zip(steps, each[1::2], strict=True) if start is not None
    } | {int(step): float(start) for step, start in _TURN.findall(limited or b"")}
    return KeyState(
        key=key.decode(errors="replace"),
        ready={step: length for step, length in zip(steps, each[::2], strict=True) if length},
        unacked=_number(unacked),
        turns=turns,
        is_at_limit=bool(is_at_limit),
        paused_ms=paused_ms,
        own=limits,
    )


def _number(text: bytes | None) -> int | None:
    return int(text) if text is not None and _NUMBER.fullmatch(text) else None


def _own_of(text: bytes | None) -> tuple[int | None, StoredKeyLimits]:
    try:
        paused_ms, concurrency, interval_us, burst = map(float, (text or b"").split())
        return int(paused_ms) or None, StoredKeyLimits(
            int(concurrency) or None, interval_us or None, int(burst) or None
        )
    except (ValueError, OverflowError):
        return None, StoredKeyLimits()
