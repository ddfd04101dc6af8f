"""What became of the tasks: the ledger, held against what was submitted and what harm was done."""

from __future__ import annotations

from bisect import bisect
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

from tests.chaos.damage import Damage
from tests.chaos.ledger import ACK, END, START, TAKE, Entry
from tests.chaos.past import Past
from tests.chaos.producer import Submission
from tests.chaos.schedule import FAILOVERS, Harm

#: For how many leases after the end of a harm a duplicate may still come from it: a copy may wait in the
#: memory of a worker that went on. It may also wait as long as others do then, for its turn or a limit.
AFTERMATH_LEASES = 4.0
#: Others that are taken within so many seconds tell how long messages wait then.
ABOUT = 5.0
#: An ack that was under way when the connection broke was noted up to so many seconds before. So was what a
#: primary had not yet told its replicas. An ack that was refused is sent again within this time.
IN_FLIGHT = 1.0
#: A worker that stops or gets out of reach keeps its messages for this part of the lease at least: it renews
#: the lease each third of it, or somewhat later.
KEPT = 0.5

_SILENT = (Harm.SILENCE, Harm.HALF_OPEN)
_CONNECTION = (Harm.CLIENT_KILL, Harm.RESTART, Harm.RESET, Harm.DELAY, *FAILOVERS, Harm.DOWN)
_REFUSALS = (Harm.REFUSED, Harm.REFUSED_SOME)
#: What may keep an ack from the server for longer than it is in flight.
_HINDRANCES = (Harm.STOP, *_SILENT, *_CONNECTION)


class Cause(str, Enum):
    """Why a task was started again."""

    KILLED = "its worker was killed"
    ACK_FORGOTTEN = "a failover lost its ack"
    TAKE_FORGOTTEN = "a failover lost that it had been taken"
    STOPPED = "its worker was stopped for longer than the lease"
    UNREACHABLE = "its worker could not reach Redis for longer than the lease"
    REFUSED = "Redis refused its worker, and not the others, for longer than the lease"
    STOPPED_REFUSED = "its worker was told to end while Redis refused its ack, and until it had ended"
    ACK_LOST = "its ack failed, for the connection was lost"
    OUTLIVED = "it ran on for longer than the lease after the connection was lost"
    UNEXPLAINED = "unexplained"


@dataclass(frozen=True)
class Rerun:
    """A start of a task that had been started before.

    Attributes:
        after: seconds since its worker was killed, if that was the cause.
        isolated: whether that worker's death could not be told, so that its lease had to end first.
    """

    task: str
    at: float
    cause: Cause
    after: float | None = None
    isolated: bool = False


@dataclass(frozen=True)
class Verdict:
    """What a run has shown.

    Attributes:
        submitted: tasks of which Redis confirmed that it has them.
        once: those of them that were started exactly once.
        lost: those of them that the broker does not have any more, though nobody acked them: with late
            ack those that never ended, with early ack those that never started and were never acked.
        never_started: tasks with early ack that were acked, and whose worker was killed before they started.
        interrupted: tasks with early ack that had started and did not end: their worker was killed.
        reruns: every start of a task but its first.
        ended_again: tasks that ended more than once.
        early: starts before the task was due.
        unconfirmed: tasks of which Redis did not confirm that it has them.
    """

    submitted: int
    once: int
    lost: Sequence[str]
    never_started: Sequence[str]
    interrupted: int
    reruns: Sequence[Rerun]
    ended_again: int
    early: Sequence[str]
    unconfirmed: int

    @property
    def causes(self) -> Counter[Cause]:
        return Counter(rerun.cause for rerun in self.reruns)

    def recovery_times(self, *, isolated: bool) -> list[float]:
        """Seconds from a worker's kill to the next start of what it was running, in rising order.

        The longest are of messages that three workers have died with: each worker that then held one alone
        was killed before it started, and the message waits longer each time (``retry_wait``).
        """
        return sorted(r.after for r in self.reruns if r.after is not None and r.isolated is isolated)


class Judge:
    """Knows what harm was done, and tells what follows from it.

    Arguments:
        lease: seconds after which the broker gives back what a silent worker holds.
        died: workers that ended by themselves.
    """

    def __init__(self, damage: Iterable[Damage], lease: float, died: Iterable[str] = ()) -> None:
        self._lease = lease
        self._by_harm: dict[Harm, list[Damage]] = defaultdict(list)
        for each in damage:
            self._by_harm[each.harm].append(each)
        kills = self._by_harm[Harm.KILL]
        self.dead = {worker for each in kills for worker in each.workers}.union(died)
        #: When each task was taken first, and for how long it had waited then.
        self._waits: list[tuple[float, float]] = []

    def judge(self, submissions: Sequence[Submission], entries: Sequence[Entry]) -> Verdict:
        by_task = _by_task(entries)
        confirmed = [s for s in submissions if s.confirmed]
        self._waits = sorted(
            (taken, taken - s.at - s.countdown)
            for s in submissions
            for taken in [min((e.at for e in by_task[s.task] if e.event == TAKE), default=None)]
            if taken is not None
        )
        reruns = [rerun for each in by_task.values() for rerun in self._reruns(each)]
        never_started = [s.task for s in confirmed if self._died_with_its_worker(s, by_task[s.task])]
        return Verdict(
            submitted=len(confirmed),
            once=sum(_count(by_task[s.task], START) == 1 for s in confirmed),
            lost=[s.task for s in confirmed if not self.is_settled(s, by_task[s.task])],
            never_started=never_started,
            interrupted=sum(
                not s.late and _count(by_task[s.task], START) > 0 and not _count(by_task[s.task], END)
                for s in confirmed
            ),
            reruns=reruns,
            ended_again=sum(_count(each, END) > 1 for each in by_task.values()),
            early=[e.task for e in entries if e.event == START and e.due is not None and e.at < e.due],
            unconfirmed=len(submissions) - len(confirmed),
        )

    def unsettled(self, submissions: Sequence[Submission], entries: Sequence[Entry]) -> list[str]:
        """The tasks that have not come to their end."""
        by_task = _by_task(entries)
        return [s.task for s in submissions if s.confirmed and not self.is_settled(s, by_task[s.task])]

    def is_settled(self, submission: Submission, entries: Sequence[Entry]) -> bool:
        """Whether the broker has kept its word for a task."""
        if submission.late:
            return _count(entries, END) > 0
        return _count(entries, START) > 0 or self._died_with_its_worker(submission, entries)

    def _died_with_its_worker(self, submission: Submission, entries: Sequence[Entry]) -> bool:
        """Whether a task with early ack was acked by a worker that then died before the task began."""
        acked_by = {e.worker for e in entries if e.event == ACK}
        return not submission.late and not _count(entries, START) and bool(acked_by & self.dead)

    def _reruns(self, entries: Sequence[Entry]) -> list[Rerun]:
        starts = sorted((e for e in entries if e.event == START), key=lambda e: e.at)
        return [self._explain(Past(start, entries)) for start in starts[1:]]

    def _explain(self, past: Past) -> Rerun:
        rerun = past.rerun
        # It waits with all others to be taken again, in a fair queue for a turn of its key.
        if self._forgetting(past.untaken(), rerun):
            return Rerun(rerun.task, rerun.at, Cause.TAKE_FORGOTTEN)
        acks = [ack for ack in past.acks() if ack.worker == past.ran_last]
        forgetting = self._forgetting([ack for ack in acks if not self._befell(_SILENT, ack, ack.at)], rerun)
        for damage in self._by_harm[Harm.KILL]:
            killed = past.ran_last in damage.workers and past.starts[-1].at <= damage.until <= rerun.at
            # What acked, and lived on, had nothing left that its death could give back.
            was_acking = all(
                damage.at - IN_FLIGHT <= ack.at
                or self._befell(_HINDRANCES, ack, damage.at)
                or self._was_refused(ack, damage.at)
                for ack in acks
            )
            if killed and was_acking and all(damage.at < failover.until for failover in forgetting):
                after = rerun.at - damage.at
                return Rerun(rerun.task, rerun.at, Cause.KILLED, after, damage.isolated)
        if forgetting:
            return Rerun(rerun.task, rerun.at, Cause.ACK_FORGOTTEN)

        def in_time(harm: Damage) -> bool:
            return self._is_in_time(past.came_back, harm)

        def given_back(harm: Damage) -> bool:
            return self._was_given_back(past, harm)

        causes: list[tuple[Cause, Iterable[Harm], Callable[[Damage], bool]]] = [
            (Cause.STOPPED, [Harm.STOP], given_back),
            (Cause.UNREACHABLE, _SILENT, given_back),
            (Cause.REFUSED, [Harm.REFUSED_SOME], given_back),
            (Cause.STOPPED_REFUSED, [Harm.TERMINATE], lambda end: self._could_not_ack(past, end)),
            (Cause.ACK_LOST, _CONNECTION, lambda harm: in_time(harm) and _ack_was_under_way(harm, past)),
            (Cause.OUTLIVED, _CONNECTION, lambda harm: in_time(harm) and self._outlived(past, harm)),
        ]
        for cause, harms, applies in causes:
            for harm in harms:
                for damage in self._by_harm[harm]:
                    felt = past.workers.intersection(damage.workers)
                    if felt and applies(damage):
                        return Rerun(rerun.task, rerun.at, cause)
        return Rerun(rerun.task, rerun.at, Cause.UNEXPLAINED)

    def _forgetting(self, events: Sequence[Entry], rerun: Entry) -> list[Damage]:
        """The failovers before *rerun* that may have lost one of these."""
        failovers = [each for harm in FAILOVERS for each in self._by_harm[harm] if each.at <= rerun.at]
        return [each for each in failovers if any(_may_forget(each, event.at) for event in events)]

    def _befell(self, harms: Iterable[Harm], ack: Entry, until: float) -> bool:
        """Whether one of these harms befell a worker between its ack and *until*, seconds since the epoch."""
        return any(
            ack.worker in each.workers and each.at - IN_FLIGHT <= until and ack.at <= each.until + IN_FLIGHT
            for harm in harms
            for each in self._by_harm[harm]
        )

    def _is_in_time(self, entry: Entry, damage: Damage) -> bool:
        until = damage.until + AFTERMATH_LEASES * self._lease
        return damage.at <= entry.at <= until + self._longest_wait(entry.at)

    def _longest_wait(self, at: float) -> float:
        """How long messages wait that are taken about then, at most."""
        first, last = (bisect(self._waits, (at + away,)) for away in (-ABOUT, ABOUT))
        return max((waited for _, waited in self._waits[first:last]), default=0.0)

    def _was_given_back(self, past: Past, damage: Damage) -> bool:
        """Whether a worker had the message when it was harmed, and another one got it when the lease had
        ended."""
        return any(
            take.worker in damage.workers
            and take.at <= damage.until + IN_FLIGHT
            and following.at >= damage.at + KEPT * self._lease
            and self._is_in_time(following, damage)
            for take, following in past.given_back(unacked_at=damage.at - IN_FLIGHT)
        )

    def _could_not_ack(self, past: Past, end: Damage) -> bool:
        """Whether a worker had done the task, and all its acks were refused until it had ended."""
        return any(
            self._was_refused(ack, end.until)
            for ack in past.acks()
            if ack.worker == past.ran_last and ack.worker in end.workers
        )

    def _was_refused(self, ack: Entry, until: float) -> bool:
        """Whether the server refused this ack, and each time that it was sent again *until* then. Between two
        troubles that follow each other within :data:`IN_FLIGHT`, it was not sent again."""
        refused_until = ack.at
        harms = (each for harm in _REFUSALS for each in self._by_harm[harm] if ack.worker in each.workers)
        for each in sorted(harms, key=lambda each: each.at):
            if each.at - IN_FLIGHT <= refused_until:
                refused_until = max(refused_until, each.until)
        return ack.at < refused_until and until <= refused_until + IN_FLIGHT

    def _outlived(self, past: Past, damage: Damage) -> bool:
        """Whether the message was held when the connection was lost, and came back by the lease's end, while
        the task still ran."""
        rerun, lease_ends = past.rerun, damage.at + self._lease
        is_late = rerun.redelivered and rerun.at >= lease_ends
        return is_late and not past.was_acked(damage.at) and not past.had_ended(lease_ends)


def _may_forget(failover: Damage, at: float) -> bool:
    """Whether what the servers were told then, seconds since the epoch, may be lost."""
    return failover.course is not None and failover.at - IN_FLIGHT <= at <= failover.course.forgetful_until


def _ack_was_under_way(damage: Damage, past: Past) -> bool:
    return any(
        ack.worker in damage.workers and damage.at - IN_FLIGHT <= ack.at <= damage.until + IN_FLIGHT
        for ack in past.acks()
    )


def _by_task(entries: Iterable[Entry]) -> defaultdict[str, list[Entry]]:
    by_task: defaultdict[str, list[Entry]] = defaultdict(list)
    for entry in entries:
        by_task[entry.task].append(entry)
    return by_task


def _count(entries: Iterable[Entry], event: str) -> int:
    return sum(entry.event == event for entry in entries)
