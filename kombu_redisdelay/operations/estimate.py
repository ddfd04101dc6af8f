"""Estimates from a sample of messages which task has how many bytes, as Redis allocates them."""

from __future__ import annotations

import zlib
from base64 import b64decode
from binascii import Error as NotBase64
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, sqrt
from statistics import fmean, median, pvariance
from typing import Any

from redis.exceptions import RedisError

from kombu_redisdelay.broker.store import Store

#: With its own allocator, jemalloc, Redis has memory in pieces of certain sizes: four between a power of two
#: and the next, and eight up to *SMALL* (``lg-quantum`` of its build is 3). Other allocators waste little.
JEMALLOC, SMALL, QUANTUM, SIZES_BETWEEN = "jemalloc", 64, 8, 4

#: A piece is filled to this part at least, if it is not small.
LEAST_OF_ALLOCATED = 0.75

#: Redis keeps a list in nodes of this size (``list-max-listpack-size`` is -2), and a larger entry in its own
#: node.
NODE_BYTES = 8192

#: What an entry of a list takes besides its text, and the node itself.
_LIST_ENTRY, _LIST_NODE = 10, 40

#: What a text in a hash takes besides, and what its field and its value take together.
_TEXT, _HASH_ENTRY = 6, 44


@dataclass(frozen=True, slots=True)
class Allocator:
    """The allocator of a server.

    Attributes:
        rounds: whether it is jemalloc.
    """

    rounds: bool = True

    def allocated(self, size: int) -> int:
        """The bytes of the piece for *size* bytes."""
        if not self.rounds:
            return size
        step = QUANTUM if size <= SMALL else (1 << (size - 1).bit_length()) // 2 // SIZES_BETWEEN
        return -(-size // step) * step

    def of_list_entry(self, length: int) -> int:
        """The bytes of an entry with a text of this *length* in a list. If it shares its node with others,
        what the node is rounded up by is not in it (:meth:`of_nodes`)."""
        size = length + _LIST_ENTRY
        return size if size <= NODE_BYTES else self.allocated(size) + _LIST_NODE

    def of_hash_entry(self, *lengths: int) -> int:
        """The bytes of a field and its value, with these *lengths*."""
        return _HASH_ENTRY + sum(self.allocated(length + _TEXT) for length in lengths)

    def of_nodes(self, sizes: Iterable[float]) -> float:
        """How many bytes the nodes of a list take for each byte of entries of these *sizes*, of which none
        has a node of its own; 1 if there are none."""
        nodes: list[float] = []
        room = 0.0
        for size in sizes:
            if size > room:
                nodes.append(0)
                room = NODE_BYTES
            nodes[-1] += size
            room -= size
        filled = sum(nodes)
        return sum(self.allocated(int(each)) for each in nodes) / filled if filled else 1.0


def allocator_of(store: Store) -> Allocator:
    """That of the servers. jemalloc, the usual one, if none of them can be asked."""
    for server in store.server.servers():
        try:
            allocator = str(server.info("memory").get("mem_allocator", JEMALLOC))
        except (RedisError, OSError):
            continue
        return Allocator(allocator.startswith(JEMALLOC))
    return Allocator()


#: What a message is: a task, a message that is no task, or something else that another program has written.
#: *UNSEEN* is what must be there, because Redis says so, and was not among those that were read.
TASK, NO_TASK, NOT_A_MESSAGE, UNSEEN = "task", "no task", "not a message", "unseen"

#: So many times the median is large. Of those there may be few in the sample, or none.
LARGE = 8

#: With fewer large ones than this, it is worth to look for more.
ENOUGH = 20

#: So right are the bytes of a message (allocated.py), about. If Redis says that all have this part more than
#: those that were read, there may be larger ones (*PERHAPS*), or there are (*CERTAINLY*).
RIGHT, PERHAPS, CERTAINLY = 0.02, 0.1, 0.25

#: Characters of a body that are compressed, and how many messages of a task are.
CHARACTERS_COMPRESSED, MESSAGES_COMPRESSED = 64 * 1024, 20

#: What a message gets when it is compressed.
_HEADER = len(', "compression": "application/x-gzip"')


@dataclass(frozen=True, slots=True)
class Measured:
    """A message that was read.

    Attributes:
        kind: :data:`TASK`, :data:`NO_TASK` or :data:`NOT_A_MESSAGE`.
        task: the name of its task; ``None`` if it is none.
        size: bytes of memory that it takes.
        length: characters that were read.
        has_expired: whether a worker would discard it.
        saved: how many of its bytes zlib would save; ``None`` if that was not tried.
    """

    kind: str
    task: str | None
    id: str
    size: float
    length: int
    has_expired: bool
    saved: float | None


@dataclass(frozen=True, slots=True)
class Share:
    """What the messages of one kind hold.

    Attributes:
        bytes, messages: about how much, and how many.
        expired: which part of them has expired.
        saved: which part of the bytes zlib would save; ``None`` if that is unknown.
        largest, largest_id: the length of the largest one that was read, and its id.
        seen: how many were read.
    """

    kind: str
    task: str | None
    bytes: float
    messages: float
    expired: float
    saved: float | None
    largest: int
    largest_id: str
    seen: int


@dataclass(frozen=True, slots=True)
class Whole:
    """All messages of a state.

    Attributes:
        messages: how many there are.
        bytes: how many bytes of Redis they take; ``None`` if that is unknown.
        exact: of how many of them Redis has counted the bytes, to tell that.
        each: bytes that each takes beside itself, in the keys that lead to it.
    """

    messages: int
    bytes: int | None
    exact: int
    each: float

    @property
    def own(self) -> float | None:
        """Bytes of the messages themselves."""
        return None if self.bytes is None else max(0.0, self.bytes - self.each * self.messages)


def large_from(looked: Sequence[Measured]) -> float:
    """From how many bytes on a message is large."""
    return LARGE * median(one.size for one in looked)


def lacks_large(looked: Sequence[Measured], whole: Whole) -> bool:
    """Whether there may be large messages, and too few of them were read to tell what they are."""
    if not looked or whole.own is None or len(looked) >= whole.messages:
        return False
    limit = large_from(looked)
    large = [one for one in looked if one.size > limit]
    rest = _rest([one for one in looked if one.size <= limit], len(looked), whole, PERHAPS)
    return len(large) < ENOUGH and (bool(large) or rest > 0)


def shares(
    looked: Sequence[Measured], whole: Whole, more: Sequence[Measured] = (), others: int = 0
) -> list[Share]:
    """What each task holds, by the messages that were *looked* at.

    Arguments:
        more: other large ones.
        others: among how many other messages these were found.
    """
    if not looked:
        of_all = Share(UNSEEN, None, whole.bytes or 0, whole.messages, 0.0, None, 0, "", 0)
        return [of_all] if whole.messages else []
    limit = large_from(looked)
    small = [one for one in looked if one.size <= limit]
    large = [*(one for one in looked if one.size > limit), *more]
    for_small, for_large = whole.messages / len(looked), whole.messages / (len(looked) + others)
    unseen = 0.0
    if whole.own is not None and large:
        factor = _of_large(small, large, len(looked), others, whole) / (_bytes(large) * for_large)
        for_large *= factor
        rest = max(0.0, whole.own - _bytes(large) * for_large)
        is_exact = whole.exact >= whole.messages
        for_small *= rest / (_bytes(small) * for_small) if is_exact else 1
    elif whole.own is not None:
        unseen = _rest(small, len(looked), whole)
        for_small *= (whole.own - unseen) / (_bytes(small) * for_small)
    found: dict[tuple[str, str | None], list[tuple[Measured, float]]] = {}
    for some, each in ((small, whole.messages / len(looked)), (large, for_large)):
        for one in some:
            found.setdefault((one.kind, one.task), []).append((one, each))
    factor = for_small * len(looked) / whole.messages
    rows = [_share(kind, task, some, limit, factor, whole.each) for (kind, task), some in found.items()]
    if unseen:
        rows.append(Share(UNSEEN, None, unseen, 0, 0.0, None, 0, "", 0))
    return rows


def _rest(small: Sequence[Measured], looked: int, whole: Whole, least: float = CERTAINLY) -> float:
    """The bytes that are in larger messages, if no large one was read; 0 if they are less than the *least*
    part of the others."""
    assert whole.own is not None
    if looked >= whole.messages:
        return 0.0
    of_small = _bytes(small) * whole.messages / looked
    spread = sqrt(pvariance([one.size for one in small]) / len(small)) * whole.messages
    if whole.own <= of_small * (1 + least) + 4 * spread:
        return 0.0
    return whole.own - of_small


def _of_large(
    small: Sequence[Measured], large: Sequence[Measured], looked: int, others: int, whole: Whole
) -> float:
    """The bytes of large messages. There are two ways to know: by those that were read, which may be few, and
    by what the small ones leave of the size of all. Each counts by how sure it is."""
    assert whole.own is not None
    read = looked + others
    by_count = _bytes(large) * whole.messages / read
    of_small = _bytes(small) * whole.messages / looked
    rest = max(0.0, whole.own - of_small)
    sizes = [one.size for one in large]
    of_one = by_count**2 * (1 + pvariance(sizes) / fmean(sizes) ** 2)
    doubt = of_one / len(large) if read < whole.messages else 0.0
    rest_doubt = (RIGHT * of_small) ** 2
    if small and looked < whole.messages:
        rest_doubt += pvariance([one.size for one in small]) * whole.messages**2 / len(small)
    if whole.exact < whole.messages:
        rest_doubt += of_one / (whole.exact * len(large) / read)
    if not rest or not doubt + rest_doubt:
        return by_count
    return (by_count * rest_doubt + rest * doubt) / (doubt + rest_doubt)


def _bytes(some: Sequence[Measured]) -> float:
    return float(sum(one.size for one in some))


def _share(
    kind: str,
    task: str | None,
    some: Sequence[tuple[Measured, float]],
    limit: float,
    factor: float,
    each: float,
) -> Share:
    """
    Arguments:
        some: the messages of the task, each with how many there are for it.
        limit: from how many bytes on they are large.
        factor: how many bytes the others take for each byte that was read.
        each: bytes that each takes besides.
    """
    ones = [one for one, _ in some]
    messages = sum(number for _, number in some)
    holds = sum(one.size * number * (factor if one.size <= limit else 1) for one, number in some)
    tried = [(one, number) for one, number in some if one.saved is not None]
    largest = max(ones, key=lambda one: one.length)
    saved = None
    if tried:
        # Of a task whose messages it makes larger, nothing is saved.
        of_tried = sum(one.length * number for one, number in tried)
        saved = max(0.0, sum((one.saved or 0.0) * number for one, number in tried) / of_tried)
    expired = sum(number for one, number in some if one.has_expired) / messages if messages else 0.0
    return Share(
        *(kind, task, holds + each * messages, messages, expired, saved),
        *(largest.length, largest.id, len(ones)),
    )


def saved_by_zlib(message: Mapping[str, Any]) -> tuple[float, int]:
    """How many bytes a message would be smaller if zlib had compressed it, and how many bytes were
    compressed to find out. A large one is compressed in part. Nothing is decompressed: one that is
    compressed already is as small as it gets."""
    headers, body = message["headers"], message["body"]
    if headers.get("compression"):
        return 0.0, 0
    part = body[: CHARACTERS_COMPRESSED - CHARACTERS_COMPRESSED % 4]
    raw = part.encode(errors="replace")
    if message["properties"].get("body_encoding") == "base64":
        try:
            raw = b64decode(raw)
        except NotBase64:
            return 0.0, 0
    if not raw:
        return 0.0, 0
    written = 4 * ceil(len(zlib.compress(raw)) / 3)
    return (1 - written / len(part)) * len(body) - _HEADER, len(raw)
