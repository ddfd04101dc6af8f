"""The public API over messages: count them, look at them, act on them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from itertools import islice
from threading import Event
from typing import Any

from kombu_redisdelay.operations import reading, verbs
from kombu_redisdelay.operations.access import Access, QueueNames, check_limit
from kombu_redisdelay.operations.acting import Action, Done
from kombu_redisdelay.operations.failed_tasks import FailureGroup, failure_groups, requeueing
from kombu_redisdelay.operations.memory import memory_use
from kombu_redisdelay.operations.memory_report import MemoryUse
from kombu_redisdelay.operations.message import MessageInfo
from kombu_redisdelay.operations.pace import Pace, Tell
from kombu_redisdelay.operations.queue_reasons import BLOCKED
from kombu_redisdelay.operations.reading import Count, Page
from kombu_redisdelay.operations.revoked import RevokedTasks
from kombu_redisdelay.operations.selection import Selection, selection_of
from kombu_redisdelay.operations.verbs import Verb
from kombu_redisdelay.public import public


@public
class NotMarkedRevokedError(Exception):
    """Messages were cancelled, and the result backend could not be told of some of them.

    Attributes:
        done: what would have been returned. :attr:`Done.unmarked` is the number of those.
        ids: the ids of the first 1,000 of those.
    """

    def __init__(self, done: Done, why: str, ids: Sequence[str] = ()) -> None:
        super().__init__(f"cancelled, but not marked as revoked in the result backend: {why}")
        self.done = done
        self.ids = tuple(ids)
        self._why = why

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.done, self._why, self.ids)


@public
class Messages(Access):
    """The messages of a broker, in whatever state.

    A :class:`Selection` says which messages a method counts, reads or changes; without one, all. Queues, ids
    and tasks that are not known give an empty result, not an error. Messages that workers of ``redis://``
    have taken are not seen: these are kept elsewhere. Each change of a message is atomic, also against
    workers that take it at the same time: a message is either cancelled or delivered, never both and never
    neither.

    The methods that change messages have these arguments in common. *selection* or *ids* says which messages,
    and only one of them. *limit* is the largest number of messages. With *dry_run*, nothing is changed.
    *progress* is called with the number of messages that it was done to so far, between two portions of some
    hundred messages; if it raises an exception, the method ends there, and what was done stays done. Messages
    that are published meanwhile may be included or not.

    Arguments and errors are the same as for :class:`~kombu_redisdelay.operations.access.Access`. Every method
    may raise ``redis.exceptions.RedisError``, and ``ValueError`` for a selection that makes no sense: a state
    that cannot be acted on, or a time without one state.
    """

    def count(self, selection: Selection | None = None, *, at_most: int | None = None) -> Count:
        """How many messages there are. They are read only to select by a filter, by ids, or by times of a
        state other than "scheduled".

        Arguments:
            at_most: look at no more messages than this.
        """
        selection = selection or Selection()
        return reading.count(self, selection, selection.states(), at_most)

    def select(
        self,
        selection: Selection | None = None,
        *,
        limit: int | None = None,
        newest_first: bool = False,
    ) -> Iterator[MessageInfo]:
        """Iterate over the messages, one state after the other. They are read in portions.

        Scheduled messages come in the order of their due times. The others come queue by queue: ready ones in
        the order in which they are taken, unacked ones worker by worker, failed tasks and dead letters the
        oldest first.

        While messages come and go, no message is included twice, and every message that stays in its state
        during the iteration is included. With several states, one that moves on from scheduled to ready,
        unacked, failed or dead is included, too; one that goes back may be missing. To tell that a message
        was included, about 60 bytes of memory are kept for each.

        Arguments:
            limit: the largest number of messages; ``None`` for all.
            newest_first: whether the scheduled messages come first that are due last, or in each queue the
                failed tasks, dead letters or finished tasks that came last. Ready and unacked messages have
                one order only.

        Raises:
            ValueError: *limit* is not a whole number from 0.
        """
        check_limit(limit)
        selection = selection or Selection()
        return islice(reading.matching(self, selection, selection.states(), newest_first), limit)

    def page(
        self,
        selection: Selection,
        *,
        start: str = "",
        newest_first: bool = False,
        size: int = reading.PAGE,
    ) -> Page:
        """Read a page of the messages in one state, in the order of :meth:`select`.

        A page of scheduled messages, or of failed tasks, begins after the last one of the page before it,
        whatever has happened meanwhile. In the other states, it begins at a position. If messages before it
        were taken meanwhile, the same number of messages is on no page.

        Arguments:
            start: :attr:`Page.next` of the page before; empty for the first page.
            newest_first: whether the scheduled messages come first that are due last, or in each queue the
                newest failed tasks or dead letters. The other states have one order.
            size: how many messages at most, at least 1.

        Raises:
            ValueError: more than one state is selected, *size* is below 1, or *start* is not from a page of
                this list.
        """
        return reading.page(self, selection, start, newest_first, size)

    def get(self, id: str) -> MessageInfo | None:
        """The message with this id, in whatever state; ``None`` if there is none. Of several, the first one
        of :meth:`select`. If it is not scheduled, all ready messages are searched for it, in portions: a
        million of them take some seconds."""
        return next(self.select(Selection(ids=[id]), limit=1), None)

    def tally(self, selection: Selection | None = None, by: str | Sequence[str] = "task") -> Counter[Any]:
        """How many messages there are of each kind. Reads every message, in portions: a million of them
        take minutes.

        Arguments:
            by: the name of an attribute of :class:`MessageInfo`, such as ``"task"`` or ``"priority"``, or of
                several. As the reason, all messages that wait for their unique keys count as "blocked".

        Returns:
            A ``Counter``: value of the attribute -> number of messages; with several names, the values as a
            tuple.

        Raises:
            ValueError: there is no such attribute.
        """
        names = [by] if isinstance(by, str) else list(by)
        for name in names:
            if name not in MessageInfo.__annotations__:
                raise ValueError(f"a message has no {name!r}")
        values = ([_kind(info, name) for name in names] for info in self.select(selection))
        if isinstance(by, str):
            return Counter(value for [value] in values)
        return Counter(map(tuple, values))

    def memory(self, queue: QueueNames = None) -> MemoryUse:
        """What fills Redis: which queue, state and task holds how many bytes, what else is in the database,
        and when Redis is full. Reads some 1,600 messages at random positions, however many there are; see
        :doc:`/memory` for how right that is.

        Arguments:
            queue: only this queue, or these.
        """
        return memory_use(self, queue)

    def failures(self, selection: Selection | None = None) -> list[FailureGroup]:
        """What has failed, by task and exception, the kind with the most failed tasks first. Tasks that are
        known to have returned are kinds of their own (:attr:`FailureGroup.returned`). With the state "dead",
        dead letters, by task and kind of reason.

        All failed tasks, or those of some queues, are counted without being read. With a filter or a time,
        they are read.

        Raises:
            ValueError: another state is selected.
        """
        return failure_groups(self, selection or Selection())

    def cancel(
        self,
        selection: Selection | None = None,
        *,
        ids: Iterable[str] | None = None,
        mark_revoked: bool = False,
        stop: Event | None = None,
        limit: int | None = None,
        dry_run: bool = False,
        progress: Tell | None = None,
    ) -> Done:
        """Remove messages that are scheduled or ready. They will not run.

        To remove a ready one, Redis goes through the messages between it and the nearer end of its queue, and
        serves no other client meanwhile. By ids, all ready messages are searched, unless *state* is
        "scheduled".

        Arguments:
            mark_revoked: also write the state ``REVOKED`` to the app's result backend, so that a program that
                waits for the result learns of it. With ``Selection(expired=True)``, chords learn of it, too,
                and a task whose chord cannot be read stays. This is different from ``AsyncResult.revoke``,
                which tells the workers to skip the task when they receive it. Each portion is told as soon as
                it was cancelled. If three in a row cannot be told, the others are not tried, and the rest of
                the selection stays (:attr:`Done.stopped`); by ids, all are cancelled.
            stop: an event that any other thread, or a signal handler, sets to have it stop between two
                portions.

        Raises:
            TypeError: *mark_revoked* was set without a Celery app.
            NotMarkedRevokedError: messages were cancelled, and the result backend could not be told.
        """
        if mark_revoked and self.app is None:
            raise TypeError("mark_revoked needs the Celery app, for its result backend")
        selection = selection_of(selection, ids)
        told = RevokedTasks(self.app, tells_chords=selection.expired) if mark_revoked else None
        action = Action(self.store, verbs.CANCEL, selection, limit, progress, {}, revoked=told, stop=stop)
        if dry_run:
            return self._would(action)
        ended: BaseException | None = None
        try:
            self._run(action)
        except BaseException as exc:
            # Also if *progress* has ended it: some are cancelled then.
            if told is None or not told.unmarked:
                raise
            ended = exc
        if told is not None and told.unmarked:
            why = "; then it ended: ".join(_in_a_line(exc) for exc in (told.error, ended) if exc is not None)
            raise NotMarkedRevokedError(action.done, why, told.unmarked_ids) from (ended or told.error)
        return action.done

    def reschedule(
        self,
        selection: Selection | None = None,
        *,
        ids: Iterable[str] | None = None,
        countdown: float | timedelta | str | None = None,
        eta: datetime | str | None = None,
        by: float | timedelta | str | None = None,
        over: float | timedelta | str | None = None,
        limit: int | None = None,
        dry_run: bool = False,
        progress: Tell | None = None,
    ) -> Done:
        """Deliver scheduled messages at another time, earlier or later. Each is moved once.

        This also changes their header ``eta`` or ``x-delay``, because workers use these headers. The header
        ``expires`` stays the same.

        Arguments:
            countdown: seconds from now, not negative; or a ``timedelta``, or a text such as ``"2h"``.
            eta: a time in the future; a text is in ISO 8601, with an offset.
            by: shift each due time by this time, written as *countdown*; negative to deliver earlier. What is
                due in the past then is delivered at once.
            over: spread the messages evenly over this time, in the order in which they are due. It
                begins at *countdown* or *eta*; without these, now. Each queue, and each partition, is spread
                over the whole time.

        Raises:
            ValueError: not exactly one of *countdown*, *eta* and *by* was given, nor *over* alone; *over* was
                given beside *by*; or one has a wrong type, is in the past or beyond the year 9999.
        """
        asked = {"countdown": countdown, "eta": eta, "by": by, "over": over}
        return self._act(verbs.RESCHEDULE, selection, ids, limit, dry_run, progress, **asked)

    def deliver_now(
        self,
        selection: Selection | None = None,
        *,
        ids: Iterable[str] | None = None,
        limit: int | None = None,
        dry_run: bool = False,
        progress: Tell | None = None,
    ) -> Done:
        """Move scheduled messages to the tail of their queues, as if they were due. They go to each queue in
        the order in which they were due."""
        return self._act(verbs.DELIVER_NOW, selection, ids, limit, dry_run, progress)

    def revoke(
        self,
        selection: Selection | None = None,
        *,
        ids: Iterable[str] | None = None,
        terminate: bool = False,
        limit: int | None = None,
        dry_run: bool = False,
        progress: Tell | None = None,
    ) -> Done:
        """Have workers skip tasks that they have taken and not begun: Celery's ``revoke``, for messages that
        are unacked. They stay unacked until their workers come to them. A task that runs goes on.

        Arguments:
            terminate: also end tasks that run, at once, with the signal TERM to their processes. The pool
                prefork can do that. Such a task does not run again, not even with late acks.

        Raises:
            TypeError: there is no Celery app.
        """
        asked = {"app": self.app, "terminate": terminate}
        return self._act(verbs.REVOKE, selection, ids, limit, dry_run, progress, **asked)

    def requeue(
        self,
        selection: Selection | None = None,
        *,
        ids: Iterable[str] | None = None,
        rate: str | float | None = None,
        stop: Event | None = None,
        limit: int | None = None,
        dry_run: bool = False,
        progress: Tell | None = None,
    ) -> Done:
        """Put failed tasks, or dead letters, that are there now at the tail of the queues that they came
        from. A selection that is not by ids says which: *state* is "failed" or "dead". All that are selected
        are read.

        Their failures are counted from 0 again. A failed task also has no retries behind it, is due at once
        and does not expire; see :doc:`/failed`. One that was kept without its message stays
        (:attr:`Done.without_message`), and so does one that is known to have returned, unless it is asked for
        by its id or by :attr:`Selection.returned`: it would do its work once more (:attr:`Done.returned`).

        Arguments:
            rate: requeue failed tasks slowly, in the thread that calls this: ``"10/s"``, ``"100/m"``,
                ``"1000/h"``, or a number a second, for all queues together. It stops when more than half
                of the last 20 have failed again (:attr:`Done.stopped`). *progress* is also called about every
                second.
            stop: with a rate: an event that any other thread, or a signal handler, sets to have it stop.

        Raises:
            ValueError: *rate* is none, or another state than "failed" is selected with one.
        """
        if rate is None:
            return self._act(verbs.REQUEUE, selection, ids, limit, dry_run, progress)
        pace = Pace(self.store, rate, stop)
        action = requeueing(self, selection_of(selection, ids), pace, limit, progress)
        return self._would(action) if dry_run else self._run(action)

    def remove(
        self,
        selection: Selection | None = None,
        *,
        ids: Iterable[str] | None = None,
        limit: int | None = None,
        dry_run: bool = False,
        progress: Tell | None = None,
    ) -> Done:
        """Remove failed tasks, or dead letters, that are there now, for good. A selection that is not by ids
        says which: *state* is "failed" or "dead". Those that are known to have returned stay, as with
        :meth:`requeue`."""
        return self._act(verbs.REMOVE, selection, ids, limit, dry_run, progress)

    def _act(
        self,
        verb: Verb,
        selection: Selection | None,
        ids: Iterable[str] | None,
        limit: int | None,
        dry_run: bool,
        progress: Tell | None,
        **asked: Any,
    ) -> Done:
        action = Action(self.store, verb, selection_of(selection, ids), limit, progress, asked)
        return self._would(action) if dry_run else self._run(action)

    def _run(self, action: Action) -> Done:
        return action.run(reading.names(self, action.selection))

    def _would(self, action: Action) -> Done:
        """What *action* would do."""
        selection, limit = action.selection, action.limit
        blocked = action.foresee(reading.names(self, selection))
        if selection.ids is None:
            if selection.expired:
                # Some may stay, because their chords could not be told.
                count = action.count(reading.names(self, selection))
            else:
                count = int(reading.count(self, selection, action.states))
            count = max(0, count - action.done.blocked - action.done.without_message)
            return action.would(count if limit is None else min(limit, count), {})
        found = Counter(message.id for message in reading.matching(self, selection, action.states))
        by_id = Counter(dict.fromkeys(selection.ids, 0))
        by_id.update(islice((found - blocked).elements(), limit))
        return action.would(by_id.total(), by_id)


def _in_a_line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def _kind(message: MessageInfo, name: str) -> Any:
    """What *message* counts as."""
    return BLOCKED if name == "reason" and message.is_blocked else getattr(message, name)
