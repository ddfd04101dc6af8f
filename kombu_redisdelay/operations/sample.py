"""Reads messages of lists and hashes: some at random positions, or the large ones if they are few."""

from __future__ import annotations

from bisect import bisect
from collections.abc import Iterator, Sequence
from itertools import accumulate
from math import ceil
from random import choices, randrange, shuffle
from typing import Any, NamedTuple

from kombu_redisdelay.broker.server.scripts import FIND_LARGE, ScriptCall, run_each
from kombu_redisdelay.broker.server.wire import Command, answers
from kombu_redisdelay.broker.store import Store
from kombu_redisdelay.operations.estimate import NODE_BYTES

#: Messages that one command reads, and bytes that it reads on average, at most.
MESSAGES_PER_READ, BYTES_PER_READ = 8, 64 * 1024

#: To come to a message of a list, Redis walks over its nodes from the nearer end, some 10 to 50 ns for each:
#: in the memory of a large list, nothing is in a cache. No read goes further than so many nodes from an end.
#: All of them together walk over so many, about, but there are at least *FEWEST_READS*. With fewer reads,
#: each has more messages.
REACH, WALKED, FEWEST_READS = 100_000, 2_500_000, 25

#: Bytes of a message, where nothing is known of it.
TYPICAL_BYTES = 1000

#: Commands in a round trip, at most, bytes that they read on average, and nodes that all of them walk over,
#: about: Redis serves nobody else meanwhile.
READS_PER_CALL, BYTES_PER_CALL, WALKED_PER_CALL = 40, 1024 * 1024, 300_000

LIST, HASH = "list", "hash"


class Source(NamedTuple):
    """A key in Redis with messages.

    Attributes:
        kind: :data:`LIST` or :data:`HASH`.
        length: how many messages it had when it was looked at.
        heads: a hash with the same fields, which has what is noted of each message; empty if there is none.
    """

    kind: str
    key: str
    length: int
    heads: str = ""


class Sampled(NamedTuple):
    """A message as it is stored.

    Attributes:
        field: its field in a hash; empty in a list.
        head_bytes: how long the text is that is noted of it.
        head: this text, if the message itself was not kept; else empty.
    """

    field: bytes
    stored: bytes
    head_bytes: int = 0
    head: bytes = b""


def nodes_of(length: int, mean_bytes: float) -> float:
    """About how many nodes a list of *length* messages has."""
    return length * min(1.0, mean_bytes / NODE_BYTES)


def sample(
    store: Store, sources: Sequence[Source], most: int, most_bytes: int, mean_bytes: float = TYPICAL_BYTES
) -> Iterator[Sampled]:
    """Read about *most* messages of *sources*, one queue's, or all of them if there are no more.

    Arguments:
        most_bytes: to end after so many bytes; those of the last round trip come on top.
        mean_bytes: how large a message is on average. Of large ones, few are read at a time.
    """
    whole = sum(source.length for source in sources)
    fit = max(1, int(BYTES_PER_READ / mean_bytes))
    if whole <= most:
        replies = _read_all(store, sources, min(fit, MESSAGES_PER_READ))
    else:
        walk = sum(source.length * _nodes_walked(source, mean_bytes) for source in sources) / whole
        reads = min(most / MESSAGES_PER_READ, max(FEWEST_READS, WALKED / (1 + walk)))
        together = min(fit, ceil(most / reads))
        commands = _commands(sources, most, together, mean_bytes)
        by_bytes = BYTES_PER_CALL / (together * mean_bytes)
        replies = _calls(
            store, sources, commands, min(READS_PER_CALL, by_bytes, WALKED_PER_CALL / (1 + walk))
        )
    size = 0
    for some in replies:
        yield from some
        size += sum(len(each.field) + len(each.stored) + len(each.head) for each in some)
        if size > most_bytes:
            return


def _nodes_walked(source: Source, mean_bytes: float) -> float:
    """The nodes that Redis walks over for a message of *source*, on average."""
    if source.kind == HASH:
        return 0.0
    return min(nodes_of(source.length, mean_bytes) / 4, REACH / 2)


def _read_all(store: Store, sources: Sequence[Source], together: int) -> Iterator[list[Sampled]]:
    """All messages. Reading may end before that, and must not have seen the front only, or the first keys."""
    per_call = BYTES_PER_CALL // BYTES_PER_READ
    commands: list[Command] = [
        ("LRANGE", source.key, first, first + together - 1)
        for source in sources
        if source.kind == LIST
        for first in range(0, source.length, together)
    ]
    shuffle(commands)
    yield from _calls(store, sources, commands, per_call)
    # Redis scans a hash in no order.
    cursors = {source: b"0" for source in sources if source.kind == HASH}
    while cursors:
        hashes = list(cursors)
        for number in range(0, len(hashes), per_call):
            some = hashes[number : number + per_call]
            scans: list[Command] = [
                ("HSCAN", source.key, cursors[source], "COUNT", together) for source in some
            ]
            found: list[tuple[str, Sampled]] = []
            for source, (cursor, flat) in zip(some, answers(store.server, scans), strict=True):
                found += [(source.heads, each) for each in _pairs(flat)]
                cursors[source] = cursor
            yield with_heads(store, found)
        cursors = {source: cursor for source, cursor in cursors.items() if cursor != b"0"}


def _commands(sources: Sequence[Source], most: int, together: int, mean_bytes: float) -> list[Command]:
    """One command in each of many equal stretches: messages often stand beside others of their kind."""
    ends = list(accumulate(source.length for source in sources))
    reads = ceil(most / together)
    stretch = ends[-1] / reads
    commands: list[Command] = []
    for number in range(reads):
        first, behind = int(number * stretch), int((number + 1) * stretch)
        position = randrange(first, max(first + 1, behind))
        index = bisect(ends, position)
        kind, key, length, _ = sources[index]
        if kind == HASH:
            commands.append(("HRANDFIELD", key, -together, "WITHVALUES"))
        else:
            begin = within_reach(position - (ends[index] - length), length, mean_bytes)
            commands.append(("LRANGE", key, begin, begin + together - 1))
    # Reading may end before all is read, and must not have seen the front only.
    shuffle(commands)
    return commands


def within_reach(index: int, length: int, mean_bytes: float) -> int:
    """An index of a list, near an end of it if *index* is too far from both."""
    reach = int(REACH * length / max(REACH, nodes_of(length, mean_bytes)))
    if index < reach or index >= length - reach:
        return index
    near = index % (2 * reach)
    return near if near < reach else length - 1 - (near - reach)


def _calls(
    store: Store, sources: Sequence[Source], commands: Sequence[Command], per_call: float
) -> Iterator[list[Sampled]]:
    count = max(1, int(per_call))
    heads: dict[object, str] = {source.key: source.heads for source in sources}
    for first in range(0, len(commands), count):
        some = commands[first : first + count]
        found: list[tuple[str, Sampled]] = []
        for command, reply in zip(some, answers(store.server, some), strict=True):
            if command[0] == "LRANGE":
                found += [("", Sampled(b"", stored)) for stored in reply]
            else:
                found += [(heads[command[1]], each) for each in _pairs(reply)]
        yield with_heads(store, found)


def with_heads(store: Store, found: Sequence[tuple[str, Sampled]]) -> list[Sampled]:
    """What is noted of the messages that were *found*, each with its hash of heads, if it has one."""
    if not any(key for key, _ in found):
        return [each for _, each in found]
    lengths = iter(answers(store.server, [("HSTRLEN", key, each.field) for key, each in found if key]))
    texts = iter(
        answers(store.server, [("HGET", key, each.field) for key, each in found if key and not each.stored])
    )
    return [
        each._replace(head_bytes=next(lengths), head=b"" if each.stored else next(texts) or b"")
        if key
        else each
        for key, each in found
    ]


def _pairs(reply: Sequence[Any]) -> list[Sampled]:
    """The fields and values in the reply of a hash."""
    if reply and isinstance(reply[0], (list, tuple)):
        # RESP3 makes pairs of them.
        return [Sampled(*pair) for pair in reply]
    return [Sampled(*pair) for pair in zip(reply[::2], reply[1::2], strict=True)]


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
