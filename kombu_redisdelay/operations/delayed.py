"""The public API over scheduled messages: look at them, cancel them, move them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from itertools import islice
from operator import attrgetter
from typing import Any

from kombu_redisdelay.broker.schedule import Schedule, Scheduled
from kombu_redisdelay.broker.times import from_ms
from kombu_redisdelay.broker.upcoming import upcoming
from kombu_redisdelay.operations.access import Access, Selection, check_limit, checked_ids
from kombu_redisdelay.operations.content import Content, is_task, with_due, without_due
from kombu_redisdelay.operations.due_times import Span, apart, new_due_ms, span_ms
from kombu_redisdelay.operations.progress import Progress, Tell
from kombu_redisdelay.operations.queued import Found, without_repetitions
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

    The argument *queue* is the name of a queue, or several names. ``None`` means all queues. A queue or an id
    that is not known gives an empty result, not an error. Several messages may be scheduled with the same id,
    in one queue or in several. A method that takes an id handles all of them. Each change of a message is
    atomic, also against workers that take it at the same time: the message is either cancelled or delivered,
    never both and never neither.

    The argument *task* is the name of a task, in which ``*``, ``?`` and ``[...]`` are wildcards. To find the
    messages of a task, every message is read. *due_before* and *due_after* pick what is due before a time,
    and what is due at a time or later. Times are aware datetimes. A naive datetime is in UTC, as in Celery's
    worker. A time that is not a ``datetime`` is a ``ValueError``.

    The argument *progress* is called with how many messages it was done to so far, between two steps of some
    hundred messages. If it raises an exception, the method ends there: what was done stays done.

    Arguments and errors are the same as for :class:`~kombu_redisdelay.operations.access.Access`. Every
    method may raise ``redis.exceptions.RedisError``.
    """

    def count(
        self,
        queue: Selection = None,
        *,
        due_before: datetime | None = None,
        due_after: datetime | None = None,
    ) -> int:
        """The number of scheduled messages. Takes logarithmic time at most."""
        return self._schedule.count(self.names(queue), *span_ms(due_after, due_before))

    def next_due(self, queue: Selection = None) -> datetime | None:
        """When the first message is due; ``None`` if none is scheduled."""
        due_ms = self._schedule.next_due_ms(self.names(queue))
        return None if due_ms is None else from_ms(due_ms)

    def iter(
        self,
        queue: Selection = None,
        *,
        due_before: datetime | None = None,
        due_after: datetime | None = None,
        task: str | None = None,
        limit: int | None = None,
    ) -> Iterator[DelayedMessage]:
        """Iterate over the messages in the order of their due times. They are read in bounded steps.

        Messages that are scheduled or removed during the iteration may be included or not. All others are
        included. None is included twice, also if it gets another due time meanwhile. To tell that one was
        included, about 60 bytes of memory are kept for each.

        Arguments:
            limit: the largest number of messages; ``None`` for all.

        Raises:
            ValueError: a time is not a ``datetime``, or *limit* is not a whole number from 0.
        """
        check_limit(limit)
        found = upcoming(self.store, self.names(queue), *span_ms(due_after, due_before))
        messages = without_repetitions(map(self._found, found))
        return islice((each for each in messages if is_task(each.task, task)), limit)

    def get(self, id: str) -> DelayedMessage | None:
        """The message with this id, ``None`` if there is none. Of several, the one that is due first."""
        return next(iter(self.get_all(id)), None)

    def get_all(self, id: str) -> list[DelayedMessage]:
        """All messages with this id, in the order of their due times."""
        found = [message for queue in self.names(None) for message in self._schedule.find(queue, id)]
        return [self._found(message).message for message in sorted(found, key=attrgetter("due_ms"))]

    def cancel(self, id: str, *, mark_revoked: bool = False) -> int:
        """Remove the message with this id. If there are several, remove all of them.

        Returns:
            The number of messages that were removed. They will not be delivered. 0 if there is no such
            message, or it has been delivered already.

        Arguments:
            mark_revoked: also write the state ``REVOKED`` to the app's result backend, so that a program that
                waits for the result learns of it. This is different from ``AsyncResult.revoke``, which tells
                the workers to skip the task when they receive it.

        Raises:
            TypeError: *mark_revoked* was set without a Celery app.
            NotMarkedRevokedError: the message was cancelled, and then the result backend could not be told.
        """
        return self.cancel_many([id], mark_revoked=mark_revoked)[id]

    def cancel_many(
        self, ids: Iterable[str], *, queue: Selection = None, mark_revoked: bool = False
    ) -> dict[str, int]:
        """Do the same as :meth:`cancel` for each of *ids*, in few round trips.

        Arguments:
            queue: only messages of this queue.

        Returns:
            Id -> how many messages were removed, for each of *ids*.
        """
        self._check_mark_revoked(mark_revoked)
        cancelled = dict.fromkeys(checked_ids(ids), 0)
        for name in self.names(queue) if cancelled else ():
            for id, count in zip(cancelled, self._schedule.cancel(name, list(cancelled)), strict=True):
                cancelled[id] += count
        return self._revoked(cancelled, mark_revoked)

    def cancel_group(self, group_id: str, *, mark_revoked: bool = False) -> dict[str, int]:
        """Cancel the tasks of a Celery group. Reads all scheduled messages, in bounded steps.

        Arguments:
            group_id: the id of the group, ``GroupResult.id``.
            mark_revoked: as for :meth:`cancel`.

        Returns:
            Id of each task that was cancelled -> how many messages were removed.
        """
        self._check_mark_revoked(mark_revoked)
        cancelled: Counter[str] = Counter()
        for queue in self.names(None):
            found = self._schedule.iter(queue, None, None)
            wanted = (each for each in found if _content(each).headers.get("group") == group_id)
            cancelled.update(_content(each).id for each in self._schedule.remove(queue, wanted))
        return self._revoked(dict(cancelled), mark_revoked)

    def reschedule(self, id: str, *, countdown: float | None = None, eta: datetime | None = None) -> int:
        """Deliver the message with this id at another time, earlier or later. If there are several, this is
        about all of them.

        This also changes its header ``eta`` or ``x-delay``, because workers use these headers. The header
        ``expires`` stays the same.

        Arguments:
            countdown: seconds from now; not negative.
            eta: a time in the future.

        Returns:
            The number of messages that were rescheduled, 0 if there is no such message.

        Raises:
            ValueError: neither or both of the times were given, or one has a wrong type or is in the past.
        """
        return self.reschedule_many([id], countdown=countdown, eta=eta)[id]

    def reschedule_many(
        self,
        ids: Iterable[str],
        *,
        countdown: float | None = None,
        eta: datetime | None = None,
        queue: Selection = None,
    ) -> dict[str, int]:
        """Do the same as :meth:`reschedule` for each of *ids*, in few round trips.

        Arguments:
            queue: only messages of this queue.

        Returns:
            Id -> how many messages were rescheduled, for each of *ids*.
        """
        now_ms = self.store.now_ms()
        due_ms = new_due_ms(now_ms, countdown, eta)
        return self._move(queue, ids, due_ms, lambda message: with_due(message.payload, due_ms, now_ms))

    def reschedule_all(
        self,
        queue: Selection = None,
        *,
        task: str | None = None,
        due_before: datetime | None = None,
        due_after: datetime | None = None,
        countdown: float | None = None,
        eta: datetime | None = None,
        progress: Tell | None = None,
    ) -> int:
        """Do the same as :meth:`reschedule` for all scheduled messages, or for some of them. Each is moved
        once. Those that are scheduled meanwhile may be moved or not.

        Returns:
            The number of messages that were rescheduled.
        """
        now_ms = self.store.now_ms()
        due_ms = new_due_ms(now_ms, countdown, eta)
        so_far = Progress(progress)
        for span in apart(span_ms(due_after, due_before), due_ms):
            self._move_all(
                queue, task, span, due_ms, lambda message: with_due(message.payload, due_ms, now_ms), so_far
            )
        return so_far.count

    def deliver_now(self, id: str) -> int:
        """Move the message with this id to the tail of its queue, as if it were due. If there are several,
        move all of them.

        Returns:
            The number of messages that were moved, 0 if there is no such message.
        """
        return self.deliver_now_many([id])[id]

    def deliver_now_many(self, ids: Iterable[str], *, queue: Selection = None) -> dict[str, int]:
        """Do the same as :meth:`deliver_now` for each of *ids*, in few round trips. The messages go to each
        queue in the order in which they were due.

        Arguments:
            queue: only messages of this queue.

        Returns:
            Id -> how many messages were moved, for each of *ids*.
        """
        return self._move(queue, ids, 0, _without_due)

    def deliver_now_all(
        self,
        queue: Selection = None,
        *,
        task: str | None = None,
        due_before: datetime | None = None,
        due_after: datetime | None = None,
        progress: Tell | None = None,
    ) -> int:
        """Move all scheduled messages to the tail of their queue, or some of them, as if they were due. They
        go to each queue in the order in which they were due.

        Returns:
            The number of messages that were moved.
        """
        so_far = Progress(progress)
        self._move_all(queue, task, span_ms(due_after, due_before), 0, _without_due, so_far)
        return so_far.count

    def purge(
        self,
        queue: Selection = None,
        *,
        task: str | None = None,
        due_before: datetime | None = None,
        due_after: datetime | None = None,
        progress: Tell | None = None,
    ) -> int:
        """Remove scheduled messages. Ready messages stay in their queues.

        Returns:
            The number of messages that were removed.
        """
        span, so_far = span_ms(due_after, due_before), Progress(progress)
        for name in self.names(queue):
            if (task, due_before, due_after) == (None, None, None):
                so_far.add_step(self._schedule.clear(name))
            else:
                so_far.add(self._schedule.remove(name, self._chosen(name, task, span, so_far)))
        return so_far.count

    @property
    def _schedule(self) -> Schedule:
        return Schedule(self.store)

    def _chosen(self, name: str, task: str | None, span: Span, so_far: Progress) -> Iterator[Scheduled]:
        found = so_far.watching(self._schedule.iter(name, *span))
        return (each for each in found if task is None or is_task(_content(each).task, task))

    def _move(
        self, queue: Selection, ids: Iterable[str], due_ms: float, rewrite: Callable[[Scheduled], bytes]
    ) -> dict[str, int]:
        moved = dict.fromkeys(checked_ids(ids), 0)
        for name in self.names(queue) if moved else ():
            found = list(self._schedule.find_all([name], list(moved)))
            found.sort(key=lambda pair: pair[1].due_ms)
            messages = [message for _, message in found]
            done = {each.member for each in self._schedule.reschedule_all(name, messages, rewrite, due_ms)}
            for id, message in found:
                moved[id] += message.member in done or self._try_again(message, rewrite, due_ms)
        return moved

    def _try_again(self, message: Scheduled, rewrite: Callable[[Scheduled], bytes], due_ms: float) -> bool:
        """Move a message that has been delivered, or that another program has changed meanwhile."""
        again = self._schedule.reread(message)
        while again is not None:
            if self._schedule.reschedule(again, rewrite(again), due_ms):
                return True
            again = self._schedule.reread(message)
        return False

    def _move_all(
        self,
        queue: Selection,
        task: str | None,
        span: Span,
        due_ms: float,
        rewrite: Callable[[Scheduled], bytes],
        so_far: Progress,
    ) -> None:
        """Move the messages that are due in the *span* now. The new due time must be outside of it, or its
        only one: else a message could be moved twice."""
        for name in self.names(queue):
            chosen = self._chosen(name, task, span, so_far)
            so_far.add(self._schedule.reschedule_all(name, chosen, rewrite, due_ms))

    def _found(self, found: Scheduled) -> Found[DelayedMessage]:
        content, queue = _content(found), self.store.partitions.queue_of(found.queue)
        message = DelayedMessage(
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
        identity = (queue, content.tag or found.payload, content.id)
        return Found(message, identity, content.tag is not None)

    def _revoked(self, cancelled: dict[str, int], mark_revoked: bool) -> dict[str, int]:
        if mark_revoked:
            self._mark_revoked(cancelled, "cancelled before it was due")
        return cancelled


def _content(found: Scheduled) -> Content:
    return Content.of(found.payload, otherwise=found.member.decode(errors="replace"))


def _without_due(message: Scheduled) -> bytes:
    return without_due(message.payload)
