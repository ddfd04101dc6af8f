"""What had become of a task before it was started again."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

from tests.chaos.ledger import ACK, END, START, TAKE, Entry


class Past:
    """The entries about a task up to its start *rerun*, which is not its first one.

    Attributes:
        rerun: that start.
        starts: those before.
        takes: also that of the rerun.
    """

    def __init__(self, rerun: Entry, entries: Iterable[Entry]) -> None:
        earlier = sorted((e for e in entries if e.at <= rerun.at and e is not rerun), key=lambda e: e.at)
        self.rerun = rerun
        self.starts = [e for e in earlier if e.event == START]
        self.takes = [e for e in earlier if e.event == TAKE]
        self._acks = [e for e in earlier if e.event == ACK]
        self._ends = [e for e in earlier if e.event == END]

    @property
    def ran_last(self) -> str:
        """The worker that started it last before: it ran again what an earlier one had begun."""
        return self.starts[-1].worker

    @property
    def came_back(self) -> Entry:
        """The first take after that start, where there is one: whoever took it next may have died before it
        could start it. Else the rerun."""
        return next((take for take in self.takes if take.at > self.starts[-1].at), self.rerun)

    @property
    def workers(self) -> frozenset[str]:
        """All that have started it."""
        return frozenset(start.worker for start in (self.rerun, *self.starts))

    def acks(self) -> list[Entry]:
        """Those of earlier deliveries that counted: they came from the worker that had the message then."""
        return self._of_holders(self._acks)

    def untaken(self) -> list[Entry]:
        """The takes that the server had forgotten, if that is why it was started twice: what comes back from
        whoever had it is marked."""
        return [
            take
            for take, following in pairwise(self.takes)
            if not following.redelivered and self.rerun.worker in (take.worker, following.worker)
        ]

    def given_back(self, *, unacked_at: float) -> list[tuple[Entry, Entry]]:
        """Each take of the message and the one to which that led, if this is why it was started twice: the
        server gave back what a worker had, which had not acked it by then, seconds since the epoch.

        This worker had started it last before, or has started it now. One that was stopped may have noted its
        take after that of the other one.
        """
        pairs = [*pairwise(self.takes), *((take, other) for other, take in pairwise(self.takes))]
        return [
            (take, following)
            for take, following in pairs
            if following.redelivered
            and (take.at <= following.at or not take.redelivered)
            and take.worker in (self.ran_last, self.rerun.worker)
            and not any(ack.worker == take.worker and take.at <= ack.at < unacked_at for ack in self._acks)
        ]

    def had_ended(self, before: float) -> bool:
        """Whether a worker that had the message had ended the task *before*, seconds since the epoch."""
        return any(end.at < before for end in self._of_holders(self._ends))

    def was_acked(self, before: float) -> bool:
        """Whether anybody had acked *before*, seconds since the epoch."""
        return any(ack.at < before for ack in self._acks)

    def _of_holders(self, events: Iterable[Entry]) -> list[Entry]:
        """Those from a worker that had the message then, before it was taken for the rerun."""
        return [
            event
            for take, following in pairwise(self.takes)
            for event in events
            if event.worker == take.worker and take.at <= event.at < following.at
        ]
