"""Drives the broker layer in a test, and looks into the keys that it works on."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from typing import Any

from kombu_redisdelay.broker import fair_counts
from kombu_redisdelay.broker.archive import Archive, Archived
from kombu_redisdelay.broker.consumer import Consumer
from kombu_redisdelay.broker.delivery import Delivery, Request
from kombu_redisdelay.broker.failure import Failure
from kombu_redisdelay.broker.fair_counts import look_at_counted
from kombu_redisdelay.broker.keeping import trim
from kombu_redisdelay.broker.keys import DEAD, FAILED, known_queues
from kombu_redisdelay.broker.lease import Lease
from kombu_redisdelay.broker.lease_policy import LeasePolicy
from kombu_redisdelay.broker.members import with_own
from kombu_redisdelay.broker.message import KEEP, Due
from kombu_redisdelay.broker.mover import Mover
from kombu_redisdelay.broker.options import KeepFailed, Options
from kombu_redisdelay.broker.paging import Part
from kombu_redisdelay.broker.portions import RoundTrips, finish
from kombu_redisdelay.broker.ready import Ready
from kombu_redisdelay.broker.recovery import LeaseWatch, Recoverer
from kombu_redisdelay.broker.schedule import mend_schedules
from kombu_redisdelay.broker.server.cluster import ClusterServer
from kombu_redisdelay.broker.server.line import Line
from kombu_redisdelay.broker.server.scripts import TAKE, Script
from kombu_redisdelay.broker.server.single import SingleServer
from kombu_redisdelay.broker.server.wire import checked, pack
from kombu_redisdelay.broker.store import Store
from kombu_redisdelay.broker.takes import Takes
from kombu_redisdelay.broker.unique import (
    Conflict,
    Replacement,
    UniqueKey,
    conflict_in,
    id_in,
    is_continued,
    next_replacement,
    publishing,
)
from tests.broker.database import Database
from tests.dead import dead_letters

SEPARATOR = "\x06\x16"
STEPS = (0, 3, 6, 9)
LEASE_MS = 60_000
WATCH_SECONDS = 30


def never(queue: str, error: Exception) -> None:
    """For what must not be refused."""
    raise error


def a_failure(id: str, error: str = "KeyError", task: str = "tasks.fail") -> Failure:
    """What a worker notes of a failure of the task with this id."""
    return Failure(id, task, error, "'x'", "Traceback ...", "celery@test", 1, 1.5)


class NoHeartbeat(Lease):
    """A lease that is only renewed by taking, so that a test decides when it ends."""

    def _start(self) -> None:
        pass


def park(consumer: Consumer, delivery: Delivery, message_id: str, due_ms: float) -> None:
    """Schedule a message that was taken before it is due."""
    checked(consumer.park([(delivery, message_id, due_ms)]))


def dead_letter(consumer: Consumer, delivery: Delivery, reason: str) -> None:
    """Move a message that cannot be delivered to the dead letters of its queue."""
    checked(consumer.dead_letter([(delivery, reason)]))


def take_out(
    store: Store, queue: str, how: str, wanted: Callable[[Archived], bool] = lambda letter: True
) -> int:
    """Requeue or drop the dead letters that are *wanted*. Returns how many."""
    dead = Archive(store, DEAD)
    # What is requeued may die again meanwhile.
    until = Part(None, store.now_ms() + 1)
    return len(list(dead.take_out(queue, how, filter(wanted, dead.iter(queue, until)))))


def trim_failed(store: Store, keep: KeepFailed | None, queues: Sequence[str]) -> RoundTrips[None]:
    """Drop the failed tasks of *queues* that are too many by *keep*, as maintenance does."""
    limits = None if keep is None else {"count": keep.count, "age": keep.age_ms / 1000, "bytes": keep.bytes}
    return trim(store, Options(keep_failed=limits), queues)


def again_at(due_ms: float) -> Callable[[Ready], tuple[str, float, bool]]:
    """What :meth:`ReadyLists.schedule_all <kombu_redisdelay.broker.ready.ReadyLists.schedule_all>` asks of
    each message: all are due at this time."""

    def tell(message: Ready) -> tuple[str, float, bool]:
        headers = json.loads(message.payload)["headers"]
        return headers["id"], due_ms, is_continued(headers)

    return tell


def line_of(consumer: Consumer, queue: str) -> Line:
    """The kept connection of *consumer* to the server of *queue*."""
    server = consumer.store.server
    if isinstance(server, ClusterServer):
        server = server.server_of(consumer.store.keys(queue).wake)
    assert isinstance(server, SingleServer)
    return server.line


def payload(id: str, **members: Any) -> str:
    """A message as kombu writes it, as far as the broker looks."""
    return json.dumps({"body": "", "headers": {"id": id}, "properties": {}, **members})


def with_count(payload: str, deliveries: int, lost: int = 0) -> str:
    """What *payload*, which begins with a brace, looks like after so many failed deliveries. Of
    these, some were *lost*."""
    if not deliveries:
        return payload
    members = f'"redisdelay-deliveries": {deliveries}, ' + (f'"redisdelay-lost": {lost}, ' if lost else "")
    return f"{{{members}{payload[1:]}"


def with_unknown(payload: str, since: str) -> str:
    """What *payload* looks like while it waits for a consumer that knows its task."""
    return re.sub(r'^{("redisdelay-\w+": \d+, )*', rf'\g<0>"redisdelay-unknown": {since}, ', payload)


def timeless(text: str) -> str:
    """*text* without the time since when it waits for a consumer that knows its task."""
    return re.sub(r'("redisdelay-unknown": )\d+', r"\1?", text)


class Rig:
    """A store in a database, and what is in there."""

    def __init__(self, database: Database, prefix: str | None = None, steps: Sequence[int] = STEPS) -> None:
        self.database = database
        self.client = database.client
        self._prefix, self._steps = database.prefix if prefix is None else prefix, steps
        self.expires_ms: dict[str, int] = {}
        self.store = self.new_store()
        #: Queue and tag of every ack of a message that was not held.
        self.missed_acks: list[tuple[str, str]] = []
        #: The clock of those who watch others.
        self._seconds = 0.0

    # -- what publishers and consumers do --

    def new_store(self) -> Store:
        """The queues, over connections of its own."""
        store = Store(self.database.new_server(), self._prefix, self._steps, SEPARATOR)
        # Every process declares the queues that it uses.
        store.expires_ms = self.expires_ms
        return store

    def consumer(self, name: str = "me", delivery_limit: int = 0, options: Options | None = None) -> Consumer:
        store = self.new_store()
        lease = NoHeartbeat(store.server, name, LeasePolicy(LEASE_MS), Mover(store))
        options = options or Options(delivery_limit=delivery_limit or None, retry_wait=0)
        return Consumer(store, name, lease, options, self._lease_lost)

    def recoverer(
        self, name: str = "other", delivery_limit: int = 0, options: Options | None = None
    ) -> Recoverer:
        watch = LeaseWatch(WATCH_SECONDS, lambda: self._seconds)
        options = options or Options(delivery_limit=delivery_limit or None, retry_wait=0)
        return Recoverer(self.store, name, options, watch)

    def _lease_lost(self, queue: str, tags: Sequence[str]) -> None:
        self.missed_acks += [(queue, tag) for tag in tags]

    def ack(self, consumer: Consumer, queue: str, tag: str) -> bool:
        """Whether the message was still held."""
        self.missed_acks.clear()
        consumer.ack(queue, tag)
        consumer.confirm_acks()
        return (queue, tag) not in self.missed_acks

    def fail(self, consumer: Consumer, queue: str, tag: str, failure: Failure, copy: str = "") -> bool:
        """The same, for a message whose task has failed for good."""
        self.missed_acks.clear()
        consumer.keep_failed(queue, tag, failure, copy.encode())
        consumer.confirm_acks()
        return (queue, tag) not in self.missed_acks

    def recover(self, queue: str, recoverer: Recoverer | None = None) -> int:
        """Have *recoverer* look for consumers that are gone, for long enough."""
        recoverer = recoverer or self.recoverer()
        recovered = finish(recoverer.recover([queue]))
        self.wait(WATCH_SECONDS)
        return recovered + finish(recoverer.recover([queue]))

    def mend(self, queue: str) -> int:
        """Move what has no due time out of its schedule. Returns how many that were."""
        return finish(mend_schedules(self.store, Options(), [queue]))

    def wait(self, seconds: float) -> None:
        """Let so much time pass for those who watch others."""
        self._seconds += seconds

    def put(self, queue: str, *payloads: str, step: int = 0) -> None:
        for text in payloads:
            self.store.run(self.store.put(queue, step, text))

    def schedule(
        self, queue: str, text: str, in_ms: int, *, id: str = "", step: int = 0, on_conflict: str = KEEP
    ) -> None:
        """Schedule *text* to be due in so many ms of the server's time, or that long ago."""
        when = Due(at_ms=max(1, self.database.now_ms() + in_ms))
        self.store.remember(queue)
        self.store.run(self.store.schedule(queue, step, text, when, id or text, on_conflict))

    def publish_unique(
        self,
        queue: str,
        id: str,
        unique: UniqueKey,
        in_ms: int = 0,
        *,
        step: int = 0,
        body: str = "",
        is_continued: bool = False,
        **how: Any,
    ) -> Conflict | None:
        """Publish a message with a key, to be due in so many ms.

        Arguments:
            is_continued: whether it is a retry.
        """
        instead: Replacement | None = Replacement()
        reply: Any = None
        while instead is not None:
            as_id = id_in(instead.name) or id
            headers = {"id": as_id, "retries": int(is_continued)}
            text = payload(as_id, body=body, headers=headers)
            text = with_own(text, 1, unique=unique.member(as_id))
            when = Due(at_ms=instead.at_latest_ms or max(1, self.database.now_ms() + in_ms))
            call = publishing(
                *(self.store, queue, step, text, when, id, unique),
                instead_of=instead.name,
                is_continued=is_continued,
                **how,
            )
            reply = self.store.run(call)
            instead = next_replacement(reply)
        return conflict_in(reply)

    def end_lease(self, queue: str, name: str = "me") -> None:
        """Write that the lease of the consumer has ended."""
        self.client.zadd(self.store.keys(queue).consumers, {name: self.database.now_ms() - 1})

    def exchange(self, consumer: Consumer, request: Request) -> Any:
        """Send *request* as a channel does, over a connection for it alone. Returns the reply, which the
        consumer does not hear of."""
        self.load(TAKE)
        connection = self.store.server.new_connection(self.key(request.queues[0], "wake"))
        try:
            connection.send_packed_command((pack(*takes_of(consumer, request.queues).ask_for(request)),))
            return connection.read_response()
        finally:
            connection.disconnect()

    def load(self, script: Script) -> None:
        """Have every server know *script*."""
        server = self.store.server
        for each in server.servers():
            each.call(*server.prepared(("SCRIPT", "LOAD", script.text)))

    # -- what is in there, as it will be taken --

    def key(self, queue: str, name: str) -> str:
        """The key of *queue* that has this name, such as "schedule" or "unacked:me"."""
        return self.store.keys(queue).schedule.removesuffix("schedule") + name

    def all_keys(self, pattern: str = "*") -> list[bytes]:
        """All keys in the database."""
        return self.database.all_keys(pattern)

    @property
    def known(self) -> str:
        """The key of the known queues."""
        return known_queues(self.store.prefix)

    def ready(self, queue: str, step: int = 0) -> list[str]:
        return _texts(reversed(self.client.lrange(self.store.keys(queue).ready_at(step), 0, -1)))

    def scheduled(self, queue: str) -> list[str]:
        """Scheduled messages as they are stored, first the one that is due first."""
        keys = self.store.keys(queue)
        ids = self.client.zrange(keys.schedule, 0, -1)
        stored = _texts(self.client.hmget(keys.messages, ids)) if ids else []
        assert len(stored) == self.client.hlen(keys.messages), "messages without a due time"
        return stored

    def listed_duplicates(self, queue: str) -> set[bytes]:
        return set(self.client.zrange(self.store.keys(queue).duplicates, 0, -1))

    def unacked(self, queue: str, name: str = "me") -> dict[str, str]:
        held = self.client.hgetall(self.store.keys(queue).unacked(name))
        return dict(zip(_texts(held), _texts(held.values()), strict=True))

    def dead(self, queue: str) -> list[str]:
        """Dead letters, the oldest first, without those of an older release, after looking that all keys
        agree."""
        self._check(queue, DEAD)
        return _texts(dead_letters(self.client, self.store.keys(queue)))

    def older_dead(self, queue: str) -> list[str]:
        """The dead letters of an older release, the oldest first."""
        return _texts(reversed(self.client.lrange(self.store.keys(queue).dead, 0, -1)))

    def failed(self, queue: str) -> list[Archived]:
        """Failed tasks, the oldest first, after looking that all keys agree."""
        return self._check(queue, FAILED)

    def _check(self, queue: str, state: str) -> list[Archived]:
        """All in *state*, after looking that all keys agree."""
        tasks, messages, duplicates, heads, groups, returned = self.store.keys(queue).archive(state)
        in_order = self.client.zrange(tasks, 0, -1)
        by_name = Archive(self.store, state).named(queue, in_order)
        found = [by_name[name] for name in in_order]
        names = {task.name for task in found}
        assert set(self.client.zrange(tasks, 0, -1)) == names
        assert set(self.client.hkeys(messages)) == set(self.client.hkeys(heads)) == names
        assert set(self.client.zrange(duplicates, 0, -1)) == {name for name in names if b"\x1f" in name}
        counted = {group: int(line.split()[0]) for group, line in self.client.hgetall(groups).items()}
        for name, key in ((b"duplicates", duplicates), (b"returned", returned)):
            assert counted.pop(name, 0) == self.client.exists(key)
        assert counted.pop(b"", 0) == sum(len(task.head) + len(task.stored) for task in found)
        groups_of = (f"{task.failure.group} {task.failure.returned}".rstrip() for task in found)
        assert counted == Counter(map(str.encode, groups_of))
        listed = self.client.zrange(returned, 0, -1, withscores=True)
        assert dict(listed) == {task.name: task.since_ms for task in found if task.failure.returned}
        return found

    def tokens(self, queue: str) -> int:
        return int(self.client.zcard(self.store.keys(queue).wake))

    def use_up_token(self, queue: str) -> None:
        self.client.delete(self.store.keys(queue).wake)


def takes_of(consumer: Consumer, queues: Sequence[str]) -> Takes:
    """What makes the requests of *consumer*, which asks for these *queues* again and again."""
    takes = consumer.takes_in(consumer.store.slot(queues[0]))
    if takes.queues != tuple(queues):
        takes.queues = queues
    return takes


def taken(
    consumer: Consumer,
    *queues: str,
    limit: int = 64,
    in_turn: bool = True,
    no_ack: Collection[str] = (),
) -> list[Delivery]:
    return consumer.take(Request(queues, limit, in_turn, no_ack)).deliveries


def texts(deliveries: Sequence[Delivery]) -> list[str]:
    return [delivery.payload.decode() for delivery in deliveries]


def _texts(values: Any) -> list[str]:
    return [value.decode() for value in values]


def check_fair(
    store: Store, queues: Sequence[str], begin_at: dict[str, bytes], searched: Collection[str] = ()
) -> list[str]:
    """Do what maintenance does for fair *queues*. Returns those that have to be searched."""
    look_at_counted(store, queues, {})
    return finish(fair_counts.check_fair(store, queues, begin_at, searched))
