"""Tells what fills Redis: which queue, state and task holds how many bytes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from redis.exceptions import RedisError, ResponseError

from kombu_redisdelay.broker.archive import Archived
from kombu_redisdelay.broker.keeping import OlderLetter
from kombu_redisdelay.broker.message import message_id, split_stored
from kombu_redisdelay.broker.store import Store
from kombu_redisdelay.operations.access import Access, QueueNames
from kombu_redisdelay.operations.content import Content, has_expired, message_of
from kombu_redisdelay.operations.estimate import (
    LEAST_OF_ALLOCATED,
    MESSAGES_COMPRESSED,
    NO_TASK,
    NODE_BYTES,
    NOT_A_MESSAGE,
    TASK,
    UNSEEN,
    Allocator,
    Measured,
    Share,
    Whole,
    allocator_of,
    lacks_large,
    large_from,
    saved_by_zlib,
    shares,
)
from kombu_redisdelay.operations.memory_report import MemoryUse, StateMemory, TaskMemory, UnreadQueue
from kombu_redisdelay.operations.other_keys import NotAllowed, OtherKeys, other_databases, other_keys
from kombu_redisdelay.operations.queue_bytes import ENTRY_SAMPLES, LIST_SAMPLES, StateBytes, queue_bytes
from kombu_redisdelay.operations.sample import (
    LIST,
    REACH,
    TYPICAL_BYTES,
    Sampled,
    nodes_of,
    rare_large,
    sample,
)
from kombu_redisdelay.operations.server_memory import server_fills
from kombu_redisdelay.operations.states import DEAD, FAILED
from kombu_redisdelay.operations.stats import read_each
from kombu_redisdelay.words import number_of

#: Messages that are read of all queues together, and of one state at least; bytes of them, at most; and
#: bytes that are compressed to learn what zlib would save.
MESSAGES, LEAST_MESSAGES = 1600, 50
BYTES, LEAST_BYTES = 32 * 1024 * 1024, 256 * 1024
COMPRESSED, LEAST_COMPRESSED = 1024 * 1024, 64 * 1024

#: Messages of a state are read if it has this part of all bytes, or is among so many of the largest.
LEAST_SHARE, MOST_STATES = 0.005, 20

#: Why a queue is not read that Redis lets nobody ask about.
NOT_ALLOWED = "NOPERM: this user has no permission to read it"

#: Where large messages are rare, so many times more are looked at to find some. Of these, only large ones are
#: decoded. In a list, all are read, and Redis knows the bytes of all its messages better.
AGAIN_IN_LISTS, AGAIN_IN_HASHES = 3, 25


def memory_use(access: Access, queue: QueueNames = None) -> MemoryUse:
    """What fills Redis, by a sample of messages at random positions.

    Arguments:
        queue: only this queue, or these; then nothing else of the database is looked at.
    """
    store, names = access.store, access.names(queue)
    whole = {name: store.partitions.queue_of(name) for name in names}
    if queue is not None:
        asked = {queue} if isinstance(queue, str) else set(queue)
        whole = {name: name if name in asked else of for name, of in whole.items()}
    unread = dict.fromkeys(access.unreadable(), NOT_ALLOWED) if queue is None else {}
    found: list[StateBytes] = []
    refused: dict[str, ResponseError] = {}
    try:
        found, refused = read_each(queue_bytes, store, names)
    except ResponseError as exc:
        refused = dict.fromkeys(names, exc)
    unread |= {whole[name]: str(error) for name, error in refused.items()}
    left: list[str] = []
    rows, by_queue = [], {}
    share_of = _shares_of_sample(found)
    now_ms, allocator = store.now_ms(), allocator_of(store)
    for part in found:
        row = _Row(part, *_looked_at(store, part, share_of.get(id(part), 0.0), now_ms, allocator, left))
        rows.append(row)
    small = [row.part for row in rows if row.part.messages and not share_of.get(id(row.part))]
    if small:
        count = sum(part.messages for part in small)
        states = number_of(len(small), "small state")
        left.append(f"the messages of {states} of queues: {count:,} in all")
    for name in names:
        its = [row for row in rows if row.part.name == name and row.part.messages]
        messages = sum(row.part.messages for row in its)
        if messages:
            by_queue[name] = sum(row.bytes for row in its), messages
    # Other queues fill the server, too, so some of them foretell nothing.
    servers = server_fills(store, by_queue if queue is None else None)
    others: list[OtherKeys] = []
    if queue is None:
        others = _others(access, names, left)
    else:
        left.append("other queues, the rest of the database, and when it is full")
    return MemoryUse(
        *(_states(rows, whole), _tasks(rows, whole), others, servers, left),
        unread=[UnreadQueue(*each) for each in unread.items()],
    )


@dataclass(frozen=True, slots=True)
class _Row:
    """A state of a queue or partition, and what its tasks hold."""

    part: StateBytes
    shares: Sequence[Share]
    seen: int

    @property
    def was_read(self) -> bool:
        return self.seen > 0

    @property
    def is_about(self) -> bool:
        """Whether some of its messages were read, and not all."""
        return 0 < self.seen < self.part.messages

    @property
    def bytes(self) -> float:
        if self.shares:
            return sum(share.bytes for share in self.shares)
        return float(self.part.bytes or 0)


def _shares_of_sample(parts: Sequence[StateBytes]) -> dict[int, float]:
    """The states whose messages are read, by their identity -> which part of the sample is of them."""
    weights = {
        id(part): float(part.messages * TYPICAL_BYTES if part.bytes is None else part.bytes)
        for part in parts
        if part.messages
    }
    whole = sum(weights.values()) or 1.0
    if _all_fit(parts, whole):
        return dict.fromkeys(weights, 1.0)
    largest = sorted(weights, key=lambda each: -weights[each])
    return {
        each: weights[each] / whole
        for number, each in enumerate(largest)
        if number < MOST_STATES or weights[each] >= LEAST_SHARE * whole
    }


def _all_fit(parts: Sequence[StateBytes], whole: float) -> bool:
    """Whether all messages can be read, so that nothing is an estimate. *whole* is their bytes."""
    return whole <= BYTES and sum(part.messages for part in parts) <= MESSAGES


def _looked_at(
    store: Store, part: StateBytes, of_sample: float, now_ms: float, allocator: Allocator, left: list[str]
) -> tuple[Sequence[Share], int]:
    """What the tasks of a state hold, and how many of its messages were read to tell that."""
    if not of_sample or not part.messages:
        return _unseen(part), 0
    mean = (part.bytes or 0) / part.messages or TYPICAL_BYTES
    is_list = all(source.kind == LIST for source in part.sources)
    # Redis has looked at so many messages to tell their bytes.
    exact = ENTRY_SAMPLES
    if is_list:
        longest = max(nodes_of(source.length, mean) for source in part.sources)
        exact = int(part.messages * min(1.0, LIST_SAMPLES / longest))
        if longest > 2 * REACH:
            left.append(f"the middle of the long list of {part.state} messages of {part.name}")
    whole = Whole(
        part.messages,
        part.bytes,
        exact=min(part.messages, exact),
        each=part.beside / part.messages,
    )
    most = max(LEAST_MESSAGES, round(MESSAGES * of_sample))
    most_bytes = max(LEAST_BYTES, round(BYTES * of_sample))
    to_compress = max(LEAST_COMPRESSED, round(COMPRESSED * of_sample))
    look = _Look(part.state, now_ms, allocator, to_compress)
    looked: list[Measured] = []
    more: list[Measured] = []
    others = 0
    try:
        for found in sample(store, part.sources, most, most_bytes, mean):
            looked.append(look(found))
        if is_list:
            looked = _in_nodes(looked, allocator)
        if lacks_large(looked, whole):
            limit = large_from(looked)
            again: Iterable[Sampled] = ()
            if part.messages <= AGAIN_IN_LISTS * most and (part.bytes or 0) <= most_bytes:
                # All can be read: then nothing is an estimate.
                look = _Look(part.state, now_ms, allocator, to_compress)
                looked = list(map(look, sample(store, part.sources, part.messages, most_bytes, mean)))
                if is_list:
                    looked = _in_nodes(looked, allocator)
            elif is_list:
                again = list(sample(store, part.sources, AGAIN_IN_LISTS * most, most_bytes, mean))
                others = len(again)
            else:
                least = int(limit * LEAST_OF_ALLOCATED)
                again, others = rare_large(store, part.sources, AGAIN_IN_HASHES * most, least, mean)
            more = [look(found) for found in again if look.size(found) > limit]
    except ResponseError as exc:
        left.append(f"{part.state} messages of {part.name}: {exc}")
        if not looked:
            return _unseen(part), 0
    return shares(looked, whole, more, others), len(looked)


def _unseen(part: StateBytes) -> Sequence[Share]:
    """What the tasks of a state hold of which no message was read."""
    size = part.bytes if part.bytes is not None else part.messages * TYPICAL_BYTES
    return [Share(UNSEEN, None, size, part.messages, 0.0, None, 0, "", 0)] if part.messages else []


def _in_nodes(looked: Sequence[Measured], allocator: Allocator) -> list[Measured]:
    """Messages of a list, each with its part of what the nodes are rounded up by."""
    factor = allocator.of_nodes(one.size for one in looked if one.size <= NODE_BYTES)
    return [replace(one, size=one.size * factor) if one.size <= NODE_BYTES else one for one in looked]


class _Look:
    """Looks at the messages of a state."""

    def __init__(self, state: str, now_ms: float, allocator: Allocator, to_compress: int) -> None:
        self._state = state
        self._now_ms = now_ms
        self._allocator = allocator
        self._to_compress = to_compress
        self._tried: dict[str | None, int] = {}

    def size(self, found: Sampled) -> int:
        """The bytes that a message takes with what is noted of it, without the keys that lead to it."""
        if not found.field:
            return self._allocator.of_list_entry(len(found.stored))
        size = self._allocator.of_hash_entry(len(found.field), len(found.stored))
        if found.head_bytes:
            size += self._allocator.of_hash_entry(len(found.field), found.head_bytes)
        return size

    def __call__(self, found: Sampled) -> Measured:
        size, length = self.size(found), len(found.stored) + found.head_bytes
        if found.head and self._state == FAILED:
            failed = Archived("", found.field, 0.0, found.head, found.stored)
            return Measured(TASK, failed.failure.task, failed.id, size, length, False, 0.0)
        if found.field:
            payload = split_stored(found.stored)[1]
        else:
            payload = OlderLetter.of(found.stored).payload if self._state == DEAD else found.stored
        try:
            message = message_of(payload)
        except Exception:
            # Foreign bytes may make the decoder raise any exception.
            return Measured(NOT_A_MESSAGE, None, "", size, length, False, None)
        task = message["headers"].get("task")
        if not isinstance(task, str):
            return Measured(NO_TASK, None, _id(message), size, length, False, self._saved(None, message))
        content = Content("", task, headers=message["headers"])
        return Measured(
            *(TASK, task, _id(message), size, length, has_expired(content, self._now_ms)),
            self._saved(task, message),
        )

    def _saved(self, task: str | None, message: dict[str, Any]) -> float | None:
        tried = self._tried.get(task, 0)
        if self._to_compress <= 0 or tried >= MESSAGES_COMPRESSED:
            return None
        self._tried[task] = tried + 1
        saved, compressed = saved_by_zlib(message)
        self._to_compress -= compressed
        return saved


def _id(message: dict[str, Any]) -> str:
    message["properties"].setdefault("delivery_tag", "")
    return message_id(message)


def _states(rows: Sequence[_Row], whole: dict[str, str]) -> list[StateMemory]:
    groups: dict[tuple[str, str], list[_Row]] = {}
    for row in rows:
        groups.setdefault((whole[row.part.name], row.part.state), []).append(row)
    found = []
    for (queue, state), some in groups.items():
        messages = sum(row.part.messages for row in some)
        read = [share for row in some if row.was_read for share in row.shares]
        known = sum(share.messages for share in read)
        expired = round(sum(share.expired * share.messages for share in read) / known, 4) if known else None
        found.append(
            StateMemory(
                *(queue, state, messages, round(sum(row.bytes for row in some))),
                *(any(row.part.bytes is None for row in some), expired),
            )
        )
    return sorted(found, key=lambda each: -each.bytes)


def _tasks(rows: Sequence[_Row], whole: dict[str, str]) -> list[TaskMemory]:
    groups: dict[tuple[str, str, str, str | None], list[tuple[Share, bool]]] = {}
    for row in rows:
        for share in row.shares:
            key = whole[row.part.name], row.part.state, share.kind, share.task
            groups.setdefault(key, []).append((share, row.is_about))
    found = [
        _of_task(*names, [share for share, _ in some], any(is_about for _, is_about in some))
        for names, some in groups.items()
    ]
    return sorted(found, key=lambda each: -each.bytes)


def _of_task(
    queue: str, state: str, kind: str, task: str | None, some: Sequence[Share], is_about: bool
) -> TaskMemory:
    size, messages = sum(each.bytes for each in some), sum(each.messages for each in some)
    largest = max(some, key=lambda each: each.largest)
    with_zlib = None
    if all(each.saved is not None for each in some):
        with_zlib = round(sum(each.bytes * (1 - (each.saved or 0.0)) for each in some))
    expired = sum(each.expired * each.messages for each in some) / messages if messages else 0.0
    return TaskMemory(
        *(queue, state, kind, task, round(size), round(messages), round(expired, 4), with_zlib),
        *(largest.largest, largest.largest_id, sum(each.seen for each in some), is_about),
    )


def _others(access: Access, names: Sequence[str], left: list[str]) -> list[OtherKeys]:
    store = access.store
    ours = {key.encode() for name in names for key in store.ready_keys(name)}
    begins = f"{store.prefix}redisdelay:".encode()
    servers = store.server.servers()
    try:
        databases = other_databases(servers, access.database)
        left += [f"{name}, another database of this server" for name in databases]
        stock = () if store.server.has_slots else access.stock_keys
        return other_keys(
            servers,
            lambda key: key in ours or key.startswith(begins),
            stock,
            access.database,
            _results(access),
        )
    except (NotAllowed, ResponseError) as exc:
        left.append(f"the rest of the database: {exc}")
    return []


def _results(access: Access) -> list[str]:
    """What the keys of results begin with."""
    try:
        prefix = access.app.backend.task_keyprefix
    except (AttributeError, RedisError):
        return []
    return [prefix.decode() if isinstance(prefix, bytes) else str(prefix)]
