"""The takes of a consumer: from which queues, what the server is asked for, and what it replies."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import count
from random import sample
from typing import Any

from redis.exceptions import ResponseError

from kombu_redisdelay.broker.delivery import (
    Acks,
    Delivery,
    Looked,
    Peek,
    Request,
    ServerClock,
    Tags,
    Taken,
    Waiting,
)
from kombu_redisdelay.broker.lease import Membership
from kombu_redisdelay.broker.message import split_stored
from kombu_redisdelay.broker.options import Options
from kombu_redisdelay.broker.portions import BYTES_PER_CALL, MESSAGES_PER_CALL
from kombu_redisdelay.broker.server.scripts import LOOK, TAKE, ScriptCall, try_each
from kombu_redisdelay.broker.server.wire import (
    Argument,
    Command,
    Packed,
    PackedKeys,
    checked,
    clock_ms,
    explained,
    explained_all,
    first_due_ms,
    packed,
    unpacked,
)
from kombu_redisdelay.broker.store import Store
from kombu_redisdelay.broker.unknown_tasks import find_waiting, named

logger = logging.getLogger(__name__)

#: A take works on no more queues than this, as take.lua says.
QUEUES_PER_TAKE = 16

#: The ARGV of take.lua that change with each call. They stand first, in this order.
CHANGING = (
    *("limit", "migrate_limit", "first_tag", "is_repeated", "look_from"),
    *("polled_indices", "known_tasks"),
)

#: This number of peeks looks at all schedules.
PEEKS = 3

#: Queues that one script looks at: a millisecond of the server's time at most.
QUEUES_PER_LOOK = 100


class Takes:
    """Makes the requests of one consumer to queues of one slot, and reads the replies.

    Arguments:
        consumer: its name.
        tags: where its delivery tags come from.
        membership: the queues that it is a consumer of. It joins those that it takes from.
        acks: what it needs to know of what is taken, for the acks.

    Attributes:
        server: the way to the server.
    """

    def __init__(
        self,
        store: Store,
        consumer: str,
        options: Options,
        tags: Tags,
        membership: Membership,
        acks: Acks,
    ) -> None:
        self.server = store.server
        self._store = store
        self._consumer = consumer
        self._options = options
        self._tags = tags
        self._membership = membership
        self._acks = acks
        self._lease = options.lease_policy
        self._fresh_ms = self._lease.fresh_ms
        #: The latest arguments that seldom change, by what they depend on.
        self._usual_of: dict[tuple[bool, bool, str], Packed] = {}
        self._clock = ServerClock()
        #: The request that has no reply yet, or whose reply was lost, or was an error.
        self._unanswered: Request | None = None
        #: Whether the server has replied to the latest take with an error.
        self._is_refused = False
        #: The delivery tag of the first message of the latest take, and how many tags were reserved for it.
        self._first_tag = self._reserved = 0
        self._roster = Roster(store, ())
        #: Of the latest take from other queues than :attr:`queues`, or from the same in another order.
        self._another = self._roster
        #: The queues that the latest take told the server of.
        self._asked = self._roster
        #: The queues that the latest wait was for.
        self._waited_for = self._roster
        #: Where the next take begins to look for queues that were woken.
        self._look_from = 0

    @property
    def queues(self) -> Sequence[str]:
        """The queues that the consumer asks for again and again. It looks at these, and waits for them."""
        return self._roster.queues

    @queues.setter
    def queues(self, queues: Sequence[str]) -> None:
        self._roster = Roster(self._store, queues)

    @property
    def is_unanswered(self) -> bool:
        """Whether a take has no reply yet. It may not even have reached the server."""
        return self._unanswered is not None and not self._is_refused

    def take(self, request: Request) -> Taken:
        """Take messages, after moving what is due to the ready lists."""
        self._join(request)
        return self.taken(request, self._take(request))

    def ask_for(self, request: Request) -> Command:
        """Begin to :meth:`take`, without waiting for the reply.

        Returns:
            The command to send, over any connection. :meth:`taken` must get the reply before anything else
            is taken. If the reply is an error, call :meth:`take` instead, which raises the explained error.
        """
        self._join(request)
        return self.server.prepared(TAKE.command(*self._begin(request)))

    def peek(self) -> Peek:
        """Look whether anything is ready, and when messages of some of the queues are due.

        A consumer does this when nothing has woken it for a while: a token may be lost, a stock producer adds
        none, and the clock may have been set. It costs a fraction of a take. All schedules have been looked
        at after :data:`PEEKS` peeks, or after one if there are few.
        """
        server, roster, count = self.server, self._roster, len(self._roster.queues)
        some = roster.next_slice(count if count <= QUEUES_PER_TAKE else -(-count // PEEKS))
        schedules = [self._store.keys(queue).schedule for queue in some]
        first: list[Command] = [("ZRANGE", schedule, 0, 0, "WITHSCORES") for schedule in schedules]
        exist: list[Command] = [("EXISTS", roster.ready_keys.packed), ("EXISTS", roster.unknown_keys.packed)]
        replies = server.call_all(("TIME",), *exist, *first)
        replies = explained_all(replies, server, [[], [], [], *([key] for key in schedules)])
        try:
            now, any_ready, any_unknown, *rows = checked(replies)
        finally:
            del replies
        now_ms = clock_ms(now)
        due_ms = zip(some, map(first_due_ms, rows), strict=True)
        due = {queue: max(0.0, ms - now_ms) / 1000 for queue, ms in due_ms if ms is not None}
        return Peek(bool(any_ready), due, some, bool(any_unknown))

    def waiting_tasks(self, after: Mapping[str, str]) -> dict[str, tuple[list[Waiting], str] | None]:
        """Find the tasks of which messages wait for a worker that knows them.

        Arguments:
            after: queue -> where to go on; the others begin with their first task.

        Returns:
            For each queue that may have any: some of the tasks, and where to go on, empty if there are no
            more; ``None`` if there are too many such queues, and this one was not looked at.
        """
        server, roster = self.server, self._roster
        keys = roster.unknown_keys
        if not server.call("EXISTS", keys.packed):
            return {}
        each = checked(server.call_all(*(("EXISTS", key) for key in keys)))
        found: dict[str, tuple[list[Waiting], str] | None]
        found = {queue: None for queue, exists in zip(roster.queues, each, strict=True) if exists}
        some = sample(list(found), min(len(found), QUEUES_PER_TAKE))
        return found | find_waiting(self._store, {q: after.get(q, "") for q in some}, forget=True)

    def have_ready(self, groups: Sequence[tuple[str, ...]]) -> list[tuple[str, ...]]:
        """Those of the *groups* of queues that have ready messages. It costs a fraction of a peek."""
        keys = [self._made(group).ready_keys for group in groups]
        replies = self.server.call_all(*(("EXISTS", ready_keys.packed) for ready_keys in keys))
        counts = checked(replies)
        return [group for group, count in zip(groups, counts, strict=True) if count]

    def look(self, some: Sequence[str] | None = None) -> Looked:
        """Look which queues have ready messages, and when the next ones are due: all, or only *some*."""
        store, roster = self._store, self._roster if some is None else self._made(some)
        has_slots = int(self.server.has_slots)
        args: list[Argument] = [store.prefix, store.separator, has_slots, self._consumer, *store.steps]
        calls: list[ScriptCall] = [(LOOK, part.wake_keys, args) for part in roster.parts]
        ready: dict[str, int] = {}
        due: dict[str, float] = {}
        replies = try_each(self.server, calls)
        try:
            for part, (its_ready, its_due) in zip(roster.parts, checked(replies), strict=True):
                ready |= part.pairs(its_ready)
                due |= part.due(its_due)
        except ResponseError as exc:
            raise self._explained(exc, roster.queues) from None
        finally:
            del replies
        return Looked(ready, due)

    def ask_to_write(self) -> None:
        """Ask the server for something that needs the right to write, and changes nothing."""
        self.server.call("HDEL", self._store.keys(self.queues[0]).unacked(self._consumer), "")

    def wait(self, timeout: float) -> Command:
        """The command that waits until one of the queues is woken, *timeout* seconds at most. :meth:`woken`
        tells which."""
        self._waited_for = self._roster
        return ("BZPOPMIN", self._waited_for.wake_keys.packed, timeout)

    def woken(self, reply: Sequence[Any]) -> str:
        """The queue that was woken, from the *reply* to :meth:`wait`."""
        return self._waited_for.woken(reply[0])

    def taken(self, request: Request, reply: Any) -> Taken:
        """The messages that the *reply* to *request* has brought."""
        self._unanswered = None
        roster, no_ack = self._asked, request.no_ack
        now_us, missing, only_migrated, due, more, with_permits, indices, *messages = reply
        self._clock.set(now_us)
        polled = roster.queues if request.polled is None else request.polled
        if missing:
            names = ", ".join(map(repr, polled))
            logger.error("Skipped %d scheduled id(s) of queues %s that had no message", missing, names)
        deliveries = []
        # The script numbers the messages from the first tag on, in the same order.
        for tag, queue, stored in zip(count(self._first_tag), roster.at(indices), messages):
            step, payload = split_stored(stored)
            deliveries.append(Delivery(str(tag), queue, step, payload, queue not in no_ack))
        if only_migrated:
            return self.taken(request, self._take(request, migrate=0))
        taken = Taken(
            deliveries, now_us / 1000, roster.due(due), dict(roster.pairs(more)), roster.at(with_permits)
        )
        # Of more queues, others may have been woken: then it has left some of the polled ones, which have
        # more.
        left_out = taken.more if len(roster.queues) > QUEUES_PER_TAKE else ()
        self._acks.note(polled, left_out, taken)
        return taken

    def _join(self, request: Request) -> None:
        self._membership.join(self._roster_of(request.queues).names, request.no_ack)

    def _take(self, request: Request, migrate: int = MESSAGES_PER_CALL) -> Any:
        keys, args = self._begin(request, migrate)
        try:
            return TAKE(self.server.after_acks(keys[0]), keys, args)
        except ResponseError as exc:
            self._is_refused = True
            raise self._explained(exc, request.queues) from None

    def _begin(self, request: Request, migrate: int = MESSAGES_PER_CALL) -> tuple[PackedKeys, list[Argument]]:
        """Returns KEYS and ARGV of a take."""
        store, roster = self._store, self._roster_of(request.queues)
        polled = roster.queues if request.polled is None else request.polled
        # A take after a lost reply has the same first tag: the script sees that. The lost reply may have
        # brought messages of other queues. These come with a later take of them, or when the lease ends.
        lost = self._unanswered
        is_repeated = lost is not None and lost.limit > 0 and set(lost.queues).issubset(request.queues)
        if not is_repeated:
            self._reserved = max(1, request.limit)
            self._first_tag = self._tags.reserve(self._reserved, self._clock.now_us())
        self._unanswered, self._is_refused = request, False
        if polled and len(polled) < len(roster.queues) and not (is_repeated or request.also_woken):
            roster = Roster(store, polled)
        self._asked = roster
        # Begin with another queue each time: if many are woken, a take finds only the first of them. In
        # strict order, the first ones are the right ones.
        look_from = self._look_from % max(1, len(roster.queues)) + 1 if request.in_turn else 1
        self._look_from += QUEUES_PER_TAKE
        usual = self._usual(request, self._queue_options(roster, request.no_ack))
        limit, known = min(request.limit, self._reserved), self._known(roster, request)
        changing = (
            limit,
            migrate,
            self._first_tag,
            int(is_repeated),
            look_from,
            roster.indices(polled),
            known,
        )
        return roster.wake_keys, [*changing, usual]

    def _usual(self, request: Request, queue_options: str) -> Packed:
        """The arguments that are nearly always the same, packed."""
        about = request.in_turn, request.polls_again, queue_options
        usual = self._usual_of.get(about)
        if usual is None:
            arguments = tuple(self._arguments(request, queue_options)[len(CHANGING) :])
            self._usual_of = {about: (usual := packed(unpacked(arguments)))}
        return usual

    def _arguments(self, request: Request, queue_options: str) -> list[Argument]:
        """ARGV of take.lua, without those that change with each call."""
        return TAKE.arguments(
            self._store.steps,
            **dict.fromkeys(CHANGING, ""),
            byte_limit=BYTES_PER_CALL,
            consumer=self._consumer,
            lease_ms=self._lease.lease_ms,
            fresh_ms=self._fresh_ms,
            prefix=self._store.prefix,
            separator=self._store.separator,
            braces=int(self.server.has_slots),
            step_count=len(self._store.steps),
            in_turn=int(request.in_turn),
            isolated_from=self._options.isolated_after,
            queue_options=queue_options,
            polls_again=int(request.polls_again),
        )

    def _roster_of(self, queues: Sequence[str]) -> Roster:
        if queues is self._roster.queues:
            return self._roster
        names = tuple(queues)
        if names == self._roster.queues:
            return self._roster
        if names != self._another.queues:
            self._another = Roster(self._store, names)
        return self._another

    def _made(self, some: Sequence[str]) -> Roster:
        """A roster of *some* queues. It is not kept, unless it is that of all queues."""
        return self._roster if tuple(some) == self._roster.queues else Roster(self._store, some)

    def _known(self, roster: Roster, request: Request) -> str:
        """The tasks that the consumer knows, as take.lua wants it."""
        if not request.known:
            return ""
        each = ((roster.index(queue), some) for queue, some in request.known.items())
        return named((index, some) for index, some in each if index is not None)

    def _queue_options(self, roster: Roster, no_ack: Collection[str]) -> str:
        """What is particular to some of the queues, as take.lua wants it."""
        if not no_ack and not self._store.expires_ms:
            return ""
        expires_ms, unacked_ttl_ms = self._store.expires_ms, self._lease.unacked_ttl_ms
        return " ".join(
            [
                f"{index} {int(queue in no_ack)} {ms} {unacked_ttl_ms(ms)}"
                for index, queue in enumerate(roster.queues, 1)
                for ms in [expires_ms.get(queue, 0)]
                if queue in no_ack or queue in expires_ms
            ]
        )

    def _explained(self, error: ResponseError, queues: Sequence[str]) -> ResponseError:
        """The *error* of a script about *queues*, or one that says more. The script makes most keys itself,
        so it is looked for among all of them."""
        store = self._store
        keys = [
            key
            for queue in queues
            for k in [store.keys(queue)]
            for key in (
                *store.ready_keys(queue),
                *(*k.waiting, k.wake, k.unacked(self._consumer), k.consumers, k.limits),
            )
        ]
        return explained(error, self.server, keys)


class Roster:
    """The *queues*, in this order. It is made once and used for many commands.

    Attributes:
        wake_keys: the key of the wake zset of each queue.
    """

    def __init__(self, store: Store, queues: Sequence[str]) -> None:
        self._store = store
        self.queues = tuple(queues)
        self.wake_keys = PackedKeys(store.keys(queue).wake for queue in queues)
        self._next = 0
        #: From 1, as in Lua.
        self._index = {queue: index for index, queue in enumerate(queues, 1)}

    @cached_property
    def names(self) -> frozenset[str]:
        """The queues without an order."""
        return frozenset(self.queues)

    @cached_property
    def _by_wake_key(self) -> dict[bytes, str]:
        return {key.encode(): queue for key, queue in zip(self.wake_keys, self.queues, strict=True)}

    @cached_property
    def ready_keys(self) -> PackedKeys:
        """Where ready messages of all queues are."""
        return PackedKeys(key for queue in self.queues for key in self._store.keys_of_ready(queue))

    @cached_property
    def unknown_keys(self) -> PackedKeys:
        """The key of what waits for a worker that knows its task, of each queue."""
        return PackedKeys(self._store.keys(queue).unknown for queue in self.queues)

    def index(self, queue: str) -> int | None:
        """The index of *queue*, ``None`` if it is another one."""
        return self._index.get(queue)

    def next_slice(self, count: int) -> Sequence[str]:
        """The next *count* queues, beginning again at the end."""
        first, self._next = self._next, self._next + count
        if self._next >= len(self.queues):
            self._next = 0
        return self.queues[first : first + count]

    def indices(self, queues: Sequence[str]) -> str:
        """The indices of *queues*, separated by spaces."""
        return " ".join([str(self._index[queue]) for queue in queues])

    def at(self, indices: bytes) -> list[str]:
        """The queues at these *indices*."""
        return [self.queues[int(index) - 1] for index in indices.split()]

    def pairs(self, numbers: bytes) -> Iterator[tuple[str, int]]:
        """Pairs of a queue and a number, from pairs of an index and a number."""
        each = map(int, numbers.split())
        return ((self.queues[index - 1], number) for index, number in zip(each, each, strict=True))

    def due(self, numbers: bytes) -> dict[str, float]:
        """Queue -> seconds, from pairs of an index and microseconds."""
        return {queue: microseconds / 1_000_000 for queue, microseconds in self.pairs(numbers)}

    def woken(self, wake_key: bytes) -> str:
        """The queue that has this wake zset."""
        return self._by_wake_key[wake_key]

    @cached_property
    def parts(self) -> Sequence[Roster]:
        """The same queues, :data:`QUEUES_PER_LOOK` at a time."""
        if len(self.queues) <= QUEUES_PER_LOOK:
            return [self]
        starts = range(0, len(self.queues), QUEUES_PER_LOOK)
        return [Roster(self._store, self.queues[start : start + QUEUES_PER_LOOK]) for start in starts]
