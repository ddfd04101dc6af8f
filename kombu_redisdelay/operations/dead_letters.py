"""The public API over dead letters: look at them, give them another chance, remove them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from hashlib import sha1
from itertools import islice
from typing import Any

from kombu_redisdelay.broker.dead import DROP, REQUEUE, Buried, Graveyard
from kombu_redisdelay.broker.times import from_ms
from kombu_redisdelay.operations.access import Access, Selection, check_limit, checked_ids, moment_ms
from kombu_redisdelay.operations.content import Content, is_task
from kombu_redisdelay.operations.progress import Progress, Tell
from kombu_redisdelay.operations.queued import Found, is_within, without_repetitions
from kombu_redisdelay.public import public


@public
@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A message that will not be delivered any more.

    Attributes:
        id: as :attr:`DelayedMessage.id <kombu_redisdelay.DelayedMessage.id>`; for an
            entry that is not a message, the SHA-1 of its bytes in hexadecimal.
        queue: name of the queue that it comes from.
        when: when it became a dead letter, in UTC.
        reason: why it became one, in one line.
        deliveries: how many times it had been delivered.
        task: name of the Celery task, ``None`` if the entry is not a task.
        args: ``repr`` of the task's positional arguments, from the message headers.
        kwargs: the same for its keyword arguments.
        payload: the bytes of the message, as they were published.
        headers: the headers that it was published with; empty if the entry is not a message.
    """

    id: str
    queue: str
    when: datetime
    reason: str
    deliveries: int
    task: str | None
    args: str
    kwargs: str
    payload: bytes = field(repr=False)
    headers: Mapping[str, Any] = field(repr=False)


@public
class DeadLetters(Access):
    """The dead letters of a broker.

    The argument *queue* is the name of a queue, or several names. ``None`` means all queues. A queue or an id
    that is not known gives an empty result, not an error. To find dead letters by id, task or time, every
    dead letter is read. A queue keeps at most ``dead_letter_limit`` of them.

    The argument *task* is the name of a task, in which ``*``, ``?`` and ``[...]`` are wildcards. *before* and
    *after* are about the time when a message became a dead letter: before *before*, and at *after* or later.
    They are datetimes; a naive one is in UTC. A time that is not a ``datetime`` is a ``ValueError``.

    The argument *progress* is called with how many dead letters it was done to so far, between two steps. If
    it raises an exception, the method ends there: what was done stays done.

    Arguments and errors are the same as for :class:`~kombu_redisdelay.operations.access.Access`. Every
    method may raise ``redis.exceptions.RedisError``.
    """

    def count(self, queue: Selection = None) -> int:
        """The number of dead letters."""
        return sum(self._graveyard.counts(self.names(queue)))

    def iter(
        self,
        queue: Selection = None,
        *,
        task: str | None = None,
        before: datetime | None = None,
        after: datetime | None = None,
        limit: int | None = None,
    ) -> Iterator[DeadLetter]:
        """Iterate over the dead letters, queue by queue, the oldest of each queue first. They are read in
        bounded steps.

        While dead letters come and go, none is included twice, and every one that stays is included. To tell
        that one was included, about 60 bytes of memory are kept for each.

        Arguments:
            limit: the largest number of dead letters; ``None`` for all.

        Raises:
            ValueError: *limit* is not a whole number from 0, or a time is not a ``datetime``.
        """
        check_limit(limit)
        wanted = _matching(task, before, after)
        found = (
            self._found(buried, is_sure)
            for buried, is_sure in self._graveyard.walk_all(self.names(queue))
            if wanted(buried)
        )
        return islice(without_repetitions(found), limit)

    def get(self, id: str) -> DeadLetter | None:
        """The dead letter with this id, ``None`` if there is none. Of several, the oldest of the first queue
        that has one."""
        return next((letter for letter in self.iter() if letter.id == id), None)

    def get_all(self, id: str) -> list[DeadLetter]:
        """All dead letters with this id."""
        return [letter for letter in self.iter() if letter.id == id]

    def requeue(self, id: str) -> int:
        """Put the dead letter with this id at the tail of the queue that it came from. Its count of
        deliveries starts at 0 again. If there are several with this id, requeue all of them.

        Returns:
            The number of dead letters that were requeued, 0 if there is none.
        """
        return self.requeue_many([id])[id]

    def requeue_many(self, ids: Iterable[str], *, queue: Selection = None) -> dict[str, int]:
        """Do the same as :meth:`requeue` for each of *ids*. The dead letters are read once for all of them.

        Arguments:
            queue: only dead letters of this queue.

        Returns:
            Id -> how many dead letters were requeued, for each of *ids*.
        """
        return self._with_ids(queue, ids, REQUEUE)

    def requeue_all(
        self,
        queue: Selection = None,
        *,
        task: str | None = None,
        before: datetime | None = None,
        after: datetime | None = None,
        progress: Tell | None = None,
    ) -> int:
        """Requeue dead letters that are there now, as :meth:`requeue` does.

        Returns:
            The number of dead letters that were requeued.
        """
        return self._with_all(REQUEUE, queue, _matching(task, before, after), Progress(progress))

    def remove(self, id: str) -> int:
        """Remove the dead letter with this id. If there are several with this id, remove all of them.

        Returns:
            The number of dead letters that were removed, 0 if there is none.
        """
        return self.remove_many([id])[id]

    def remove_many(self, ids: Iterable[str], *, queue: Selection = None) -> dict[str, int]:
        """Do the same as :meth:`remove` for each of *ids*. The dead letters are read once for all of them.

        Arguments:
            queue: only dead letters of this queue.

        Returns:
            Id -> how many dead letters were removed, for each of *ids*.
        """
        return self._with_ids(queue, ids, DROP)

    def purge(
        self,
        queue: Selection = None,
        *,
        task: str | None = None,
        before: datetime | None = None,
        after: datetime | None = None,
        progress: Tell | None = None,
    ) -> int:
        """Remove dead letters that are there now.

        Returns:
            The number of dead letters that were removed.
        """
        wanted, so_far = _matching(task, before, after), Progress(progress)
        if (task, before, after) != (None, None, None):
            return self._with_all(DROP, queue, wanted, so_far)
        for name in self.names(queue):
            so_far.add_step(self._graveyard.clear(name))
        return so_far.count

    def _with_all(
        self, how: str, queue: Selection, is_wanted: Callable[[Buried], bool], so_far: Progress
    ) -> int:
        def is_chosen(letter: Buried) -> bool:
            so_far.look()
            return is_wanted(letter)

        for name in self.names(queue):
            so_far.add(self._graveyard.take_out(name, how, is_chosen))
        return so_far.count

    def _with_ids(self, queue: Selection, ids: Iterable[str], how: str) -> dict[str, int]:
        counts = dict.fromkeys(checked_ids(ids), 0)
        for name in self.names(queue) if counts else ():
            for letter in self._graveyard.take_out(name, how, lambda buried: _content(buried).id in counts):
                counts[_content(letter).id] += 1
        return counts

    def _found(self, buried: Buried, is_sure: bool) -> Found[DeadLetter]:
        queue = self.store.partitions.queue_of(buried.queue)
        content = _content(buried)
        identity = (queue, content.tag or buried.payload, content.id)
        return Found(_letter(buried, queue, content), identity, content.tag is not None, is_sure)

    @property
    def _graveyard(self) -> Graveyard:
        return Graveyard(self.store)


def _content(buried: Buried) -> Content:
    return Content.of(buried.payload, otherwise=sha1(buried.payload, usedforsecurity=False).hexdigest())


def _letter(buried: Buried, queue: str, content: Content) -> DeadLetter:
    return DeadLetter(
        id=content.id,
        queue=queue,
        when=from_ms(buried.died_ms),
        reason=buried.reason,
        deliveries=buried.deliveries,
        task=content.task,
        args=content.args,
        kwargs=content.kwargs,
        payload=buried.payload,
        headers=content.headers,
    )


def _matching(task: str | None, before: datetime | None, after: datetime | None) -> Callable[[Buried], bool]:
    """Tells the dead letters of this task and between these times.

    Raises:
        ValueError: a time is not a ``datetime``.
    """
    after_ms, before_ms = moment_ms("after", after), moment_ms("before", before)

    def is_wanted(buried: Buried) -> bool:
        in_time = is_within(from_ms(buried.died_ms), after_ms, before_ms)
        return in_time and (task is None or is_task(_content(buried).task, task))

    return is_wanted
