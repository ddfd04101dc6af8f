"""Finds tasks that other workers did not know, and that wait for this worker."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from time import monotonic

from kombu_redisdelay.broker.delivery import Waiting
from kombu_redisdelay.broker.unknown_tasks import is_known

#: Seconds between two looks.
LOOK_AFTER = 1.0


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
        return monotonic() - self._looked_at >= LOOK_AFTER and self._names() is not None

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
