"""What is over, and kept: failed tasks and dead letters. Who reads them, and takes them out, comes here. How
they get there: :mod:`~kombu_redisdelay.broker.keeping`."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import NamedTuple

from redis.exceptions import ResponseError

from kombu_redisdelay.broker.failure import RETURNED, Failure
from kombu_redisdelay.broker.keeping import move_older
from kombu_redisdelay.broker.keys import DEAD, ArchiveKeys
from kombu_redisdelay.broker.members import size_to_move
from kombu_redisdelay.broker.message import split_stored
from kombu_redisdelay.broker.paging import REMOVE, Part, Row, find_all, id_bytes, read_pages, take_out
from kombu_redisdelay.broker.portions import finish, portions
from kombu_redisdelay.broker.server.scripts import CLEAR
from kombu_redisdelay.broker.server.wire import Argument, Command, answers
from kombu_redisdelay.broker.store import Store
from kombu_redisdelay.refusals import refusal_of

logger = logging.getLogger(__name__)

#: One script takes out no more than this.
TASKS_PER_CALL = 50
BYTES_PER_CALL = 256 * 1024

#: Heads that are read together. One may have 100 KB, where a traceback is not in English.
HEADS_PER_CALL = 20

#: How many bytes of a head are read to know the task and the error. Most names are shorter; a head whose
#: names are longer is read whole.
BEGINNING = 256

#: Groups that are read together.
GROUPS_PER_CALL = 500

#: The name of a task that is not noted.
UNKNOWN = "-"

#: The name of a group has these: task and exception, and what was lost if the task has returned.
_WORDS = (2, 3)

#: What is counted of a group. Longer numbers are not ours.
_GROUP = re.compile(rb"(\d{1,15}) (\d{1,15}) (\d{1,15})")

#: No process starts a task as late as this, in seconds since the epoch.
_LATEST = 1e11

#: A head, or its beginning (lua/include/archive.lua). Longer numbers are not ours.
_HEAD = re.compile(rb"(\d{1,18}) (\d{1,18}) (\S+) (\S+) (\S+) (.*)", re.DOTALL)

#: How what else is noted begins, of a task that has returned; and how long that may be.
_HAS_RETURNED = re.compile(rb'\{"returned": "(\w+)"')
_LONGEST_BEGINNING = 30


class Kind(NamedTuple):
    """What failed tasks and dead letters are grouped by.

    Attributes:
        task: name of the task; :data:`UNKNOWN` if it is not noted.
        error: name of the class of the exception. Of a dead letter, the kind of its reason
            (:func:`~kombu_redisdelay.broker.failure.kind_of_reason`).
        returned: what was lost, as in :attr:`~kombu_redisdelay.broker.failure.Failure.returned`.
    """

    task: str
    error: str
    returned: str = ""


@dataclass(frozen=True)
class Archived:
    """A failed task or a dead letter as it is kept.

    Attributes:
        name: the name that it has there: its id, unless another one had that before.
        since_ms: when it failed or died, ms since the epoch, with a fraction.
        head: what is noted of its failure, as it is in Redis; empty if it is gone.
        stored: the message as it is in Redis, with its priority step; empty if it was too large to be kept,
            or was lost.
    """

    queue: str
    name: bytes
    since_ms: float
    head: bytes
    stored: bytes

    @cached_property
    def payload(self) -> bytes:
        return split_stored(self.stored)[1]

    @property
    def is_whole(self) -> bool:
        """Whether the message is there, too, so that it can be requeued. That of a dead letter is always
        kept, but may have been lost."""
        return bool(self.stored)

    @property
    def id(self) -> str:
        return id_in(self.name).decode(errors="replace")

    @cached_property
    def failure(self) -> Failure:
        """What is noted of its failure; of a dead letter, the text is its reason. Another program may have
        written anything: what is not right is missing."""
        found = _HEAD.fullmatch(self.head)
        if found is None:
            return Failure(self.id, UNKNOWN, "-", "", "", "", 0, None)
        _, _, task, error, _, details = found.groups()
        try:
            noted = json.loads(details)
        except (ValueError, RecursionError):
            noted = {}
        noted = noted if isinstance(noted, dict) else {}
        texts = (noted.get(name) for name in ("text", "traceback", "worker"))
        text, traceback, worker = (each if isinstance(each, str) else "" for each in texts)
        tries, started, returned = (noted.get(name) for name in ("tries", "started", "returned"))
        return Failure(
            self.id,
            task.decode(errors="replace"),
            error.decode(errors="replace"),
            text,
            traceback,
            worker,
            tries if isinstance(tries, int) else 0,
            started if isinstance(started, (int, float)) and 0 <= started < _LATEST else None,
            returned if returned in RETURNED else "",
        )

    @property
    def failures(self) -> int:
        """How many deliveries of it had failed before."""
        found = _HEAD.fullmatch(self.head)
        return 0 if found is None else int(found[2])


def id_in(name: bytes) -> bytes:
    """The id in the name of a message that is kept."""
    return name.partition(b"\x1f")[0]


def kind_of(head: bytes) -> Kind | None:
    """The kind in a head, or in the beginning of one; ``None`` if that does not have all of it."""
    found = _HEAD.match(head)
    if found is None or (len(head) == BEGINNING and len(found[6]) < _LONGEST_BEGINNING):
        return None
    lost = _HAS_RETURNED.match(found[6])
    return _kind(found[3], found[4], b"" if lost is None else lost[1])


def _kind(task: bytes, error: bytes, lost: bytes = b"") -> Kind:
    returned = lost.decode(errors="replace")
    is_known = returned in RETURNED
    return Kind(task.decode(errors="replace"), error.decode(errors="replace"), returned if is_known else "")


@dataclass(frozen=True, slots=True)
class Group:
    """Failed tasks or dead letters of one :class:`Kind`.

    Attributes:
        count: how many are kept.
        first_ms, last_ms: when the first and the last one came, ms since the epoch. The first one may not
            be there any more.
    """

    task: str
    error: str
    returned: str
    count: int
    first_ms: int
    last_ms: int


def _are_left_out(queue: str, error: ResponseError) -> None:
    refusal = refusal_of(error)
    if refusal is None or not refusal.is_for_a_while:
        raise error
    logger.warning(
        "Dead letters of queue %r that a worker of an older release keeps in a list are left out: they "
        "cannot be moved: %s",
        queue,
        error,
    )


class Archive:
    """The failed tasks or the dead letters in *store*, queue by queue. Dead letters that an older release
    keeps in a list are moved before they are read.

    Arguments:
        state: ``"failed"`` or ``"dead"``.
    """

    def __init__(self, store: Store, state: str) -> None:
        self._store = store
        self._state = state

    def counts(
        self, queues: Sequence[str], from_ms: float | None = None, before_ms: float | None = None
    ) -> list[int]:
        """How many each of *queues* has that came from *from_ms* on and before *before_ms*, in ms since the
        epoch. ``None`` is no limit. Those that are known to have returned are among them."""
        keys = [self._keys(queue).names for queue in queues]
        if self._state != DEAD:
            return self._counts(keys, from_ms, before_ms)
        if from_ms is None and before_ms is None:
            older = answers(self._store.server, (("LLEN", self._store.keys(queue).dead) for queue in queues))
            return [sum(both) for both in zip(self._counts(keys), older, strict=True)]
        self._gather(queues)
        return self._counts(keys, from_ms, before_ms)

    def returned(
        self, queues: Sequence[str], from_ms: float | None = None, before_ms: float | None = None
    ) -> list[int]:
        """The same of those alone that are known to have returned."""
        return self._counts([self._keys(queue).returned for queue in queues], from_ms, before_ms)

    def _counts(
        self, keys: Iterable[str], from_ms: float | None = None, before_ms: float | None = None
    ) -> list[int]:
        low: Argument = "-inf" if from_ms is None else from_ms
        high = "+inf" if before_ms is None else f"({before_ms}"
        return answers(self._store.server, (("ZCOUNT", key, low, high) for key in keys))

    def _gather(self, queues: Sequence[str]) -> None:
        """Have all of *queues* in the archive. What a server that is full, or that lets this user only read,
        does not allow to move is left out, and the log says so: the others can be read."""
        if self._state == DEAD:
            finish(move_older(self._store, queues, refused=_are_left_out))

    def iter(self, queue: str, part: Part, returned: bool = False) -> Iterator[Archived]:
        """Those of *queue*, read page by page, in the order in which they came.

        Arguments:
            returned: read only what is listed as having returned. An older release may have left names there
                of others.
        """
        for rows in self._pages(queue, part, returned):
            for task in self._with_heads(queue, rows):
                if task.head or task.stored or not returned:
                    yield task

    def heads(self, queue: str, part: Part, returned: bool = False) -> Iterator[list[Row]]:
        """The same, page by page, with the beginnings of their heads in place of messages. This reads much
        less."""
        return self._pages(queue, part, returned, BEGINNING)

    def _pages(
        self, queue: str, part: Part, returned: bool, of_heads: int | None = None
    ) -> Iterator[list[Row]]:
        """Messages, or so many bytes of their heads. What is lost is empty: it is counted, so it is shown."""
        self._gather([queue])
        keys = self._keys(queue)
        names, texts = keys.returned if returned else keys.names, keys.heads if of_heads else keys.messages
        return read_pages(self._store.server, (names, texts, ""), part, of_heads, lost=b"")

    def named(self, queue: str, names: Sequence[bytes]) -> dict[bytes, Archived]:
        """Those of *queue* with these names, as far as they are there, by their names."""
        found = self._find_all([queue], names)
        # A name may be the id of others, too.
        rows = [row for _, name, row in found if row.name == name]
        return {task.name: task for task in self._with_heads(queue, rows)}

    def groups(self, queue: str) -> list[Group]:
        """Those of *queue* by their kinds. If their counts were lost, and are not made again yet, the heads
        are read."""
        self._gather([queue])
        key, cursor = self._keys(queue).groups, ""
        found: dict[Kind, Group] = {}
        others = set()
        while cursor != "0":
            scan: Command = ("HSCAN", key, cursor or "0", "COUNT", GROUPS_PER_CALL)
            [(position, fields)] = answers(self._store.server, [scan])
            cursor = position.decode()
            for name, line in zip(fields[::2], fields[1::2], strict=True):
                words, numbers = name.split(b" "), _GROUP.fullmatch(line)
                # Another program may have written anything.
                if len(words) not in _WORDS or numbers is None:
                    others.add(name)
                    continue
                kind = _kind(*words)
                if bool(kind.returned) == (len(words) > _WORDS[0]):
                    found[kind] = Group(*kind, *map(int, numbers.groups()))
        # As lua/include/archive.lua has it.
        are_counted = b"" in others and b"since" not in others
        return list(found.values()) if are_counted else self._groups_of_heads(queue)

    def _groups_of_heads(self, queue: str) -> list[Group]:
        found: dict[Kind, list[int]] = {}
        for page in self.heads(queue, Part(None, None)):
            kinds = {row.name: kind_of(row.stored) for row in page}
            unclear = [name for name, kind in kinds.items() if kind is None]
            kinds |= {name: kind_of(task.head) for name, task in self.named(queue, unclear).items()}
            for row in page:
                if (kind := kinds[row.name]) is not None:
                    found.setdefault(kind, []).append(round(row.at_ms))
        return [Group(*kind, len(each), min(each), max(each)) for kind, each in found.items()]

    def find_all(self, queues: Sequence[str], ids: Sequence[str]) -> Iterator[Archived]:
        """Those of *queues* with these ids."""
        self._gather(queues)
        for queue, _, row in self._find_all(queues, [*map(id_bytes, ids)]):
            yield from self._with_heads(queue, [row])

    def take_out(
        self,
        queue: str,
        how: str,
        tasks: Iterable[Archived],
        renewed: Callable[[bytes], bytes] = bytes,
        stays: Callable[[Archived, str], object] = lambda task, holder: None,
    ) -> Iterator[Archived]:
        """Do what *how* says, :data:`~kombu_redisdelay.broker.paging.REQUEUE`, ``REMOVE`` or ``FORESEE``,
        with *tasks* of *queue*. Those that are requeued have 0 failures. Yields those that were still there.

        Arguments:
            renewed: makes of a message the one to requeue.
            stays: called with each one that is not requeued because another message holds its key, and the id
                of that message; and with each one that was kept without its message, and no id.
        """
        keys = self._store.keys(queue)
        used = (self._keys(queue).names, keys.ready, keys.wake)

        def movable() -> Iterator[Archived]:
            for task in tasks:
                if how != REMOVE and not task.is_whole:
                    stays(task, "")
                else:
                    yield task

        def of_each(task: Archived) -> tuple[Argument, ...]:
            step, payload = split_stored(task.stored)
            again = b"%d:%b" % (step, renewed(payload)) if how != REMOVE else b""
            return task.name, task.head, again

        parts = portions(movable(), _size, TASKS_PER_CALL, BYTES_PER_CALL)
        return take_out(self._store.server, used, (how, keys.separator), parts, of_each, stays)

    def clear(self, queue: str) -> int | None:
        """Remove all of *queue* at once. Returns how many there were; ``None`` if some are known to have
        returned: then nothing was done."""
        lists = (self._store.keys(queue).dead,) if self._state == DEAD else ()
        args = (len(lists), 1, "over")
        count: int | None = CLEAR(self._store.server, (*lists, *self._keys(queue)), args)
        return count

    def _keys(self, queue: str) -> ArchiveKeys:
        return self._store.keys(queue).archive(self._state)

    def _find_all(self, queues: Sequence[str], ids: Sequence[bytes]) -> Iterator[tuple[str, bytes, Row]]:
        def keys(queue: str) -> tuple[str, str, str]:
            names, messages, duplicates, *_ = self._keys(queue)
            return names, messages, duplicates

        return find_all(self._store.server, keys, queues, ids, lost=b"")

    def _with_heads(self, queue: str, rows: Sequence[Row]) -> Iterator[Archived]:
        if not rows:
            return
        key = self._keys(queue).heads
        names = [row.name for row in rows]
        some = [names[first : first + HEADS_PER_CALL] for first in range(0, len(names), HEADS_PER_CALL)]
        found = answers(self._store.server, [("HMGET", key, *each) for each in some])
        for row, head in zip(rows, chain.from_iterable(found), strict=True):
            yield Archived(queue, row.name, row.at_ms, head or b"", row.stored)


def _size(task: Archived) -> int:
    return len(task.head) + size_to_move(task.stored)
