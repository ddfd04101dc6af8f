"""The queues that a channel consumes from: from which of them it takes, and when it looks for more.

With many queues, it takes only from those that may have something. It looks for messages that came without a
wake-up token, because their producer is not ours, and for tasks that other workers did not know, and that
wait for this worker.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Mapping, Sequence
from itertools import chain, islice
from math import inf
from time import monotonic
from typing import Any

from kombu.transport import virtual

from kombu_redisdelay.broker.delivery import Looked, Peek, Taken, Waiting
from kombu_redisdelay.broker.takes import QUEUES_PER_TAKE
from kombu_redisdelay.broker.unknown_tasks import is_known

#: Seconds that a consumer with many queues goes on taking before it looks at all of them again.
LOOK_AFTER = 1.0

#: Queues that a take goes to if more are polled than one can work on. It takes a second message from each of
#: them rather than one from twice as many, which would cost Redis half as much again.
QUEUES_OF_MORE = 8

#: Before the first of the priority steps.
UNKNOWN = 0

#: Seconds between two looks for messages without a token while such messages come, at least.
LOOK_EVERY = 0.05

#: After each take that finds nothing, that time is twice as long. After a take that finds something, it is
#: this long at most.
LOOK_AGAIN = 8 * LOOK_EVERY

#: After a while without any, the seconds between two looks are that while divided by this.
LOOKS_IN_A_WHILE = 50

#: With this number of seconds between two looks, they end. A consumer that waits for a token that does not
#: come looks about once a second anyway.
LOOK_NO_MORE = 0.9

#: Seconds for which a message must be there to count as one without a token. A consumer that was woken by a
#: token takes the message sooner than that.
SETTLE = 0.003

#: Tokens can keep a consumer from looking. After this number of seconds it looks in spite of them.
LOOK_AT_LEAST_EVERY = 1.0

#: A look covers the queues where such messages were found last, and this number of groups of others, in turn.
GROUPS = 4

#: Queues of which it takes one command to learn whether any of them has something.
Group = tuple[str, ...]

#: Seconds between two looks for tasks that wait for this worker.
LOOK_FOR_TASKS_AFTER = 1.0


class ConsumedQueues:
    """The queues that a channel consumes from, and how. The channel writes it; fetchers read it.

    Attributes:
        callbacks: queue -> what gets its messages.
        queues: those of them that are asked for, in the order in which consuming began. The others are bound
            to fanout exchanges.
        no_ack: those whose messages are delivered without acks.
        acked_at_once: those whose messages count as acked when they are taken. It is replaced, never changed:
            a request goes on with what it was made for.
        known_tasks: the names of the tasks that the worker knows; ``None`` if it is no worker of Celery, or
            discards what it does not know.
    """

    def __init__(self) -> None:
        self.callbacks: dict[str, Callable[[virtual.Message], Any]] = {}
        self.queues: Sequence[str] = ()
        self.no_ack: set[str] = set()
        self.acked_at_once: frozenset[str] = frozenset()
        self.known_tasks: Collection[str] | None = None

    def add(
        self, queue: str, callback: Callable[[virtual.Message], Any], no_ack: bool, acked_at_once: bool
    ) -> None:
        """Consume from *queue*.

        Arguments:
            no_ack: whether its messages are delivered without acks.
            acked_at_once: whether its messages count as acked when they are taken.
        """
        self.callbacks[queue] = callback
        (self.no_ack.add if no_ack else self.no_ack.discard)(queue)
        self.acked_at_once = self.acked_at_once | {queue} if acked_at_once else self.acked_at_once - {queue}

    def remove(self, queue: str) -> None:
        """Do not consume from *queue* any more."""
        self.callbacks.pop(queue, None)
        self.no_ack.discard(queue)
        self.acked_at_once -= {queue}


class PolledQueues:
    """Keeps track of the queues that may have messages to take.

    A queue is polled if a token has woken it, if a look has found something in it, if a take has left
    something there, or if a scheduled message of it is due.

    With up to :data:`~kombu_redisdelay.broker.takes.QUEUES_PER_TAKE` queues, every take goes to all.

    Arguments:
        consumed: the queues that are consumed from. What is told of others is ignored: a reply may come
            after its queue was cancelled.
    """

    def __init__(self, consumed: Container[str], clock: Callable[[], float] = monotonic) -> None:
        self._consumed = consumed
        self._clock = clock
        #: Queue -> the first of its priority steps that has something, 0 if it is not known which.
        self._polled: dict[str, int] = {}
        #: When the next message of a queue is due, seconds of the clock.
        self._due_at: dict[str, float] = {}
        self._looked_at = float("-inf")

    def look_soon(self) -> None:
        """There are new queues."""
        self._looked_at = float("-inf")

    def forget(self, queue: str) -> None:
        """The queue is not consumed from any more."""
        self._polled.pop(queue, None)
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

    def taken(self, polled: Collection[str], taken: Taken) -> None:
        """Note what a take from the queues *polled* has left."""
        for queue in polled:
            self._polled.pop(queue, None)
        self._add(taken.more)
        self._note_due(polled, taken.due)

    def choose(self, order: Sequence[str]) -> tuple[Sequence[str], bool]:
        """The queues to take from, in this *order* of all queues, and whether others were left out.

        If more are polled than a take works on, half of the places are for queues that have a message due: it
        becomes ready, and can be taken by others. So nothing starves, however much is due. The other places
        are for those that have the highest priority, and among them for the first in *order*.
        """
        if len(order) <= QUEUES_PER_TAKE:
            return order, False
        now = self._clock()
        due = {queue for queue, at in self._due_at.items() if at <= now}
        count = len(due | self._polled.keys())
        if count <= 1:
            return [*(due or self._polled)], False
        most = QUEUES_PER_TAKE if count <= QUEUES_PER_TAKE else QUEUES_OF_MORE
        polled = set(islice((queue for queue in order if queue in due), most // 2))
        for step in sorted(set(self._polled.values())):
            at_step = (q for q in order if self._polled.get(q) == step and q not in polled)
            polled.update(islice(at_step, most - len(polled)))
        more_due = (queue for queue in order if queue in due and queue not in polled)
        polled.update(islice(more_due, most - len(polled)))
        return [queue for queue in order if queue in polled], len(polled) < count

    def __bool__(self) -> bool:
        """Whether any queue is known to have something ready."""
        return bool(self._polled)

    @property
    def has_any(self) -> bool:
        """Whether any queue is known to have something to take now."""
        return bool(self._polled) or self.next_due() == 0

    def next_due(self) -> float | None:
        """Seconds until the next scheduled message is due, ``None`` if none is scheduled."""
        if not self._due_at:
            return None
        return max(0.0, min(self._due_at.values()) - self._clock())

    def _add(self, steps: Mapping[str, int]) -> None:
        self._polled.update({queue: step for queue, step in steps.items() if queue in self._consumed})

    def _note_due(self, queues: Collection[str], due: Mapping[str, float]) -> None:
        if not due and not self._due_at:
            return
        now = self._clock()
        for queue in queues:
            self._due_at.pop(queue, None)
        for queue, seconds in due.items():
            if queue in self._consumed:
                self._due_at[queue] = now + seconds


class Tokenless:
    """Keeps track of messages that come without a token, from ``redis://`` or from any program with LPUSH.

    A look is one packet. It says which groups of queues have something. What is still there at a second
    look, :data:`SETTLE` later, came without a token. While such messages are found, looks follow each other
    quickly. The longer none was found, the rarer they are.
    """

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._found_at = -inf
        #: Seconds between two looks, at least. A float: doubled without end, it becomes infinite.
        self._interval = LOOK_EVERY
        # A consumer that has just started takes before it waits, which is a look.
        self._looked_at = clock()
        self._next_at = inf
        #: What the latest look has shown, and the next one is to confirm.
        self._seen: Sequence[Group] = ()
        self._confirms = False
        #: The queues where such messages were found, the latest one last.
        self._queues_of_found: dict[str, None] = {}
        self._next_group = 0

    def forget(self, queue: str) -> None:
        """The queue is not consumed from any more."""
        self._queues_of_found.pop(queue, None)
        self._seen = ()

    def next_look(self) -> float | None:
        """Seconds until the next look, ``None`` if there is none."""
        return None if self._next_at == inf else max(0.0, self._next_at - self._clock())

    def woken(self) -> None:
        """A token has ended a wait. Without tokens, the end of the wait would have been a look."""
        now = self._clock()
        if now - self._looked_at >= LOOK_AT_LEAST_EVERY:
            # Not now: the message of the token is there.
            self._next_at = min(self._next_at, now + LOOK_EVERY)

    def postpone(self) -> None:
        """Look a little later, at what it was to be now."""
        self._next_at = self._clock() + LOOK_EVERY

    def begin(self, queues: Sequence[str]) -> Sequence[Group]:
        """A look begins now. Returns the groups to look at: some of *queues*."""
        self._confirms = bool(self._seen)
        groups = self._seen or self._some(queues)
        self._seen = ()
        self._plan()
        return groups

    def looked(self, ready: Sequence[Group]) -> Sequence[Group]:
        """Note which groups have something. Returns those that had it at the look before, too."""
        if self._confirms:
            return ready
        self._confirm(ready)
        return ()

    def peeked(self, queues: Sequence[str], any_ready: bool) -> None:
        """Note that all *queues* were looked at, and whether any of them has something."""
        self._plan()
        self._confirm(groups_of(queues) if any_ready else ())

    def taken(self) -> None:
        """Messages were taken, however they came: what is ready is not throttled any more."""
        if self._interval > LOOK_AGAIN:
            self._interval = LOOK_AGAIN
            self._plan()

    def found(self, queues: Collection[str]) -> None:
        """Messages of these *queues* came without a token: a look has found them, or they show which
        transport has published them. If there are none, another consumer was faster, or what is ready is
        throttled, as by a limit. This shows when it comes again and again."""
        self._interval = LOOK_EVERY if queues else 2 * self._interval
        for queue in queues:
            self._queues_of_found.pop(queue, None)
            self._queues_of_found[queue] = None
            self._found_at = self._clock()
        while len(self._queues_of_found) > QUEUES_PER_TAKE:
            del self._queues_of_found[next(iter(self._queues_of_found))]
        self._plan()

    def _plan(self) -> None:
        self._looked_at = now = self._clock()
        interval = max(self._interval, (now - self._found_at) / LOOKS_IN_A_WHILE)
        self._next_at = now + interval if interval < LOOK_NO_MORE else inf

    def _confirm(self, ready: Sequence[Group]) -> None:
        self._seen = ready
        if ready:
            self._next_at = self._looked_at + SETTLE

    def _some(self, queues: Sequence[str]) -> Sequence[Group]:
        groups = groups_of(queues)
        if len(groups) <= GROUPS:
            return groups
        first, self._next_group = self._next_group, (self._next_group + GROUPS) % len(groups)
        in_turn = islice(chain(groups[first:], groups), GROUPS)
        return [tuple(self._queues_of_found), *in_turn] if self._queues_of_found else [*in_turn]


def groups_of(queues: Sequence[str]) -> Sequence[Group]:
    """All *queues*, as many in a group as a take works on."""
    if len(queues) <= QUEUES_PER_TAKE:
        return [tuple(queues)]
    starts = range(0, len(queues), QUEUES_PER_TAKE)
    return [tuple(queues[start : start + QUEUES_PER_TAKE]) for start in starts]


class WaitingTasks:
    """Keeps track of the queues of a slot in which tasks wait that this worker knows.

    Arguments:
        names: returns the names of the tasks that the worker knows; ``None`` if it takes none of them.

    Attributes:
        known: queue -> tasks that wait there, and that the worker knows.
    """

    def __init__(self, names: Callable[[], Collection[str] | None]) -> None:
        self._names = names
        self.known: Mapping[str, Sequence[Waiting]] = {}
        #: Queue -> where its next look goes on.
        self.after: Mapping[str, str] = {}
        self._looked_at = float("-inf")

    @property
    def needs_look(self) -> bool:
        """Whether to look before the next take."""
        return monotonic() - self._looked_at >= LOOK_FOR_TASKS_AFTER and self._names() is not None

    def peeked(self, any_unknown: bool) -> bool:
        """Note what a peek has shown. Returns whether to look now."""
        if any_unknown and self._names() is not None:
            return True
        self.looked({})
        return False

    def looked(self, found: Mapping[str, tuple[Sequence[Waiting], str] | None]) -> None:
        """Note what a look has *found* in each queue that may have any, ``None`` where it did not look."""
        self._looked_at = monotonic()
        names = self._names()
        if not found or names is None:
            self.known, self.after = {}, {}
            return
        known: dict[str, Sequence[Waiting]] = {}
        after: dict[str, str] = {}
        for queue, of_queue in found.items():
            waiting, after[queue] = of_queue or (self.known.get(queue, ()), self.after.get(queue, ""))
            some = [each for each in waiting if is_known(each.task, names)]
            if some:
                known[queue] = some
        self.known, self.after = known, after
