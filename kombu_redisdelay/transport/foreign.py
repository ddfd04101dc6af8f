"""Decides when to look for messages that came without a wake-up token, because their producer is not ours."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from itertools import chain, islice
from math import inf
from time import monotonic

from kombu_redisdelay.broker.takes import QUEUES_PER_TAKE

#: Seconds between two looks while such messages come, at least.
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


class Foreign:
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
