"""A message with a unique key on its way to a queue, and what its publisher is told of it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from functools import partial
from typing import Any, NamedTuple

from kombu_redisdelay import metrics
from kombu_redisdelay.broker.members import text_with_due_and_key
from kombu_redisdelay.broker.message import (
    CONFLICT_HEADER,
    DELAY_HEADER,
    ETA_HEADER,
    KEEP,
    Due,
    deliverable_ms,
    due,
    from_ms,
    message_id,
    on_conflict,
)
from kombu_redisdelay.broker.publish_calls import Bound, Call
from kombu_redisdelay.broker.store import Store
from kombu_redisdelay.broker.unacked import UnackedHashes
from kombu_redisdelay.broker.unique import (
    REPLACED,
    UNIQUE_HEADER,
    Conflict,
    Replacement,
    UniqueKey,
    check_id,
    conflict_in,
    id_in,
    id_of,
    is_continued,
)
from kombu_redisdelay.transport.admission import published_key

#: The place of a message that replaces none.
OWN = Replacement()

#: When a message is due that does not say.
_NOW = Due()


class PublishedTag(str):
    """A delivery tag that a message got when it was published by this process.

    kombu publishes a message again with the same properties. An application may publish one that it has
    received, with the tag that it came with.
    """

    __slots__ = ()


def is_repeated(message: Mapping[str, Any]) -> bool:
    """Whether this process has published *message* before, perhaps in vain."""
    return isinstance(message["properties"].get("delivery_tag"), PublishedTag)


class KeyedMessage(NamedTuple):
    """A message that has a key, and the queue that it goes to.

    Attributes:
        step: its priority step.
        encode: makes the text of a message.
        fate: where to note what became of it; ``None`` for nowhere.
    """

    store: Store
    queue: str
    step: int
    message: Mapping[str, Any]
    unique: UniqueKey
    bound: Bound | None
    encode: Callable[[Any], str]
    id: str
    is_repeated: bool
    fate: Fate | None

    def check(self) -> None:
        """Raise a ``ValueError`` if it cannot have a key."""
        if CONFLICT_HEADER in self.message["headers"] and on_conflict(self.message) != KEEP:
            raise ValueError(f"headers {UNIQUE_HEADER!r} and {CONFLICT_HEADER!r} cannot be used together")
        check_id(self.id)

    def call(self, instead: Replacement = OWN) -> Call:
        """The call that publishes it.

        Arguments:
            instead: of which message it takes the place, and whose id it gets.

        Raises:
            ValueError: its due time is invalid.
        """
        message, id = self.message, self.id
        if instead.name:
            id = id_in(instead.name)
            message = under_id(message, id)
        if instead.at_latest_ms:
            message = due_at(message, instead.at_latest_ms)
        when = due(message)
        key, unique = published_key(message), self.unique.member(id)
        text = text_with_due_and_key(self.encode(message), deliverable_ms(when), unique, key)
        return self.store.publish_unique(
            self.queue,
            self.step,
            text,
            when or _NOW,
            self.id,
            self.unique,
            self.bound,
            is_continued=is_continued(message["headers"]),
            is_repeated=self.is_repeated,
            instead_of=instead.name,
        )

    def conflict_in(self, reply: Any) -> Conflict | None:
        """What the last *reply* says of another message with the key; ``None`` if there was none."""
        conflict = conflict_in(reply)
        if conflict is None or not self.is_repeated or conflict.is_of(self.id):
            return conflict
        # The first time, it may have been published, and was taken meanwhile.
        unacked = UnackedHashes(self.store).iter(self.queue)
        return conflict._replace(has_namesake=any(id_of(each.payload) == self.id for each in unacked))


def due_at(message: Mapping[str, Any], due_ms: int) -> dict[str, Any]:
    """*message* with another due time, ms since the epoch. A worker looks at the ``eta`` of a task."""
    headers = {**message["headers"], ETA_HEADER: from_ms(due_ms).isoformat()}
    headers.pop(DELAY_HEADER, None)
    return {**message, "headers": headers}


def under_id(message: Mapping[str, Any], id: str) -> dict[str, Any]:
    """*message* with another *id*, wherever it says its own."""
    own = message_id(message)
    headers, properties = dict(message["headers"] or {}), dict(message["properties"])
    for where, names in ((headers, ("id", "root_id")), (properties, ("message_id", "correlation_id"))):
        where.update({name: id for name in names if where.get(name) == own})
    if message_id({"headers": headers, "properties": properties}) != id:
        # It was known by its delivery tag.
        properties["message_id"] = id
    return {**message, "headers": headers, "properties": properties}


class Fate:
    """What became of the message with this *id* in the queues that it went to.

    Attributes:
        learned: called with this when the message is published.
        channel: that it was published over; ``None`` before that.
        properties: those that it was published with.
    """

    def __init__(self, id: str) -> None:
        self.id = id
        self.learned: Callable[[Fate], object] | None = None
        self.channel: Any = None
        self.properties: Mapping[str, Any] = {}
        self._outcomes: list[Conflict | None] = []

    def note(self, conflict: Conflict | None) -> None:
        """Note what became of it in one more queue."""
        self._outcomes.append(conflict)

    @property
    def is_accepted(self) -> bool:
        """Whether a queue has accepted it."""
        return None in self._outcomes

    @property
    def conflict(self) -> Conflict | None:
        """The result for all queues: none if one of them has accepted it, and it counts as dropped only if it
        was dropped in each of them."""
        if not self._outcomes or self.is_accepted:
            return None
        conflicts = [each for each in self._outcomes if each is not None]
        return next((each for each in conflicts if each.outcome == REPLACED), conflicts[0])

    @property
    def has_ended(self) -> bool:
        """Whether no task will run under its id: it was dropped, or runs under the id of the task that it has
        replaced, and no other task is known to have its id."""
        conflict = self.conflict
        return conflict is not None and not any(each and each.is_of(self.id) for each in self._outcomes)

    def tell(self) -> None:
        """Tell the result to the publisher that waits for it."""
        if self.learned is not None:
            self.learned(self)


_wanted: ContextVar[Fate | None] = ContextVar("redisdelay_fate", default=None)


class Noting:
    """What becomes of the message of *fate* is noted there, if it is published in the ``with`` block.

    Each task with a key is published in one: :func:`contextlib.contextmanager` takes three times as long.
    """

    __slots__ = ("_fate", "_token")

    def __init__(self, fate: Fate | None) -> None:
        self._fate = fate

    def __enter__(self) -> None:
        self._token = _wanted.set(self._fate)

    def __exit__(self, *exc_info: object) -> None:
        _wanted.reset(self._token)


def fate_by_hand(headers: Mapping[str, Any]) -> Fate | None:
    """What becomes of a task that is sent without its class: if it was dropped in each queue, its id ends as
    revoked. ``None`` if it is no task, or another caller waits for it already."""
    id = headers.get("id")
    if "task" not in headers or not isinstance(id, str) or "celery" not in sys.modules:
        return None
    if wanted_fate(id) is not None:
        return None
    # It needs Celery, which need not be there.
    from kombu_redisdelay.transport.unique_results import end_by_hand

    fate = Fate(id)
    fate.learned = partial(end_by_hand, bool(headers.get("ignore_result")))
    return fate


def wanted_fate(id: str) -> Fate | None:
    """Where to note what becomes of the message with this *id*; ``None`` if no block of :class:`Noting` is
    for it."""
    fate = _wanted.get()
    return fate if fate is not None and fate.id == id else None


def tell(queue: str, headers: dict[str, Any], id: str, conflict: Conflict | None, fate: Fate | None) -> None:
    """Note what became of a message in one queue.

    Arguments:
        fate: where to note it; ``None`` if nothing waits for it.
    """
    if fate is not None:
        fate.note(conflict)
    if conflict is None:
        return
    metrics.unique_conflict(queue, conflict.outcome)
    if "celery" in sys.modules:
        # It needs Celery, which need not be there.
        from kombu_redisdelay.transport.unique_results import tell_celery

        tell_celery(headers, id, conflict)
