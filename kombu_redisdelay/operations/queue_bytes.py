"""Asks how many bytes of Redis each state of a queue has, and where its messages are."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from redis.exceptions import ResponseError

from kombu_redisdelay.broker.fair_keys import asking_for_sorted, greatest_keys, some_keys, sorted_of
from kombu_redisdelay.broker.keys import ArchiveKeys
from kombu_redisdelay.broker.portions import NAME_BYTES_PER_CALL, portions
from kombu_redisdelay.broker.server.wire import Command, Packer, answers
from kombu_redisdelay.broker.store import Store
from kombu_redisdelay.operations.sample import HASH, LIST, Source
from kombu_redisdelay.operations.states import ARCHIVED, DEAD, FINISHED, READY, SCHEDULED, UNACKED

#: Queues that are looked at in one round trip.
QUEUES_PER_CALL = 50

#: Keys whose memory is asked for in one round trip.
KEYS_PER_CALL = 500

#: Keys of a fair queue whose lists are looked at: those with the most messages, and some of the others.
GREATEST_KEYS = OTHER_KEYS = 250

#: ``MEMORY USAGE`` looks at so many entries of a hash or a zset, or nodes of a list, from its head, and goes
#: by their mean.
ENTRY_SAMPLES, LIST_SAMPLES = 5_000, 50_000

#: What is noted of a queue beside its messages, as a state: keys that are held, limits, its history.
NOTES = "notes"


@dataclass(frozen=True, slots=True)
class StateBytes:
    """One state of a queue, or of a partition. Or a part of it: what the greatest keys of a fair queue have,
    and what the others have.

    Attributes:
        name: of the queue or partition.
        state: the name of the state, or :data:`NOTES`.
        messages: how many there are. Lines of finished tasks are none.
        bytes: of Redis that they take, with *beside*; ``None`` if ``MEMORY USAGE`` is not allowed.
        beside: bytes of the keys that lead to them, such as the schedule.
        sources: the keys that have the messages, or, of a fair queue, some of them.
    """

    name: str
    state: str
    messages: int
    bytes: int | None
    beside: int = 0
    sources: Sequence[Source] = ()


def queue_bytes(store: Store, names: Sequence[str]) -> list[StateBytes]:
    """Each state of these queues or partitions that has something. Makes a few round trips for every
    :data:`QUEUES_PER_CALL` of them, however many messages there are.

    Raises:
        ResponseError: a key has something else.
    """
    return [
        each
        for some in portions(names, len, QUEUES_PER_CALL, NAME_BYTES_PER_CALL)
        for each in _of_some(store, some)
    ]


def ready_sources(store: Store, name: str) -> list[Source]:
    """The lists with the ready messages of a queue or partition, as :attr:`StateBytes.sources`."""
    return [source for part in _parts(store, [name]) if part.state == READY for source in part.sources]


@dataclass(frozen=True, slots=True)
class _Part:
    """A state of a queue, and its keys.

    Attributes:
        messages: how many there are.
        sources: the keys that have them, as :attr:`StateBytes.sources`.
        beside: its other keys. Some may not exist.
    """

    name: str
    state: str
    messages: int
    sources: list[Source]
    beside: Sequence[str]

    @property
    def usages(self) -> list[Command]:
        """What asks for the bytes of its messages, and of what is noted of each."""
        heads = [source.heads for source in self.sources if source.heads]
        return [*(_usage(source.key, source.kind) for source in self.sources), *map(_usage, heads)]


def _parts(store: Store, names: Sequence[str]) -> Iterator[_Part]:
    """Those that have messages, and the notes."""
    keys = [store.keys(name) for name in names]
    consumers = answers(store.server, (("ZRANGE", its.consumers, 0, -1) for its in keys))
    of_messages = [
        [
            *((READY, LIST, key) for key in store.ready_keys(name)),
            (SCHEDULED, HASH, its.messages),
            *((state, HASH, its.archive(state).messages) for state in ARCHIVED),
            # Those of an older release.
            (DEAD, LIST, its.dead),
            *((UNACKED, HASH, its.unacked(member.decode(errors="replace"))) for member in members),
        ]
        for name, its, members in zip(names, keys, consumers, strict=True)
    ]
    commands: list[Command] = []
    for name, asked in zip(names, of_messages, strict=True):
        commands += [("LLEN" if kind == LIST else "HLEN", key) for _, kind, key in asked]
        commands.append(asking_for_sorted(store, name))
    replies = iter(answers(store.server, commands))
    for name, its, asked in zip(names, keys, of_messages, strict=True):
        sources: dict[str, list[Source]] = {}
        for (state, kind, key), length in zip(asked, islice(replies, len(asked)), strict=True):
            if length:
                is_kept = state in ARCHIVED and kind == HASH
                heads = its.archive(state).heads if is_kept else ""
                sources.setdefault(state, []).append(Source(kind, key, length, heads))
        counts = {state: sum(each.length for each in some) for state, some in sources.items()}
        steps = {step: count for step, count in sorted_of(store, next(replies)).items() if count > 0}
        if steps:
            greatest, others = _of_keys(store, name, steps)
            of_others = 0
            if others:
                # Their messages may be of another size.
                of_others = max(0, sum(steps.values()) - sum(source.length for source in greatest))
                yield _Part(name, READY, of_others, others, ())
            counts[READY] = counts.get(READY, 0) + sum(steps.values()) - of_others
            sources.setdefault(READY, []).extend(greatest)
        index = {
            SCHEDULED: (its.schedule, its.duplicates, its.unknown),
            **{state: _beside(its.archive(state)) for state in ARCHIVED},
            UNACKED: (its.unacked_keys,),
        }
        for state, some in sources.items():
            yield _Part(name, state, counts[state], some, index.get(state, ()))
        counted = {key for _, _, key in asked}.union(*(index.get(state, ()) for state in sources))
        counted |= {source.heads for some in sources.values() for source in some}
        yield _Part(name, FINISHED, 0, [], [its.finished])
        counted.add(its.finished)
        notes = [*(key for key in its.own if key not in counted), *map(its.turns, steps)]
        yield _Part(name, NOTES, 0, [], notes)


def _beside(keys: ArchiveKeys) -> tuple[str, ...]:
    """The keys that lead to what is kept."""
    return keys.names, keys.duplicates, keys.groups, keys.returned


def _of_keys(store: Store, name: str, steps: Mapping[int, int]) -> tuple[list[Source], list[Source]]:
    """The lists of the greatest keys of a fair queue, and those of some others.

    Arguments:
        steps: priority step -> how many messages are sorted by key.
    """
    greatest = greatest_keys(store, name, GREATEST_KEYS)
    found = _lists(store, name, steps, greatest)
    if sum(source.length for source in found) >= sum(steps.values()):
        return found, []
    others = set(some_keys(store, name, OTHER_KEYS)).difference(greatest)
    return found, _lists(store, name, steps, others)


def _lists(store: Store, name: str, steps: Iterable[int], of_keys: Iterable[str]) -> list[Source]:
    lists = [store.keys(name).key_list(step, key) for key in of_keys for step in steps]
    lengths = answers(store.server, (("LLEN", key) for key in lists))
    return [Source(LIST, key, length) for key, length in zip(lists, lengths, strict=True) if length]


def _of_some(store: Store, names: Sequence[str]) -> Iterator[StateBytes]:
    parts = list(_parts(store, names))
    commands: list[Command] = []
    for part in parts:
        commands += [*part.usages, *map(_usage, part.beside)]
    usages = memory_usages(store.server, commands)
    for part in parts:
        with_messages = _sum(islice(usages, len(part.usages)))
        beside = _sum(islice(usages, len(part.beside)))
        looked_at = sum(source.length for source in part.sources)
        size = None
        if with_messages is not None and beside is not None:
            # A fair queue may have more keys.
            size = beside + round(with_messages * max(1.0, part.messages / max(1, looked_at)))
        if part.messages or size:
            yield StateBytes(
                *(part.name, part.state, part.messages, size),
                *(beside or 0, part.sources),
            )


def _usage(key: str, kind: str = HASH) -> Command:
    return ("MEMORY", "USAGE", key, "SAMPLES", LIST_SAMPLES if kind == LIST else ENTRY_SAMPLES)


def memory_usages(server: Packer, commands: Sequence[Command]) -> Iterator[int | None]:
    """The bytes in the replies to *commands*, 0 for a key that does not exist, ``None`` where it is not
    allowed."""
    for first in range(0, len(commands), KEYS_PER_CALL):
        for reply in server.call_all(*commands[first : first + KEYS_PER_CALL]):
            yield None if isinstance(reply, ResponseError) else int(reply or 0)


def _sum(numbers: Iterable[int | None]) -> int | None:
    found = list(numbers)
    return None if None in found else sum(number or 0 for number in found)
