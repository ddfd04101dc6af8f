"""The public API over scheduled messages: look at them, cancel them, move them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from heapq import merge
from itertools import islice
from operator import attrgetter
from typing import Any

from kombu_redisdelay.broker.schedule import IDS_PER_CALL, Schedule, Scheduled
from kombu_redisdelay.broker.times import LATEST_MS, from_ms, to_ms
from kombu_redisdelay.operations.access import Access, check_limit
from kombu_redisdelay.operations.content import Content, is_task, with_due, without_due
from kombu_redisdelay.public import public


@public
@dataclass(frozen=True, slots=True)
class DelayedMessage:
    """A message that is scheduled and not delivered yet.

    Attributes:
        id: the id to cancel it by. For a Celery task, this is the task id. For other messages, it is the
            ``message_id``, else the ``correlation_id``, else the delivery tag.
        queue: name of the queue.
        due: when it will be delivered, in UTC, by the server's clock.
        task: name of the Celery task, ``None`` if the message is not a task.
        args: ``repr`` of the task's positional arguments, from the message headers. Celery shortens it. Empty
            if there is none.
        kwargs: the same for its keyword arguments.
        priority: the priority that it was published with, 0 if there is none.
        size: size of the message in Redis, in bytes.
        headers: the headers that it was published with.
    """

    id: str
    queue: str
    due: datetime
    task: str | None
    args: str
    kwargs: str
    priority: int
    size: int
    headers: Mapping[str, Any] = field(repr=False)


@public
class DelayedMessages(Access):
    """The scheduled messages of a broker.

    For the argument *queue*, ``None`` means all queues. A queue or an id that is not known gives an empty
    result, not an error. Several messages may be scheduled with the same id, in one queue or in several. A
    method that takes an id handles all of them. Each change of a message is atomic, also against workers
    that take it at the same time: the message is either cancelled or delivered, never both and never
    neither.

    Times are aware datetimes. A naive datetime is in UTC, as in Celery's worker.

    Arguments and errors are the same as for :class:`~kombu_redisdelay.operations.access.Access`. Every
    method may raise ``redis.exceptions.RedisError``.
    """

    def count(
        self,
        queue: str | None = None,
        *,
        due_before: datetime | None = None,
        due_after: datetime | None = None,
    ) -> int:
        """The number of scheduled messages. Takes logarithmic time at most.

        Arguments:
            due_before: only messages that are due before this time.
            due_after: only messages that are due at this time or later.

        Raises:
            ValueError: one of the times is not a ``datetime``.
        """
        return self._schedule.count(
            self._queues(queue), _ms("due_after", due_after), _ms("due_before", due_before)
        )

    def next_due(self, queue: str | None = None) -> datetime | None:
        """When the first message is due; ``None`` if none is scheduled."""
        due_ms = self._schedule.next_due_ms(self._queues(queue))
        return None if due_ms is None else from_ms(due_ms)

    def iter(
        self,
        queue: str | None = None,
        *,
        due_before: datetime | None = None,
        due_after: datetime | None = None,
        task: str | None = None,
        limit: int | None = None,
    ) -> Iterator[DelayedMessage]:
        """Iterate over the messages in the order of their due times. They are read in bounded steps.

        Messages that are scheduled or removed during the iteration may be included or not. All others are
        included exactly once.

        Arguments:
            due_before: only messages that are due before this time.
            due_after: only messages that are due at this time or later.
            task: only tasks with this name, in which ``*``, ``?`` and ``[...]`` are wildcards.
            limit: the largest number of messages; ``None`` for all.

        Raises:
            ValueError: a time is not a ``datetime``, or *limit* is not a whole number from 0.
        """
        check_limit(limit)
        found = self._iter(self._queues(queue), _ms("due_after", due_after), _ms("due_before", due_before))
        messages = (message for _, message in found if is_task(message.task, task))
        return islice(messages, limit)

    def get(self, id: str) -> DelayedMessage | None:
        """The message with this id, ``None`` if there is none. Of several, the one that is due first."""
        return next(iter(self.get_all(id)), None)

    def get_all(self, id: str) -> list[DelayedMessage]:
        """All messages with this id, in the order of their due times."""
        found = [message for queue in self._queues(None) for message in self._schedule.find(queue, id)]
        return [self._message(message) for message in sorted(found, key=attrgetter("due_ms"))]

    def cancel(self, id: str, *, mark_revoked: bool = False) -> bool:
        """Remove the message with this id. If there are several, remove all of them.

        Returns:
            Whether a message was removed. It will not be delivered. False if there is no such message, or it
            has been delivered already.

        Arguments:
            mark_revoked: also write the state ``REVOKED`` to the app's result backend, so that a program that
                waits for the result learns of it. This is different from ``AsyncResult.revoke``, which tells
                the workers to skip the task when they receive it.

        Raises:
            TypeError: *mark_revoked* was set without a Celery app.
        """
        return bool(self.cancel_many([id], mark_revoked=mark_revoked))

    def cancel_many(self, ids: Iterable[str], *, mark_revoked: bool = False) -> list[str]:
        """Do the same as :meth:`cancel` for each of *ids*, in few round trips.

        Returns:
            The ids that were cancelled.
        """
        self._check_mark_revoked(mark_revoked)
        cancelled: list[str] = []
        queues = self._queues(None)
        remaining = iter(dict.fromkeys(ids))
        while some := list(islice(remaining, IDS_PER_CALL)):
            removed = [self._schedule.cancel(queue, some) for queue in queues]
            cancelled += [id for id, *counts in zip(some, *removed, strict=True) if any(counts)]
        return self._revoked(cancelled, mark_revoked)

    def cancel_group(self, group_id: str, *, mark_revoked: bool = False) -> list[str]:
        """Cancel the tasks of a Celery group. Reads all scheduled messages, in bounded steps.

        Arguments:
            group_id: the id of the group, ``GroupResult.id``.
            mark_revoked: as for :meth:`cancel`.

        Returns:
            The ids of the tasks that were cancelled.
        """
        self._check_mark_revoked(mark_revoked)
        removed = self._remove(None, None, lambda message: message.headers.get("group") == group_id)
        ids = dict.fromkeys(_message(found, found.queue).id for found in removed)
        return self._revoked(list(ids), mark_revoked)

    def reschedule(self, id: str, *, countdown: float | None = None, eta: datetime | None = None) -> bool:
        """Deliver the message with this id at another time, earlier or later.

        This also changes its header ``eta`` or ``x-delay``, because workers use these headers. The header
        ``expires`` stays the same.

        Arguments:
            countdown: seconds from now; not negative.
            eta: a time in the future.

        Returns:
            Whether there was such a message.

        Raises:
            ValueError: neither or both of the times were given, or one has a wrong type or is in the past.
        """
        now_ms = self.store.now_ms()
        due_ms = _new_due_ms(now_ms, countdown, eta)
        return self._move(id, due_ms, lambda payload: with_due(payload, due_ms, now_ms))

    def deliver_now(self, id: str) -> bool:
        """Move the message with this id to the tail of its queue, as if it were due.

        Returns:
            Whether there was such a message.
        """
        return self._move(id, 0, without_due)

    def purge(
        self, queue: str | None = None, *, task: str | None = None, due_before: datetime | None = None
    ) -> int:
        """Remove scheduled messages. Ready messages stay in their queues.

        Arguments:
            task: only tasks with this name.
            due_before: only messages that are due before this time.

        Returns:
            The number of messages that were removed.

        Raises:
            ValueError: *due_before* is not a ``datetime``.
        """
        before_ms = _ms("due_before", due_before)
        if task is None and before_ms is None:
            return sum(map(self._schedule.clear, self._queues(queue)))
        removed = self._remove(queue, before_ms, lambda message: task is None or message.task == task)
        return sum(1 for _ in removed)

    @property
    def _schedule(self) -> Schedule:
        return Schedule(self.store)

    def _iter(
        self, names: Iterable[str], from_ms: float | None, before_ms: float | None
    ) -> Iterator[tuple[Scheduled, DelayedMessage]]:
        each = [self._schedule.iter(name, from_ms, before_ms) for name in names]
        return ((found, self._message(found)) for found in merge(*each, key=attrgetter("due_ms")))

    def _remove(
        self, queue: str | None, before_ms: float | None, wanted: Callable[[DelayedMessage], bool]
    ) -> Iterator[Scheduled]:
        """Remove the messages that are *wanted*, and yield them."""
        for name in self._queues(queue):
            found = (entry for entry, message in self._iter([name], None, before_ms) if wanted(message))
            yield from self._schedule.remove(name, found)

    def _move(self, id: str, due_ms: float, rewrite: Callable[[bytes], bytes]) -> bool:
        moved = False
        for queue in self._queues(None):
            for found in self._schedule.find(queue, id):
                message: Scheduled | None = found
                while message is not None:
                    if self._schedule.reschedule(message, rewrite(message.payload), due_ms):
                        moved = True
                        break
                    # It has been delivered, or another program has changed it meanwhile.
                    message = self._schedule.reread(message)
        return moved

    def _message(self, found: Scheduled) -> DelayedMessage:
        return _message(found, self.store.partitions.queue_of(found.queue))

    def _revoked(self, ids: list[str], mark_revoked: bool) -> list[str]:
        if mark_revoked:
            self._mark_revoked(ids, "cancelled before it was due")
        return ids


def _message(found: Scheduled, queue: str) -> DelayedMessage:
    content = Content.of(found.payload, otherwise=found.member.decode(errors="replace"))
    return DelayedMessage(
        id=content.id,
        queue=queue,
        due=from_ms(found.due_ms),
        task=content.task,
        args=content.args,
        kwargs=content.kwargs,
        priority=content.priority,
        size=len(found.payload),
        headers=content.headers,
    )


def _ms(name: str, moment: object) -> float | None:
    if moment is None:
        return None
    if not isinstance(moment, datetime):
        raise ValueError(f"{name} must be a datetime, not {moment!r}")
    return to_ms(moment)


def _new_due_ms(now_ms: float, countdown: Any, eta: object) -> float:
    due_ms = _ms("eta", eta)
    if (countdown is None) == (due_ms is None):
        raise ValueError("give either a countdown or an eta")
    if due_ms is not None:
        if due_ms < now_ms:
            raise ValueError(f"eta must be in the future, not {eta}")
        return due_ms
    longest = (LATEST_MS - now_ms) / 1000
    # NaN is in no range.
    is_number = isinstance(countdown, (int, float)) and not isinstance(countdown, bool)
    if not is_number or not 0 <= countdown <= longest:
        raise ValueError(
            "countdown must be a number of seconds, not negative and not beyond the year 9999, "
            f"not {countdown!r}"
        )
    return now_ms + float(countdown) * 1000
