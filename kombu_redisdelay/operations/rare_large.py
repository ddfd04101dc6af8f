"""Looks for the large messages of hashes where they are rare: Redis tells lengths sooner than messages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from random import choices, randrange

from kombu_redisdelay.broker.server.scripts import FIND_LARGE, ScriptCall, run_each
from kombu_redisdelay.broker.server.wire import answers
from kombu_redisdelay.broker.store import Store
from kombu_redisdelay.operations.sample import Sampled, Source, with_heads

#: A script looks at so many messages at most, and copies so many bytes of them on average. So many scripts
#: are called in a round trip.
MESSAGES_PER_SCRIPT, BYTES_PER_SCRIPT, SCRIPTS_PER_CALL = 400, 512 * 1024, 20

#: When so many are found, these are enough.
ENOUGH = 64

#: Large ones that are read in a round trip.
READ_PER_CALL = 4

#: Redis goes on from any number of this size, by the hash of fields: so these are messages at random.
_POSITIONS = 2**48


def rare_large(
    store: Store, sources: Sequence[Source], most: int, least_bytes: int, mean_bytes: float
) -> tuple[Iterator[Sampled], int]:
    """Look at about *most* messages of *sources*, which are hashes.

    Arguments:
        least_bytes: with how many bytes a message is large.
        mean_bytes: how large a message is on average.

    Returns:
        the large ones, and among how many messages they were found.
    """
    together = max(1, int(min(MESSAGES_PER_SCRIPT, BYTES_PER_SCRIPT / mean_bytes)))
    ends = list(accumulate(source.length for source in sources))
    found: list[tuple[Source, bytes]] = []
    looked_at, calls_left = 0, -(-most // together)
    while calls_left > 0 and len(found) < ENOUGH:
        some = choices(sources, cum_weights=ends, k=min(calls_left, SCRIPTS_PER_CALL))
        calls: list[ScriptCall] = [
            (
                FIND_LARGE,
                [source.key, source.heads] if source.heads else [source.key],
                (str(randrange(_POSITIONS)), str(together), str(least_bytes)),
            )
            for source in some
        ]
        for source, (count, *fields) in zip(some, run_each(store.server, calls), strict=True):
            looked_at += count
            found += [(source, field) for field in fields]
        calls_left -= len(calls)
    return _read(store, found), looked_at


def _read(store: Store, found: Sequence[tuple[Source, bytes]]) -> Iterator[Sampled]:
    for first in range(0, len(found), READ_PER_CALL):
        some = found[first : first + READ_PER_CALL]
        messages = answers(store.server, [("HGET", source.key, field) for source, field in some])
        there = [
            (source.heads, Sampled(field, stored))
            for (source, field), stored in zip(some, messages, strict=True)
            # It may have gone meanwhile.
            if stored is not None
        ]
        yield from with_heads(store, there)
