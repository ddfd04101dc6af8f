"""The public API over dead letters: look at them, give them another chance, remove them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from hashlib import sha1
from itertools import chain, islice
from typing import Any

from kombu_redisdelay.broker.dead import Buried, Graveyard
from kombu_redisdelay.broker.times import from_ms
from kombu_redisdelay.operations.access import Access, check_limit
from kombu_redisdelay.operations.content import Content


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A message that will not be delivered any more.

    Attributes:
        id: as :attr:`DelayedMessage.id <kombu_redisdelay.operations.delayed.DelayedMessage.id>`; for an
            entry that is not a message, the SHA-1 of its bytes in hexadecimal.
        when: when it became a dead letter, in UTC.
        reason: why, in one line.
        deliveries: how often it had been delivered.
        task: name of the Celery task, ``None`` if it is none.
        args: ``repr`` of the task's positional arguments, as Celery put it into the headers.
        kwargs: the same of its keyword arguments.
        payload: the message as its publisher wrote it, byte for byte.
        headers: as they were published; empty if it is not a message.
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


class DeadLetters(Access):
    """The dead letters of a broker.

    Where a *queue* may be given, ``None`` stands for all of them. A queue or an id that is not known is an
    empty result, not an error. To find a letter by its id, or a task's, they are read one by one: a queue
    keeps ``dead_letter_limit`` of them.

    Arguments and errors are those of :class:`~kombu_redisdelay.operations.access.Access`; every method
    raises what redis-py raises.
    """

    def count(self, queue: str | None = None) -> int:
        """How many there are."""
        return self._graveyard.count(self._queues(queue))

    def iter(
        self, queue: str | None = None, *, task: str | None = None, limit: int | None = None
    ) -> Iterator[DeadLetter]:
        """The dead letters of one queue after the other, the oldest first, read in bounded steps as you go
        on.

        Arguments:
            task: only tasks of this name.
            limit: at most so many; ``None`` for all.

        Raises:
            ValueError: *limit* is not a whole number from 0.
        """
        check_limit(limit)
        each = (self._graveyard.iter(name) for name in self._queues(queue))
        letters = map(_letter, chain.from_iterable(each))
        return islice((letter for letter in letters if task is None or letter.task == task), limit)

    def get(self, id: str) -> DeadLetter | None:
        """The dead letter with this id, the oldest if there are several; ``None`` if there is none."""
        return next((letter for letter in self.iter() if letter.id == id), None)

    def requeue(self, id: str) -> bool:
        """Put the dead letter with this id, or all if there are several, at the tail of the queue that it
        came from, with its count of deliveries back at 0.

        Returns:
            Whether there was one.
        """
        wanted = _has_id(id)
        return sum(self._graveyard.requeue(queue, wanted) for queue in self.queues()) > 0

    def requeue_all(self, queue: str | None = None, *, task: str | None = None) -> int:
        """As :meth:`requeue`, for all dead letters that are there now, or those of *task*.

        Returns:
            How many there were.
        """
        wanted = _is_task(task)
        return sum(self._graveyard.requeue(name, wanted) for name in self._queues(queue))

    def purge(self, queue: str | None = None, *, task: str | None = None) -> int:
        """Remove all dead letters that are there now, or those of *task*.

        Returns:
            How many there were.
        """
        if task is None:
            return sum(map(self._graveyard.clear, self._queues(queue)))
        return sum(self._graveyard.drop(name, _is_task(task)) for name in self._queues(queue))

    @property
    def _graveyard(self) -> Graveyard:
        return Graveyard(self.store)


def _letter(buried: Buried) -> DeadLetter:
    content = Content.of(buried.payload, otherwise=sha1(buried.payload, usedforsecurity=False).hexdigest())
    return DeadLetter(
        id=content.id,
        queue=buried.queue,
        when=from_ms(buried.died_ms),
        reason=buried.reason,
        deliveries=buried.deliveries,
        task=content.task,
        args=content.args,
        kwargs=content.kwargs,
        payload=buried.payload,
        headers=content.headers,
    )


def _has_id(id: str) -> Callable[[Buried], bool]:
    return lambda buried: _letter(buried).id == id


def _is_task(task: str | None) -> Callable[[Buried], bool]:
    return lambda buried: task is None or _letter(buried).task == task
