"""Which queues a channel takes from: with many queues, only from those that may have something."""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Mapping, Sequence
from itertools import islice
from time import monotonic

from kombu_redisdelay.broker.delivery import Looked, Peek, Taken
from kombu_redisdelay.broker.takes import QUEUES_PER_TAKE

#: Seconds that a consumer with many queues goes on taking before it looks at all of them again.
LOOK_AFTER = 1.0

#: Queues that a take goes to if more are hot than one can work on. It takes a second message from each of
#: them rather than one from twice as many, which would cost Redis half as much again.
QUEUES_OF_MORE = 8

#: Before the first of the priority steps.
UNKNOWN = 0


class HotQueues:
    """Keeps track of the queues that may have messages to take.

    A queue is hot if a token has woken it, if a look has found something in it, if a take has left something
    there, or if a scheduled message of it is due.

    With up to :data:`~kombu_redisdelay.broker.takes.QUEUES_PER_TAKE` queues, every take goes to all.

    Arguments:
        consumed: the queues that are consumed from. What is told of others is ignored: a reply may come
            after its queue was cancelled.
    """

    def __init__(self, consumed: Container[str], clock: Callable[[], float] = monotonic) -> None:
        self._consumed = consumed
        self._clock = clock
        #: Queue -> the first of its priority steps that has something, 0 if it is not known which.
        self._hot: dict[str, int] = {}
        #: When the next message of a queue is due, seconds of the clock.
        self._due_at: dict[str, float] = {}
        self._looked_at = float("-inf")

    def look_soon(self) -> None:
        """There are new queues."""
        self._looked_at = float("-inf")

    def forget(self, queue: str) -> None:
        """The queue is not consumed from any more."""
        self._hot.pop(queue, None)
        self._due_at.pop(queue, None)

    def needs_look(self, queues: Sequence[str]) -> bool:
        """Whether to look at the *queues* before the next take."""
        return len(queues) > QUEUES_PER_TAKE and self._clock() - self._looked_at >= LOOK_AFTER

    def looked(self, looked: Looked) -> None:
        """Note what a look has shown."""
        self._looked_at = self._clock()
        self._add(looked.ready)
        self._due_at.clear()
        self._note_due((), looked.due)

    def found(self, looked: Looked) -> None:
        """Note what a look at some of the queues has shown."""
        self._add(looked.ready)

    def peeked(self, peek: Peek) -> None:
        """Note what a peek has shown."""
        self._note_due(peek.schedules_of, peek.due)

    def woken(self, queue: str) -> None:
        """A token has come from *queue*."""
        self._add({queue: UNKNOWN})

    def taken(self, hot: Collection[str], taken: Taken) -> None:
        """Note what a take from the queues *hot* has left."""
        for queue in hot:
            self._hot.pop(queue, None)
        self._add(taken.more)
        self._note_due(hot, taken.due)

    def choose(self, order: Sequence[str]) -> tuple[Sequence[str], bool]:
        """The queues to take from, in this *order* of all queues, and whether others were left out.

        If more are hot than a take works on, half of the places are for queues that have a message due: it
        becomes ready, and can be taken by others. So nothing starves, however much is due. The other places
        are for those that have the highest priority, and among them for the first in *order*.
        """
        if len(order) <= QUEUES_PER_TAKE:
            return order, False
        now = self._clock()
        due = {queue for queue, at in self._due_at.items() if at <= now}
        count = len(due | self._hot.keys())
        if count <= 1:
            return [*(due or self._hot)], False
        most = QUEUES_PER_TAKE if count <= QUEUES_PER_TAKE else QUEUES_OF_MORE
        hot = set(islice((queue for queue in order if queue in due), most // 2))
        for step in sorted(set(self._hot.values())):
            at_step = (q for q in order if self._hot.get(q) == step and q not in hot)
            hot.update(islice(at_step, most - len(hot)))
        more_due = (queue for queue in order if queue in due and queue not in hot)
        hot.update(islice(more_due, most - len(hot)))
        return [queue for queue in order if queue in hot], len(hot) < count

    def __bool__(self) -> bool:
        """Whether any queue is known to have something ready."""
        return bool(self._hot)

    @property
    def has_any(self) -> bool:
        """Whether any queue is known to have something to take now."""
        return bool(self._hot) or self.next_due() == 0

    def next_due(self) -> float | None:
        """Seconds until the next scheduled message is due, ``None`` if none is scheduled."""
        if not self._due_at:
            return None
        return max(0.0, min(self._due_at.values()) - self._clock())

    def _add(self, steps: Mapping[str, int]) -> None:
        self._hot.update({queue: step for queue, step in steps.items() if queue in self._consumed})

    def _note_due(self, queues: Collection[str], due: Mapping[str, float]) -> None:
        if not due and not self._due_at:
            return
        now = self._clock()
        for queue in queues:
            self._due_at.pop(queue, None)
        for queue, seconds in due.items():
            if queue in self._consumed:
                self._due_at[queue] = now + seconds
