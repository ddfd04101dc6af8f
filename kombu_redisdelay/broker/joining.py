"""Joins calls that one script can do together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, groupby
from typing import Any

from kombu_redisdelay.broker.message import KEEP
from kombu_redisdelay.broker.portions import BYTES_PER_CALL, MESSAGES_PER_CALL, portions
from kombu_redisdelay.broker.server.scripts import SCHEDULE, SCHEDULE_ALL

#: Of a call of ``schedule.lua`` for a message that needs no binding, in a queue that does not expire.
_KEYS, _ARGS = 5, 6


def joined(calls: Sequence[Any]) -> Iterator[tuple[Any, int]]:
    """The *calls* in their order, each with the number of calls that it stands for: messages that are
    scheduled in one queue, one after the other, have one script for many of them."""
    for keys, group in groupby(calls, _keys_of_simple):
        if keys is None:
            yield from ((call, 1) for call in group)
            continue
        for some in portions(group, _size, MESSAGES_PER_CALL, BYTES_PER_CALL):
            if len(some) == 1:
                yield some[0], 1
            else:
                args = chain.from_iterable(
                    (id, at_ms, delay_ms, stored) for _, _, (stored, _, id, at_ms, delay_ms, _) in some
                )
                yield (SCHEDULE_ALL, keys, tuple(args)), len(some)


def _keys_of_simple(call: Any) -> tuple[str, ...] | None:
    script, keys, args = call
    is_simple = script is SCHEDULE and len(keys) == _KEYS and len(args) == _ARGS and args[5] == KEEP
    return keys if is_simple else None


def _size(call: Any) -> int:
    return len(call[2][0])
