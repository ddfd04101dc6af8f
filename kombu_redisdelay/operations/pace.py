"""How far an operation on many messages is, and how fast it may go: it stops when too many fail again."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import takewhile
from threading import Event
from time import monotonic
from typing import TypeVar

from kombu_redisdelay.broker.archive import Archive, Archived, id_in, kind_of
from kombu_redisdelay.broker.keys import FAILED
from kombu_redisdelay.broker.limits import interval_us
from kombu_redisdelay.broker.paging import Part
from kombu_redisdelay.broker.store import Store
from kombu_redisdelay.operations.stats import queue_stats

T = TypeVar("T")

#: Progress is told each time that this number of messages was looked at.
_EVERY = 100

#: The argument *progress* of an operation: called with the number of messages that it was done to so far.
Tell = Callable[[int], object]


class Progress:
    """Counts what is done, and tells it.

    Arguments:
        tell: called with the count so far, between two round trips; ``None`` for none. It may raise an
            exception to end the operation there.

    Attributes:
        count: how many messages it was done to so far.
    """

    def __init__(self, tell: Tell | None) -> None:
        self.count = 0
        self._tell = tell
        self._looked_at = 0

    def look(self) -> None:
        """A message is looked at, and everything that was begun before is done."""
        self._looked_at += 1
        if self._looked_at % _EVERY == 0:
            self.tell()

    def watching(self, messages: Iterable[T]) -> Iterator[T]:
        """*messages*, of which each is looked at."""
        for each in messages:
            self.look()
            yield each

    def add_portion(self, count: int) -> None:
        """It was done to *count* messages in one round trip."""
        self.count += count
        self.tell()

    def tell(self) -> None:
        if self._tell is not None:
            self._tell(self.count)


#: A task that has not failed again after this time, in seconds, is not watched any more.
WATCHED = 60.0

#: It stops if more than half of so many have failed again, the last ones that count.
LAST = 20

#: Of fewer than this number, it is too early to tell.
LEAST = 10

#: More are not watched: at a high rate, only those of less than a minute.
_MOST_WATCHED = 50_000

#: How often it is looked which have failed again, in seconds.
_LOOK_EVERY = 1.0

#: At a high rate, what may go in this time goes together, in seconds, but no more than this number.
_TOGETHER = 0.1
_MOST_TOGETHER = 50

#: Why it stops before it is through.
FAILING, ASKED = "failing", "asked"


@dataclass(slots=True)
class _Sent:
    """A task that was sent.

    Attributes:
        queue, id: where it was among the failed tasks, and comes to again. Others may have the same id.
        at: when it was sent, by this process's clock, in seconds.
        has_failed: whether it has failed again.
    """

    queue: str
    id: bytes
    at: float
    has_failed: bool = False


class Pace:
    """Says when failed tasks may be sent again, and how many.

    It stops when of the last 20 whose end is known, at least ten, more than half have failed again. Workers
    take tasks in the order in which they were sent, so those count that were sent before the last one that
    has failed again: of the others, it is too early to tell. Nobody tells the broker that a task has
    succeeded: what has not failed again counts as if it had.

    Arguments:
        rate: how many in which time, such as ``"10/s"``.
        stop: set by any thread to have it stop; ``None`` for never.

    Attributes:
        rate: the rate, such as ``"10/s"``.
        failed_again: how many have failed again so far.
        sent: name of a queue -> how many have been sent to it.
        stopped: why it has stopped: :data:`FAILING`, or :data:`ASKED`; empty if it has not.

    Raises:
        ValueError: *rate* is none.
    """

    def __init__(self, store: Store, rate: str | float, stop: Event | None = None) -> None:
        self.rate = str(rate)
        self._store = store
        self._tasks = Archive(store, FAILED)
        self._interval = interval_us(rate) / 1_000_000
        self._together = max(1, min(_MOST_TOGETHER, int(_TOGETHER / self._interval)))
        self._stop = stop or Event()
        self._next = self._next_look = monotonic()
        self._sent: deque[_Sent] = deque(maxlen=_MOST_WATCHED)
        #: What has failed before was there before.
        self._began = Part(store.now_ms(), None)
        #: Name of a queue -> the tasks in it that have failed since, and were not looked at yet.
        self._unread: dict[str, Part] = {}
        self.failed_again = 0
        self.sent: Counter[str] = Counter()
        self.stopped = ""

    def wait(self, tell: Callable[[], object]) -> int:
        """Wait until more may be sent. Returns how many; 0 if it has stopped.

        Arguments:
            tell: called about every second. It may raise an exception to end this.
        """
        while not self.stopped:
            if self._stop.is_set():
                self.stopped = ASKED
                break
            now = monotonic()
            if now >= self._next_look:
                self._next_look = now + _LOOK_EVERY
                self.look()
                tell()
            elif now >= self._next:
                return self._together
            else:
                self._stop.wait(min(self._next, self._next_look) - now)
        return 0

    def note(self, task: Archived) -> None:
        """*task* was sent."""
        now = monotonic()
        self._sent.append(_Sent(task.queue, id_in(task.name), now))
        self.sent[self._store.partitions.queue_of(task.queue)] += 1
        # What was late is made up for, but not for more than is sent together.
        self._next = max(self._next, now - self._together * self._interval) + self._interval

    def waiting(self) -> int:
        """How many of those that were sent wait in queues that no worker consumes from."""
        found = queue_stats(self._store, list(self.sent))
        return sum(min(self.sent[each.queue], each.ready) for each in found if not each.consumers)

    def unknown(self) -> int:
        """How many of the last ones that were sent have not failed again, and may still run."""
        first = monotonic() - WATCHED
        last = takewhile(lambda each: not each.has_failed and each.at >= first, reversed(self._sent))
        return sum(1 for _ in last)

    def look(self) -> None:
        """Look which have failed again, and whether they are too many."""
        now = monotonic()
        while len(self._sent) > LAST and self._sent[0].at < now - WATCHED:
            self._sent.popleft()
        watched: dict[str, dict[bytes, deque[_Sent]]] = {}
        for each in self._sent:
            if not each.has_failed and each.at >= now - WATCHED:
                watched.setdefault(each.queue, {}).setdefault(each.id, deque()).append(each)
        for queue, by_id in watched.items():
            for id in self._failed_since(queue):
                # Of those with the same id, workers took the one first that was sent first.
                if sent := by_id.get(id):
                    sent.popleft().has_failed = True
                    self.failed_again += 1
        if are_failing([each.has_failed for each in self._sent]):
            self.stopped = FAILING

    def _failed_since(self, queue: str) -> Iterator[bytes]:
        """The ids of those tasks of *queue* that have failed since it was called last."""
        for page in self._tasks.heads(queue, self._unread.get(queue, self._began)):
            for row in page:
                kind = kind_of(row.stored)
                if kind is None or not kind.returned:
                    yield id_in(row.name)
                self._unread[queue] = Part(row.at_ms, None, after=row.name)


def are_failing(have_failed: Iterable[bool]) -> bool:
    """Whether too many have failed again, by what is known of each, in the order in which they were sent."""
    known = list(have_failed)
    while known and not known[-1]:
        known.pop()
    last = known[-LAST:]
    return len(last) >= LEAST and sum(last) > len(last) / 2
