"""The public API over all messages of a queue: what is scheduled, ready, held by a worker, or dead."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import chain, islice

from kombu_redisdelay.broker.dead import Graveyard
from kombu_redisdelay.broker.held import Holders
from kombu_redisdelay.broker.ready import ReadyLists
from kombu_redisdelay.broker.schedule import Schedule
from kombu_redisdelay.operations import control
from kombu_redisdelay.operations.access import Access, Selection, check_limit, checked_ids, moment_ms
from kombu_redisdelay.operations.content import Content, is_related, is_task
from kombu_redisdelay.operations.control import QueueControl
from kombu_redisdelay.operations.history import QueueHistory, queue_history
from kombu_redisdelay.operations.progress import Progress, Tell
from kombu_redisdelay.operations.queued import (
    DEAD,
    HELD,
    READY,
    SCHEDULED,
    STATES,
    QueuedMessage,
    is_within,
    moment_of,
    without_repetitions,
)
from kombu_redisdelay.operations.reading import Reading, content_of, content_of_scheduled, waiting_since
from kombu_redisdelay.public import public

#: With more ids than this, it takes Redis longer to look for them in each message than to send the message.
MOST_TEXTS = 10

_PLAIN = re.compile(r"[\w-]+", re.ASCII)
_SHA1 = re.compile(r"[0-9a-f]{40}")


@public
class Queues(Access):
    """All messages of a broker: those that are scheduled, ready, held by a worker, and dead.

    The argument *queue* is the name of a queue, or several names. ``None`` means all queues that have a
    consumer, a scheduled message or a dead letter, those that producers with this transport have declared and
    published to, and those that the Celery app declares. For the argument
    *state*, ``None`` means all states. A queue or an id that is not known gives an empty result, not an
    error. Only what workers of ``redisdelay://`` hold is seen: those of ``redis://`` keep it elsewhere.

    Arguments and errors are the same as for :class:`~kombu_redisdelay.operations.access.Access`. Every method
    may raise ``redis.exceptions.RedisError``.
    """

    def count(self, queue: Selection = None, *, state: str | None = None) -> int:
        """The number of messages. Reads none of them.

        Arguments:
            state: only messages in this state.

        Raises:
            ValueError: there is no such state.
        """
        names = self.names(queue)
        counts: dict[str, Callable[[list[str]], int]] = {
            SCHEDULED: lambda names: Schedule(self.store).count(names, None, None),
            READY: lambda names: sum(ReadyLists(self.store).counts(names)),
            HELD: lambda names: sum(Holders(self.store).counts(names)),
            DEAD: lambda names: sum(Graveyard(self.store).counts(names)),
        }
        return sum(counts[each](names) for each in _states(state))

    def iter(
        self,
        queue: Selection = None,
        *,
        state: str | None = None,
        task: str | None = None,
        before: datetime | None = None,
        after: datetime | None = None,
        limit: int | None = None,
    ) -> Iterator[QueuedMessage]:
        """Iterate over the messages. They are read in bounded steps.

        Scheduled messages come in the order of their due times. Ready messages come queue by queue, in the
        order in which they are taken; held ones worker by worker, in the order in which they were taken; dead
        ones queue by queue, the oldest first. With all states, it is one state after the other.

        While messages come and go, no message is included twice, and every message that stays in its state
        during the iteration is included. With all states, one that moves on from scheduled to ready, held or
        dead is included, too; one that goes back may be missing. To tell that a message was included, about
        60 bytes of memory are kept for each, unless *state* is ``"held"``.

        Arguments:
            state: only messages in this state.
            task: only tasks with this name, in which ``*``, ``?`` and ``[...]`` are wildcards.
            before: only messages that are due before this time, if they are scheduled; that wait since before
                it, if they are ready; that a worker has held since before it; or that died before it.
                Messages of which this is unknown are left out. A naive datetime is in UTC.
            after: the same for this time or later.
            limit: the largest number of messages; ``None`` for all.

        Raises:
            ValueError: there is no such state, *limit* is not a whole number from 0, or a time is not a
                ``datetime``.
        """
        check_limit(limit)
        span = moment_ms("after", after), moment_ms("before", before)
        messages = self._messages(queue, _states(state), *span)
        wanted = (each for each in messages if is_task(each.task, task) and is_within(moment_of(each), *span))
        return islice(wanted, limit)

    def get(self, id: str) -> QueuedMessage | None:
        """The message with this id, ``None`` if there is none. Of several, the first of :meth:`get_all`."""
        return next(self._with_id(id), None)

    def get_all(self, id: str) -> list[QueuedMessage]:
        """All messages with this id: first those that are scheduled, then those that are ready, held and
        dead.

        All ready messages are searched for it, in bounded steps: a million of them take some seconds.
        """
        return list(self._with_id(id))

    def cancel(self, id: str, *, mark_revoked: bool = False) -> int:
        """Remove the scheduled or ready message with this id. If there are several, remove all of them.

        A message is either removed or taken by a worker, never both and never neither. To remove a ready one,
        Redis goes through the messages between it and the nearer end of its queue, and serves nobody
        meanwhile.

        Returns:
            The number of messages that were removed. They will not be delivered. 0 if there is no such
            message, or a worker has it.

        Arguments:
            mark_revoked: also write the state ``REVOKED`` to the app's result backend, as
                :meth:`DelayedMessages.cancel <kombu_redisdelay.operations.delayed.DelayedMessages.cancel>`
                does.

        Raises:
            TypeError: *mark_revoked* was set without a Celery app.
            NotMarkedRevokedError: the message was cancelled, and then the result backend could not be told.
        """
        return self.cancel_many([id], mark_revoked=mark_revoked)[id]

    def cancel_many(
        self, ids: Iterable[str], *, queue: Selection = None, mark_revoked: bool = False
    ) -> dict[str, int]:
        """Do the same as :meth:`cancel` for each of *ids*. The ready messages are searched once for all of
        them.

        Arguments:
            queue: only messages of this queue.

        Returns:
            Id -> how many messages were removed, for each of *ids*.
        """
        self._check_mark_revoked(mark_revoked)
        wanted = checked_ids(ids)
        cancelled = Counter(dict.fromkeys(wanted, 0))
        for name in self.names(queue) if wanted else ():
            counts = Schedule(self.store).cancel(name, wanted)
            cancelled.update(dict(zip(wanted, counts, strict=True)))
            cancelled.update(
                self._cancel_ready(name, _texts(wanted), lambda content: content.id in cancelled)
            )
        return self._revoked(cancelled, mark_revoked)

    def cancel_group(self, group_id: str, *, mark_revoked: bool = False) -> dict[str, int]:
        """Cancel the tasks of a Celery group that are scheduled or ready. Reads all messages that are, in
        bounded steps.

        Arguments:
            group_id: the id of the group, ``GroupResult.id``.
            mark_revoked: as for :meth:`cancel`.

        Returns:
            Id of each task that was cancelled -> how many messages were removed.
        """
        self._check_mark_revoked(mark_revoked)

        def is_wanted(content: Content) -> bool:
            return content.headers.get("group") == group_id

        cancelled: Counter[str] = Counter()
        for queue in self.names(None):
            schedule = Schedule(self.store)
            found = (
                each for each in schedule.iter(queue, None, None) if is_wanted(content_of_scheduled(each))
            )
            cancelled.update(content_of_scheduled(each).id for each in schedule.remove(queue, found))
            cancelled.update(self._cancel_ready(queue, _texts([group_id]), is_wanted))
        return self._revoked(cancelled, mark_revoked)

    def cancel_all(
        self,
        queue: Selection = None,
        *,
        state: str | None = None,
        task: str | None = None,
        before: datetime | None = None,
        after: datetime | None = None,
        related: str | None = None,
        mark_revoked: bool = False,
        progress: Tell | None = None,
    ) -> int:
        """Do the same as :meth:`cancel` for all scheduled and ready messages, or for some of them. They are
        removed in bounded steps. Those that are published meanwhile may be removed or not.

        Arguments:
            state: only messages in this state, ``"scheduled"`` or ``"ready"``.
            task: only tasks with this name, in which ``*``, ``?`` and ``[...]`` are wildcards.
            before: only messages that are due before this time, if *state* is ``"scheduled"``; that wait
                since before it, if *state* is ``"ready"``. Messages of which this is unknown are left out. A
                naive datetime is in UTC.
            after: the same for this time or later.
            related: only tasks of which this is the id, or that of their group, their parent or their root.
            mark_revoked: as for :meth:`cancel`.
            progress: called with how many messages were removed so far, between two steps. If it raises an
                exception, no more are removed.

        Returns:
            The number of messages that were removed.

        Raises:
            ValueError: *state* is another one, a time is not a ``datetime``, or a time is given without a
                *state*: each state has a time of its own.
        """
        self._check_mark_revoked(mark_revoked)
        span = moment_ms("after", after), moment_ms("before", before)
        if state not in (None, SCHEDULED, READY):
            raise ValueError(f"state must be {SCHEDULED}, {READY} or None, not {state!r}")
        if state is None and span != (None, None):
            raise ValueError("before and after need a state: each state has a time of its own")
        so_far = Progress(progress)

        def is_wanted(content: Content) -> bool:
            return is_task(content.task, task) and is_related(content.id, content.headers, related)

        cancelled: Counter[str] = Counter()
        try:
            for name in self.names(queue):
                if (state, task, related, mark_revoked) == (None, None, None, False):
                    so_far.add_step(self.store.purge(name))
                    continue
                contents = self._cancel_chosen(name, state, is_wanted, span, so_far)
                for content in contents:
                    so_far.count += 1
                    if mark_revoked:
                        cancelled[content.id] += 1
                so_far.tell()
        finally:
            # Also of those before *progress* has ended it.
            self._revoked(cancelled, mark_revoked)
        return so_far.count

    def pause(self, queue: str | Iterable[str]) -> None:
        """Have no worker take anything from *queue*, or from several, until :meth:`resume`. What workers have
        taken, they run. Messages can be published, and become ready when they are due."""
        control.pause(self.store, [queue] if isinstance(queue, str) else queue)

    def resume(self, queue: str | Iterable[str]) -> None:
        """End the pause of *queue*, or of several. The limits stay."""
        control.resume(self.store, [queue] if isinstance(queue, str) else queue)

    def limit(
        self,
        queue: str,
        *,
        rate: str | float | None = None,
        burst: int | None = None,
        concurrency: int | None = None,
    ) -> None:
        """Limit what all workers together take from *queue*. The limits that it had before are replaced, so
        without arguments there are none any more.

        Arguments:
            rate: as Celery's ``rate_limit``: ``"100/m"``, or with ``/s`` or ``/h``, or a number of messages a
                second.
            burst: how many messages may be taken at once after a while without any. Over any time, no more
                are taken than the rate allows in that time and *burst*. By default what the rate allows in a
                second, and at least one; one for each partition.
            concurrency: how many messages workers may hold together.

        Raises:
            ValueError: *rate* is no rate; *burst* is given without a rate; *burst* or *concurrency* is not a
                whole number from 1 to 1,000,000,000, or smaller than the number of partitions.
        """
        control.limit(self.store, queue, rate, burst, concurrency)

    def control(self, queue: str) -> QueueControl:
        """Whether *queue* is paused, and its limits."""
        [found] = control.queue_controls(self.store, [queue])
        return found

    def history(self, queue: str) -> QueueHistory:
        """What has happened to the messages of *queue*, by minute for an hour and by hour for a week."""
        [found] = queue_history(self.store, [queue])
        return found

    def count_by_task(self, queue: Selection = None, *, state: str | None = None) -> dict[str | None, int]:
        """How many messages there are of each task, the most first; under ``None``, those that are not tasks.
        Reads every message, as :meth:`tally` does."""
        counts: Counter[str | None] = Counter()
        for (task, _), count in self.tally(queue, state=state).items():
            counts[task] += count
        return dict(counts.most_common())

    def count_by_priority(self, queue: Selection = None, *, state: str | None = None) -> dict[int, int]:
        """How many messages there are of each priority, sorted by priority. Reads every message, as
        :meth:`tally` does."""
        counts: Counter[int] = Counter()
        for (_, priority), count in self.tally(queue, state=state).items():
            counts[priority] += count
        return dict(sorted(counts.items()))

    def tally(self, queue: Selection = None, *, state: str | None = None) -> Counter[tuple[str | None, int]]:
        """How many messages there are of each task and priority. Reads every message, in bounded steps: a
        million of them take minutes.

        Arguments:
            state: only messages in this state.

        Returns:
            A ``Counter`` with pairs of the name of the task and the priority. The name is ``None`` for
            messages that are not tasks.

        Raises:
            ValueError: there is no such state.
        """
        return Counter((message.task, message.priority) for message in self.iter(queue, state=state))

    def _messages(
        self, queue: Selection, states: tuple[str, ...], after_ms: float | None, before_ms: float | None
    ) -> Iterator[QueuedMessage]:
        names, reading = self.names(queue), Reading(self)
        found = chain.from_iterable(reading.in_state(state, names, after_ms, before_ms) for state in states)
        # Only among what is held, nothing comes twice: what is scheduled may get a later due time meanwhile.
        return (each.message for each in found) if states == (HELD,) else without_repetitions(found)

    def _with_id(self, id: str) -> Iterator[QueuedMessage]:
        found = Reading(self).with_id(self.names(None), id, _texts([id]))
        return (message for message in without_repetitions(found) if message.id == id)

    def _cancel_ready(
        self, queue: str, texts: Sequence[str], is_wanted: Callable[[Content], bool]
    ) -> Iterator[str]:
        """Remove ready messages. Yields the id of each."""
        ready = ReadyLists(self.store)
        for found in ready.iter(queue, texts):
            content = content_of(found.payload)
            if is_wanted(content) and ready.remove(found):
                yield content.id

    def _cancel_chosen(
        self,
        queue: str,
        state: str | None,
        is_wanted: Callable[[Content], bool],
        span: tuple[float | None, float | None],
        so_far: Progress,
    ) -> Iterator[Content]:
        """Remove scheduled messages, and then ready ones. Yields what each says of itself."""
        if state != READY:
            schedule = Schedule(self.store)
            scheduled = (
                each
                for each in so_far.watching(schedule.iter(queue, *span))
                if is_wanted(content_of_scheduled(each))
            )
            yield from map(content_of_scheduled, schedule.remove(queue, scheduled))
        if state != SCHEDULED:
            lists = ReadyLists(self.store)
            ready = (
                each
                for each in so_far.watching(lists.iter(queue))
                if is_within(waiting_since(each.payload), *span) and is_wanted(content_of(each.payload))
            )
            yield from (content_of(each.payload) for each in lists.remove_all(queue, ready))

    def _revoked(self, cancelled: Mapping[str, int], mark_revoked: bool) -> dict[str, int]:
        if mark_revoked:
            self._mark_revoked(cancelled, "cancelled before it was delivered")
        return dict(cancelled)


def _states(state: str | None) -> tuple[str, ...]:
    if state is None:
        return STATES
    if state not in STATES:
        raise ValueError(f"state must be one of {', '.join(STATES)}, or None, not {state!r}")
    return (state,)


def _texts(ids: Collection[str]) -> list[str]:
    """Texts of which every message with one of *ids* contains one, however its JSON is written; empty if
    there are none."""
    texts = []
    for id in ids:
        plain = max(_PLAIN.findall(id), key=len, default="")
        # An id that was made of the bytes of an entry is not in there.
        if len(ids) > MOST_TEXTS or not plain or _SHA1.fullmatch(id):
            return []
        texts.append(plain)
    return texts
