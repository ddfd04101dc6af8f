"""A message that is published: it is read once, and what it says goes with it to the server."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

from kombu_redisdelay import metrics
from kombu_redisdelay.broker.fair_keys import KEY_HEADER, WEIGHT_HEADER, member_of
from kombu_redisdelay.broker.members import DUE, with_own
from kombu_redisdelay.broker.message import (
    CONFLICT_HEADER,
    DELAY_HEADER,
    ETA_HEADER,
    EXPIRES_HEADER,
    KEEP,
    Due,
    deliverable_ms,
    due,
    message_id,
    on_conflict,
)
from kombu_redisdelay.broker.publish_calls import Bindings, Call
from kombu_redisdelay.broker.server.scripts import PUBLISH_UNIQUE, SCHEDULE
from kombu_redisdelay.broker.store import Store
from kombu_redisdelay.broker.unacked import UnackedHashes
from kombu_redisdelay.broker.unique import (
    AT_MOST_HEADER,
    UNIQUE_HEADER,
    WHILE_HEADER,
    Conflict,
    Replacement,
    UniqueKey,
    check_id,
    conflict_in,
    due_at,
    id_in,
    id_of,
    is_continued,
    next_replacement,
    publishing,
    under_id,
    unique_of,
)
from kombu_redisdelay.words import printable

logger = logging.getLogger(__name__)

#: The headers that ask more of the broker than to put a message where it belongs.
ASKING_MORE = frozenset((DELAY_HEADER, CONFLICT_HEADER, UNIQUE_HEADER, WHILE_HEADER, AT_MOST_HEADER))

#: Those, and what a message says to a fair queue.
ASKING = ASKING_MORE | {KEY_HEADER, WEIGHT_HEADER}

#: Headers of Celery's tasks. A retry has the first one, what a task publishes (and what comes after it in a
#: chain, its callbacks, the body of a chord) the second, and members of a group but for the first the third.
_FOLLOWS = ("retries", "parent_id", "group_index")

#: What AMQP calls a message that need not outlive the server. Celery's events and replies are such.
TRANSIENT = 1

#: What may put a message into the schedule.
_SCHEDULING = (SCHEDULE, PUBLISH_UNIQUE)

#: When a message is due that does not say.
_NOW = Due()


def has_times(headers: Mapping[str, Any]) -> bool:
    """Whether a message with these *headers* may have a time from when on, or until when, it is wanted."""
    return bool((headers.get(ETA_HEADER)) or headers.get(EXPIRES_HEADER))


def key_in(headers: Mapping[str, Any]) -> str | None:
    """Weight and key of a message with these *headers* in a fair queue, as the scripts read it; ``None`` if
    it has none.

    Raises:
        ValueError: a header is invalid. The error names it and the value.
    """
    return member_of(headers)


class Outgoing:
    """A message on its way, to one queue or to several.

    Arguments:
        message: the message as kombu has it. Its text is made when it has its delivery tag.
        step: its priority step.
        encode: kombu's encoder: makes the text of a message, which is ASCII.
        is_repeated: whether this process has published it before, perhaps in vain.

    Attributes:
        due: when it is due; ``None`` for at once.
        on_conflict: what to do if another message with its id is scheduled.
        key: weight and key in a fair queue, as the scripts read it; ``None`` if it has none.
        unique: its unique key; ``None`` if it has none.
        text: how it is in Redis, empty before :meth:`write`.
        is_answer: whether it is the answer to another message.
        list_expires_ms: for how long the list that it goes to lives from now on, in ms; 0 for ever.
        outcomes: what became of one with a unique key, in the queues that have it: ``None`` where it was
            accepted. Others have no such attribute.
        tell: to be called when it was published to all its queues; ``None`` if nobody waits for that.

    Raises:
        ValueError: a header is invalid. The error names it and the value.
    """

    due: Due | None = None
    on_conflict = KEEP
    key: str | None = None
    unique: UniqueKey | None = None
    text = ""
    list_expires_ms = 0
    outcomes: list[Conflict | None]
    tell: Callable[[], object] | None = None

    def __init__(
        self,
        message: Mapping[str, Any],
        step: int,
        encode: Callable[[Mapping[str, Any]], str],
        is_repeated: bool = False,
    ) -> None:
        self.message = message
        self.headers = headers = message["headers"] or {}
        self.properties = message["properties"]
        self.step = step
        self.encode = encode
        self.is_repeated = is_repeated
        self.is_answer = "correlation_id" in self.properties and "task" not in headers
        if headers and (has_times(headers) or not ASKING.isdisjoint(headers)):
            self._read()

    def _read(self) -> None:
        self.due = due(self.message)
        if ASKING.isdisjoint(self.headers):
            return
        self.on_conflict, self.unique = on_conflict(self.message), unique_of(self.headers)
        if self.unique is not None:
            if self.on_conflict != KEEP:
                raise ValueError(f"headers {UNIQUE_HEADER!r} and {CONFLICT_HEADER!r} cannot be used together")
            check_id(self.id)
            self.outcomes = []
        try:
            self.key = key_in(self.headers)
        except ValueError as exc:
            if self.is_new_work:
                raise
            # A retry, or what a task publishes, has the headers of that task, which another transport may
            # have published. Nobody there could handle an error.
            logger.warning("Published without a key: %s", printable(str(exc)))

    @cached_property
    def id(self) -> str:
        """The id by which the application knows it."""
        return message_id(self.message)

    @property
    def destination(self) -> tuple[str, str]:
        """The exchange and the routing key that it was published to; empty if it does not say them, as one
        that another program has made and that is put into a queue."""
        info = self.properties.get("delivery_info") or {}
        return info.get("exchange") or "", info.get("routing_key") or ""

    @property
    def partition_key(self) -> str:
        """What tells its partition. Messages with the same unique key are in the same one."""
        return self.id if self.unique is None else self.unique.key

    @property
    def is_new_work(self) -> bool:
        """Whether it may be refused. What follows of other work may not, nor answers and events."""
        if "task" in self.headers:
            return not any(map(self.headers.get, _FOLLOWS))
        properties = self.properties
        return properties.get("delivery_mode") != TRANSIENT and not properties.get("correlation_id")

    def write(self) -> None:
        """Make its text, for a queue."""
        self.text = self.text_of(self.message, self.due, self.id if self.unique else "")

    def text_of(self, message: Mapping[str, Any], when: Due | None, id: str) -> str:
        """How *message* is in Redis: this one, or the same with another *id* or time."""
        unique = None if self.unique is None else self.unique.member(id)
        if DUE in message:
            # Somebody publishes what was read from Redis.
            message = {name: part for name, part in message.items() if name != DUE}
        return with_own(self.encode(message), deliverable_ms(when), self.key, unique)


class Addressed(NamedTuple):
    """A message on its way to one queue.

    Attributes:
        bindings: those that it was routed by, if they come from the cache. The server then checks that they
            are still the same, and replies 0 if not: then nothing was done.
        max_length: how many messages the queue may have, if it may refuse this one.
        is_declared: whether the queue was declared.
    """

    message: Outgoing
    queue: str
    bindings: Bindings | None = None
    max_length: int | None = None
    is_declared: bool = False

    @property
    def is_to_note(self) -> bool:
        """Whether the queue is noted as one in use, once a minute: it was declared, or another program has
        bound it to an exchange. Consumers do not note a misspelt name. A reply is no work."""
        message = self.message
        if self.is_declared:
            return True
        return bool(message.destination[0]) and message.properties.get("delivery_mode") != TRANSIENT

    def call(self, store: Store) -> Call:
        """The call that publishes it."""
        message, queue, bindings, *_ = self
        if message.unique is not None:
            return self._unique_call(store, message.unique, Replacement())
        if message.due is None and message.on_conflict == KEEP:
            expires_ms = message.list_expires_ms
            return store.put(queue, message.step, message.text, bindings=bindings, expires_ms=expires_ms)
        when = message.due or _NOW
        return store.schedule(
            queue, message.step, message.text, when, message.id, message.on_conflict, bindings
        )

    def _unique_call(self, store: Store, unique: UniqueKey, instead: Replacement) -> Call:
        """The same for one with a *unique* key, which takes the place of another, and gets its id."""
        message = self.message
        when, text = message.due, message.text
        if instead.name:
            id = id_in(instead.name)
            renamed = under_id(message.message, id)
            if instead.at_latest_ms:
                renamed = due_at(renamed, instead.at_latest_ms)
                when = due(renamed)
            text = message.text_of(renamed, when, id)
        return publishing(
            *(store, self.queue, message.step, text, when or _NOW, message.id, unique, self.bindings),
            is_continued=is_continued(message.headers),
            is_repeated=message.is_repeated,
            instead_of=instead.name,
        )

    def publish(self, store: Store) -> Any:
        """Publish it. Returns the last reply.

        Raises:
            RedisError: the connection failed, or the server refused.
        """
        call = self.call(store)
        if call[0] in _SCHEDULING:
            store.remember(self.queue)
        reply = store.run(call)
        if self.message.unique is not None:
            reply = self.follow(store, reply)
        if self.is_to_note:
            store.try_to_remember(self.queue)
        return reply

    def follow(self, store: Store, reply: Any) -> Any:
        """Do what the *reply* to its call says, if it has a unique key, until it is published or dropped, and
        note what became of it. Returns the last reply.

        Raises:
            RedisError: the connection failed, or the server refused.
        """
        unique, outcomes = self.message.unique, self.message.outcomes
        if unique is None:
            return reply
        while (instead := next_replacement(reply)) is not None:
            store.remember(self.queue)
            reply = store.run(self._unique_call(store, unique, instead))
        if reply:
            outcomes.append(self._conflict(store, reply))
        return reply

    def _conflict(self, store: Store, reply: Any) -> Conflict | None:
        """What the last *reply* says of another message with the key; ``None`` if there was none."""
        conflict, id = conflict_in(reply), self.message.id
        if conflict is None:
            return None
        metrics.unique_conflict(self.queue, conflict.outcome)
        if not self.message.is_repeated or conflict.is_of(id):
            return conflict
        # The first time, it may have been published, and was taken meanwhile.
        unacked = UnackedHashes(store).iter(self.queue)
        return conflict._replace(has_namesake=any(id_of(each.payload) == id for each in unacked))


class Outbox:
    """Messages on their way to queues, and to fanout exchanges. A channel puts them here, and sends them.

    Attributes:
        messages: all of them.
        addressed: those that go to queues, once for each queue.
        calls: those that publish them. The connection that sends them may know nothing of the queues.
        fanout: those that go to fanout exchanges: topics of PUB/SUB, each with what is published there.
        size: bytes of the messages, about. One that goes to two queues counts twice.
    """

    def __init__(self) -> None:
        self.messages: list[Outgoing] = []
        self.addressed: list[Addressed] = []
        self.calls: list[Call] = []
        self.fanout: list[tuple[str, str]] = []
        self.size = 0

    def __len__(self) -> int:
        return len(self.addressed) + len(self.fanout)

    def add(self, message: Outgoing, addressed: Sequence[Addressed], store: Store) -> None:
        """Add a *message*, which goes to all of its queues or to none. They are those of *store*."""
        self.calls += [each.call(store) for each in addressed]
        self.addressed += addressed
        self.messages.append(message)
        self.size += len(message.text) * len(addressed)

    def add_fanout(self, message: Outgoing, topics: Sequence[str]) -> None:
        """Add a *message* to a fanout exchange, which publishes it to *topics*."""
        self.fanout += [(topic, message.text) for topic in topics]
        self.messages.append(message)
        self.size += len(message.text) * len(topics)

    def publish(self, store: Store) -> list[Any]:
        """Publish what goes to queues, in one round trip.

        Returns:
            The replies, which :meth:`Addressed.follow` gets next. If the server refused one, its reply is a
            ``ResponseError``.

        Raises:
            RedisError: the connection failed. Any of them may have been published.
        """
        both = zip(self.addressed, self.calls, strict=True)
        store.remember(*dict.fromkeys(each.queue for each, call in both if call[0] in _SCHEDULING))
        replies = store.run_all(self.calls)
        store.try_to_remember(*dict.fromkeys(each.queue for each in self.addressed if each.is_to_note))
        return replies
