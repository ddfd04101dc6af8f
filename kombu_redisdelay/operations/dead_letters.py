"""The public API over dead letters: look at them, give them another chance, remove them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from hashlib import sha1
from itertools import chain, islice
from typing import Any

from kombu_redisdelay.broker.dead import Buried, Graveyard
from kombu_redisdelay.broker.times import from_ms
from kombu_redisdelay.operations.access import Access, check_limit
from kombu_redisdelay.operations.content import Content
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

    For the argument *queue*, ``None`` means all queues. A queue or an id that is not known gives an empty
    result, not an error. To find dead letters by id or by task, every dead letter is read. A queue keeps at
    most ``dead_letter_limit`` of them.

    Arguments and errors are the same as for :class:`~kombu_redisdelay.operations.access.Access`. Every
    method may raise ``redis.exceptions.RedisError``.
    """

    def count(self, queue: str | None = None) -> int:
        """The number of dead letters."""
        return self._graveyard.count(self._queues(queue))

    def iter(
        self, queue: str | None = None, *, task: str | None = None, limit: int | None = None
    ) -> Iterator[DeadLetter]:
        """Iterate over the dead letters, queue by queue, the oldest of each queue first. They are read in
        bounded steps.

        Arguments:
            task: only tasks with this name.
            limit: the largest number of dead letters; ``None`` for all.

        Raises:
            ValueError: *limit* is not a whole number from 0.
        """
        check_limit(limit)
        each = (self._graveyard.iter(name) for name in self._queues(queue))
        letters = map(self._letter, chain.from_iterable(each))
        return islice((letter for letter in letters if task is None or letter.task == task), limit)

    def get(self, id: str) -> DeadLetter | None:
        """The dead letter with this id, ``None`` if there is none. Of several, the oldest of the first queue
        that has one."""
        return next((letter for letter in self.iter() if letter.id == id), None)

    def requeue(self, id: str) -> bool:
        """Put the dead letter with this id at the tail of the queue that it came from. Its count of
        deliveries starts at 0 again. If there are several with this id, requeue all of them.

        Returns:
            Whether there was one.
        """
        wanted = _has_id(id)
        return sum(self._graveyard.requeue(queue, wanted) for queue in self._queues(None)) > 0

    def requeue_all(self, queue: str | None = None, *, task: str | None = None) -> int:
        """Requeue all dead letters that are there now, as :meth:`requeue` does.

        Arguments:
            task: only tasks with this name.

        Returns:
            The number of dead letters that were requeued.
        """
        wanted = _is_task(task)
        return sum(self._graveyard.requeue(name, wanted) for name in self._queues(queue))

    def purge(self, queue: str | None = None, *, task: str | None = None) -> int:
        """Remove all dead letters that are there now.

        Arguments:
            task: only tasks with this name.

        Returns:
            The number of dead letters that were removed.
        """
        if task is None:
            return sum(map(self._graveyard.clear, self._queues(queue)))
        return sum(self._graveyard.drop(name, _is_task(task)) for name in self._queues(queue))

    def _letter(self, buried: Buried) -> DeadLetter:
        return replace(_letter(buried), queue=self.store.partitions.queue_of(buried.queue))

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
