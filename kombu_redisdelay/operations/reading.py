"""Reads the messages of queues, in each state, from the beginning or from a place on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from functools import cache
from hashlib import sha1
from operator import attrgetter
from typing import Any

from kombu_redisdelay.broker import members
from kombu_redisdelay.broker.dead import Buried, Graveyard
from kombu_redisdelay.broker.held import Held, Holders
from kombu_redisdelay.broker.identity import host_and_pid, is_certainly_gone, process_of, worker_of
from kombu_redisdelay.broker.ready import Ready, ReadyLists
from kombu_redisdelay.broker.schedule import Schedule, Scheduled
from kombu_redisdelay.broker.store import Store
from kombu_redisdelay.broker.times import from_ms
from kombu_redisdelay.broker.upcoming import Place, upcoming
from kombu_redisdelay.operations.access import Access
from kombu_redisdelay.operations.content import Content
from kombu_redisdelay.operations.queued import DEAD, HELD, READY, SCHEDULED, Found, QueuedMessage

FoundMessage = Found[QueuedMessage]


class Reading:
    """Reads from a broker, until *access* is closed. *names* are those of queues or partitions."""

    def __init__(self, access: Access) -> None:
        self._access = access

    @property
    def store(self) -> Store:
        return self._access.store

    def in_state(
        self, state: str, names: Sequence[str], after_ms: float | None, before_ms: float | None
    ) -> Iterator[FoundMessage]:
        """The messages in one state. The times, in ms since the epoch, are for scheduled ones."""
        read: dict[str, Callable[[], Iterator[FoundMessage]]] = {
            SCHEDULED: lambda: self.scheduled(names, after_ms, before_ms),
            READY: lambda: self.ready(names),
            HELD: lambda: self.held(names),
            DEAD: lambda: self.dead(names),
        }
        return read[state]()

    def scheduled(
        self, names: Sequence[str], after_ms: float | None, before_ms: float | None
    ) -> Iterator[FoundMessage]:
        return (found for found, _ in self.scheduled_with_places(names, after_ms, before_ms))

    def scheduled_with_places(
        self,
        names: Sequence[str],
        after_ms: float | None = None,
        before_ms: float | None = None,
        after: Place | None = None,
        *,
        last_first: bool = False,
    ) -> Iterator[tuple[FoundMessage, Place]]:
        """Scheduled messages, each with its place.

        Arguments:
            after: only messages that come after this place. Its queue is one of *names*.
            last_first: whether those that are due last come first.
        """
        for found in upcoming(self.store, names, after_ms, before_ms, after, last_first=last_first):
            yield self._of_scheduled(found), Place(found.due_ms, found.queue, found.member)

    def ready(self, names: Sequence[str], texts: Sequence[str] = (), skip: int = 0) -> Iterator[FoundMessage]:
        """Ready messages, after the first *skip* of the first queue. With *texts*, only those that contain
        one of them."""
        lists = ReadyLists(self.store)
        # To go through one of thousands of queues costs several round trips, and most have nothing.
        for name, count in zip(names, lists.counts(names), strict=True):
            if count:
                yield from map(self._of_ready, lists.iter(name, texts, skip))
            skip = 0

    def held(self, names: Sequence[str]) -> Iterator[FoundMessage]:
        # One process may hold thousands of messages.
        is_gone = cache(is_certainly_gone)
        holders = Holders(self.store)
        for name, count in zip(names, holders.counts(names), strict=True):
            if count:
                yield from (self._of_held(found, is_gone) for found in holders.iter(name))

    def dead(self, names: Sequence[str], skip: int = 0) -> Iterator[FoundMessage]:
        """Dead letters, after the first *skip* of the first queue."""
        return (self._of_dead(*found) for found in Graveyard(self.store).walk_all(names, skip))

    def newest_dead(self, name: str, left: int | None) -> Iterator[tuple[FoundMessage, int]]:
        """Dead letters, the newest first. See :meth:`Graveyard.newest
        <kombu_redisdelay.broker.dead.Graveyard.newest>`."""
        for found, still_left in Graveyard(self.store).newest(name, left):
            yield self._of_dead(found, True), still_left

    def with_id(self, names: Sequence[str], id: str, texts: Sequence[str]) -> Iterator[FoundMessage]:
        """The scheduled messages with an id, then all others that may have it.

        Arguments:
            texts: every message with this id contains one of them.
        """
        yield from self.scheduled_with_ids(names, [id])
        yield from self.ready(names, texts)
        yield from self.held(names)
        yield from self.dead(names)

    def scheduled_with_ids(self, names: Sequence[str], ids: Sequence[str]) -> Iterator[FoundMessage]:
        """The scheduled messages with these ids, in the order of their due times."""
        found = [message for _, message in Schedule(self.store).find_all(names, ids)]
        return map(self._of_scheduled, sorted(found, key=attrgetter("due_ms")))

    def _of_scheduled(self, found: Scheduled) -> Found[QueuedMessage]:
        content = content_of_scheduled(found)
        due, reason = from_ms(found.due_ms), ""
        if content.unknown_ms is not None:
            since = from_ms(content.unknown_ms)
            reason = f"Since {since:%Y-%m-%d %H:%M:%S} UTC it waits for a worker that knows its task."
        return self._found(found.queue, content, SCHEDULED, found.payload, due=due, reason=reason)

    def _of_ready(self, found: Ready) -> Found[QueuedMessage]:
        return self._found(
            found.queue,
            content_of(found.payload),
            READY,
            found.payload,
            is_sure=found.is_sure,
            place=found.place,
            waiting_since=waiting_since(found.payload),
        )

    def _of_held(self, found: Held, is_gone: Callable[[str], bool]) -> Found[QueuedMessage]:
        host, pid = host_and_pid(found.consumer)
        return self._found(
            found.queue,
            content_of(found.payload),
            HELD,
            found.payload,
            host=host,
            pid=pid,
            worker=worker_of(found.consumer),
            held_since=None if found.since_ms is None else from_ms(found.since_ms),
            lease_has_ended=found.lease_has_ended,
            process_is_gone=is_gone(process_of(found.consumer)),
        )

    def _of_dead(self, found: Buried, is_sure: bool) -> Found[QueuedMessage]:
        return self._found(
            found.queue,
            content_of(found.payload),
            DEAD,
            found.payload,
            is_sure=is_sure,
            died=from_ms(found.died_ms),
            reason=found.reason,
            deliveries=found.deliveries,
        )

    def _found(
        self,
        name: str,
        content: Content,
        state: str,
        payload: bytes,
        *,
        is_sure: bool = True,
        **of_state: Any,
    ) -> Found[QueuedMessage]:
        of_state.setdefault("deliveries", content.deliveries)
        queue = self.store.partitions.queue_of(name)
        message = QueuedMessage(
            id=content.id,
            queue=queue,
            state=state,
            task=content.task,
            args=content.args,
            kwargs=content.kwargs,
            priority=content.priority,
            size=len(payload),
            headers=content.headers,
            payload=payload,
            **of_state,
        )
        identity = (queue, content.tag or payload, content.id)
        return Found(message, identity, content.tag is not None, is_sure)


def content_of_scheduled(found: Scheduled) -> Content:
    """What a scheduled message says of itself."""
    return Content.of(found.payload, otherwise=found.member.decode(errors="replace"))


def content_of(payload: bytes) -> Content:
    """What the bytes of a message say of it."""
    return Content.of(payload, otherwise=sha1(payload, usedforsecurity=False).hexdigest())


def waiting_since(payload: bytes) -> datetime | None:
    """Since when a ready message may be delivered; ``None`` if another transport has published it."""
    since_ms = members.due_ms(payload)
    return None if since_ms is None else from_ms(since_ms)
