"""The public API over scheduled messages: look at them, cancel them, move them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from kombu_redisdelay.access import Access


@dataclass(frozen=True, slots=True)
class DelayedMessage:
    """A message that waits for its time.

    Attributes:
        id: what it is cancelled by: the task id; without Celery the ``message_id``, else the
            ``correlation_id``, else the delivery tag.
        due: when it will be delivered, in UTC, by the server's clock.
        task: name of the Celery task, ``None`` if it is none.
        args: ``repr`` of the task's positional arguments as Celery put it into the headers, which shortens
            it; empty if there is none.
        kwargs: the same of its keyword arguments.
        priority: as it was published, 0 if it was published with none.
        size: bytes that the message takes in Redis.
        headers: as they were published.
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


class DelayedMessages(Access):
    """The messages of a broker that wait for their time.

    Where a *queue* may be given, ``None`` stands for all of them. A queue or an id that is not known is an
    empty result, not an error. Several messages may wait under one id, in one queue or in several: what is
    done by id is done to all of them. Each message is handled as a whole against workers to whom it is
    being delivered: it is either cancelled or delivered, never both and never neither.

    Times are aware datetimes; a naive one is in UTC, as Celery's worker reads it.

    Arguments and errors are those of :class:`~kombu_redisdelay.access.Access`; every method raises what
    redis-py raises.
    """

    def count(
        self,
        queue: str | None = None,
        *,
        due_before: datetime | None = None,
        due_after: datetime | None = None,
    ) -> int:
        """How many messages wait that are due at *due_after* or later and before *due_before*. In no more
        than logarithmic time.

        Raises:
            ValueError: one of the times is not a ``datetime``.
        """
        raise NotImplementedError

    def next_due(self, queue: str | None = None) -> datetime | None:
        """When the first message is due; ``None`` if none waits."""
        raise NotImplementedError

    def iter(
        self,
        queue: str | None = None,
        *,
        due_before: datetime | None = None,
        due_after: datetime | None = None,
        task: str | None = None,
        limit: int | None = None,
    ) -> Iterator[DelayedMessage]:
        """The messages in the order in which they are due, read in bounded steps as you go on.

        What is scheduled or goes meanwhile may be among them or not; everything else is, once.

        Arguments:
            due_before: only what is due before this time.
            due_after: only what is due at this time or later.
            task: only tasks of this name.
            limit: at most so many; ``None`` for all.

        Raises:
            ValueError: a time is not a ``datetime``, or *limit* is not a whole number from 0.
        """
        raise NotImplementedError

    def get(self, id: str) -> DelayedMessage | None:
        """The message with this id, the first to be due if there are several; ``None`` if there is none."""
        raise NotImplementedError

    def get_all(self, id: str) -> list[DelayedMessage]:
        """Every message with this id, first the one that is due first."""
        raise NotImplementedError

    def cancel(self, id: str, *, mark_revoked: bool = False) -> bool:
        """Remove the message with this id, or all if there are several.

        Returns:
            Whether there was one, which now will not be delivered. False if there is none, or it has been
            delivered.

        Arguments:
            mark_revoked: also write the state ``REVOKED`` to the app's result backend, so that whoever waits
                for the result is told. ``AsyncResult.revoke`` does something else: it tells the workers to
                pass over the task when it comes.

        Raises:
            TypeError: *mark_revoked* without a Celery app.
        """
        raise NotImplementedError

    def cancel_many(self, ids: Iterable[str], *, mark_revoked: bool = False) -> list[str]:
        """As :meth:`cancel` for each of *ids*, in few round trips.

        Returns:
            Those that were cancelled.
        """
        raise NotImplementedError

    def cancel_group(self, group_id: str, *, mark_revoked: bool = False) -> list[str]:
        """Cancel the tasks of a Celery group (``GroupResult.id``). Reads all that is scheduled, in bounded
        steps.

        Returns:
            The ids of those that were cancelled.
        """
        raise NotImplementedError

    def reschedule(self, id: str, *, countdown: float | None = None, eta: datetime | None = None) -> bool:
        """Have the message with this id delivered at another time, earlier or later.

        Its ``eta`` header, or ``x-delay``, is changed with it, since workers go by them, too. An ``expires``
        stays what it is.

        Arguments:
            countdown: seconds from now; not negative.
            eta: an instant in the future.

        Returns:
            Whether there was one.

        Raises:
            ValueError: neither or both are given, one is of the wrong type or in the past.
        """
        raise NotImplementedError

    def deliver_now(self, id: str) -> bool:
        """Move the message with this id to the tail of its queue, as if its time had come.

        Returns:
            Whether there was one.
        """
        raise NotImplementedError

    def purge(
        self, queue: str | None = None, *, task: str | None = None, due_before: datetime | None = None
    ) -> int:
        """Remove every message that waits, or those of *task*, or those due before *due_before*. Messages that
        are ready are not touched.

        Returns:
            How many were removed.

        Raises:
            ValueError: *due_before* is not a ``datetime``.
        """
        raise NotImplementedError
