"""Whether the limits of keys were kept, and all that Redis has counted of them was right: by what workers
noted, and by what Redis had at each moment."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from kombu_redisdelay.broker.keys import Partitions
from tests.chaos.damage import Damage
from tests.chaos.fair_watch import FairSample
from tests.chaos.ledger import ACK, TAKE, Entry
from tests.chaos.producer import Submission
from tests.chaos.switching import Plain
from tests.chaos.tenants import Tenant
from tests.chaos.verdict import IN_FLIGHT

#: Samples that are further apart, in seconds, say nothing of the time between them.
GAP = 0.5
#: A worker that was harmed so many seconds ago may note late what it has got.
LATE = 6.0
#: For so many seconds after the queues were made fair, consumers may not know yet that their acks count.
GRACE = 5.0
#: What is wrong for such a reason is put right within so many seconds, by any worker that is left in peace.
HEALED = 10.0


@dataclass(frozen=True)
class OfTenant:
    """What became of the tasks with one key.

    Attributes:
        submitted: tasks of which Redis confirmed that it has them.
        taken: how many times workers have got one.
        most_held: of one queue, or partition, while it was fair.
        waits: for how long its tasks waited to be taken while it was fair, p95, seconds.
    """

    key: str
    submitted: int
    taken: int
    most_held: int
    wait: float


@dataclass(frozen=True)
class FairVerdict:
    """What a run has shown of fair queues. What is not empty from ``exceeded`` on must not be.

    Attributes:
        plain: when the queues were plain, and made fair again.
        judged: takes that the ledger was judged by.
        samples: those while a queue was fair.
        exceeded: keys of which the server has let more be held than allowed, or while they were paused.
        noted: keys of which workers have noted that they held more than allowed, or took them faster.
        wrong: what Redis had counted wrongly, or where a key that might have gone on did not.
        left: keys that were there when all was done, while the queues were still fair.
    """

    tenants: Sequence[OfTenant]
    plain: Sequence[Plain]
    pauses: int
    judged: int
    samples: int
    exceeded: Sequence[str]
    noted: Sequence[str]
    wrong: Sequence[str]
    left: Mapping[str, int]


@dataclass(frozen=True)
class Hold:
    """A message that a worker has for sure.

    Attributes:
        until: when it may have given it back, or acked it.
        is_judged: whether it must have been taken while the queue was fair.
    """

    name: tuple[str, str]
    at: float
    until: float
    is_judged: bool


def exceeded(samples: Mapping[str, Sequence[FairSample]]) -> list[str]:
    """For each queue its samples: what was taken of a key, though enough of it were held, or it was paused,
    and limits that are missing."""
    found = []
    for queue, of_queue in samples.items():
        for before, after in _fair_pairs(of_queue):
            new = {after.held[tag] for tag in after.held.keys() - before.held.keys()}
            held = Counter(after.held.values())
            for key in sorted(new):
                allowed = after.allowed(key)
                if allowed is not None and allowed == before.allowed(key) and held[key] > allowed:
                    found.append(f"{queue}, {key!r}: {held[key]} held, {allowed} may be, at {after.at:.3f}")
                if before.is_paused(key) and before.own[key][0] == after.own.get(key, (0, 0))[0]:
                    found.append(f"{queue}, {key!r}: taken while it is paused, at {after.at:.3f}")
            if after.concurrency is None:
                found.append(f"{queue}: no limit for each key, at {after.at:.3f}")
    return found


def unfair(samples: Sequence[FairSample]) -> list[Plain]:
    """When a queue was not fair by what Redis had. A failover may lose that somebody has made it fair."""
    found: list[Plain] = []
    for before, after in pairwise(samples):
        if before.is_fair and after.is_fair:
            continue
        began = found.pop().began if found and found[-1].ended == before.at else before.at
        found.append(Plain(began, after.at))
    return found


def wrong(samples: Mapping[str, Sequence[FairSample]], plain: Sequence[Plain], calmed_at: float) -> list[str]:
    """What Redis had counted wrongly, or which keys could have gone on and did not. Shortly after the queues
    were made fair, some of it may be so for a while.

    Arguments:
        calmed_at: when the harm was over, seconds since the epoch. Before, there may be no worker that could
            put anything right.
    """
    found = []
    for queue, of_queue in samples.items():
        seen: dict[str, tuple[float, float]] = {}
        # Who has taken it before, and nothing since, does not know that the ack counts.
        taken_at: dict[str, float] = {}
        for sample in of_queue:
            for what in _wrong_now(sample) if sample.is_fair else ():
                first, _ = seen.get(what, (sample.at, sample.at))
                seen[what] = first, sample.at
            for holder in sample.counted.keys() - sample.held.keys() if sample.is_fair else ():
                taken_at.setdefault(_not_held(sample, holder), _taken_at(holder, sample.at))
        of_all = [*plain, *unfair(of_queue)]
        for what, (first, last) in seen.items():
            since = taken_at.get(what, first)
            is_young = any(each.began <= first and since <= each.ended + GRACE for each in of_all)
            if not is_young or last > max(first, calmed_at) + HEALED:
                found.append(f"{queue}: {what}, from {first:.3f} to {last:.3f}")
    return found


def _not_held(sample: FairSample, holder: str) -> str:
    return f"{holder!r} of {sample.counted[holder]!r} is counted and not held"


def _taken_at(holder: str, or_else: float) -> float:
    """When a message was taken: delivery tags begin with the time in microseconds."""
    tag = holder.rpartition("\x1e")[2]
    return int(tag) / 1e6 if tag.isdecimal() else or_else


def _wrong_now(sample: FairSample) -> Iterator[str]:
    for holder in sample.counted.keys() - sample.held.keys():
        yield _not_held(sample, holder)
    for holder in sample.held.keys() - sample.counted.keys():
        yield f"{holder!r} of {sample.held[holder]!r} is held and not counted"
    for holder in sample.held.keys() & sample.counted.keys():
        if sample.held[holder] != sample.counted[holder]:
            yield f"{holder!r} of {sample.held[holder]!r} is counted for {sample.counted[holder]!r}"
    if Counter(sample.counted.values()) != Counter(sample.active):
        yield f"active {dict(sample.active)} for {dict(Counter(sample.counted.values()))}"
    for key in sample.limited - sample.alarms:
        allowed = sample.allowed(key)
        is_full = allowed is not None and sample.active.get(key, 0) >= allowed
        if not is_full and not sample.is_paused(key):
            yield f"{key!r} waits for nothing"
    for name in sample.waiting - sample.in_turn:
        if name.partition(":")[2] not in sample.limited:
            yield f"{name!r} has no turn"
    if not sample.is_number_right:
        yield "another number of messages is sorted by key than Redis says"


def _fair_pairs(samples: Sequence[FairSample]) -> Iterator[tuple[FairSample, FairSample]]:
    return (
        (a, b)
        for a, b in pairwise(samples)
        if a.is_fair and b.is_fair and a.server == b.server and b.at - a.at <= GAP
    )


class KeyLedger:
    """What workers have noted, by partition and key.

    Arguments:
        stock: workers of ``redis://``, which know no limits.
        calmed_at: from when on rates do not count, seconds since the epoch.
        unfair: queue, or partition -> when it was not fair, beside the times when all were *plain*.
    """

    def __init__(
        self,
        submissions: Sequence[Submission],
        entries: Iterable[Entry],
        damage: Iterable[Damage],
        plain: Sequence[Plain],
        partitions: Partitions,
        stock: Collection[str] = (),
        calmed_at: float = float("inf"),
        unfair: Mapping[str, Sequence[Plain]] | None = None,
    ) -> None:
        self._plain = plain
        self._unfair = unfair or {}
        self._calmed_at = calmed_at
        self._damage: defaultdict[str, list[Damage]] = defaultdict(list)
        for each in damage:
            for worker in each.workers:
                self._damage[worker].append(each)
        names = {s.task: (partitions.pick(s.queue, s.task), s.key or "") for s in submissions}
        by_task: defaultdict[str, list[Entry]] = defaultdict(list)
        for entry in sorted(entries, key=lambda entry: entry.at):
            if entry.event in (TAKE, ACK):
                by_task[entry.task].append(entry)
        self.holds: defaultdict[tuple[str, str], list[Hold]] = defaultdict(list)
        for task, of_task in by_task.items():
            self.holds[names[task]] += [
                self._hold(entry, of_task[index + 1 :], self._plain_of(names[task][0]))
                for index, entry in enumerate(of_task)
                if entry.event == TAKE and entry.worker not in stock
            ]

    def _plain_of(self, queue: str) -> Sequence[Plain]:
        return [*self._plain, *self._unfair.get(queue, ())]

    def _hold(self, take: Entry, later: Sequence[Entry], plain: Sequence[Plain]) -> Hold:
        harms = [each.at - IN_FLIGHT for each in self._damage[take.worker] if each.until >= take.at]
        ends = [e.at for e in later if e.event == TAKE or e.worker == take.worker]
        was_harmed = any(
            each.at <= take.at and each.until >= take.at - LATE for each in self._damage[take.worker]
        )
        was_plain = any(each.began <= take.at <= each.ended + IN_FLIGHT for each in plain)
        until = min([float("inf"), *harms, *ends])
        return Hold((take.task, take.worker), take.at, until, not was_harmed and not was_plain)

    def exceeded(self, tenants: Sequence[Tenant]) -> list[str]:
        """The keys of which more was held than allowed, or that were taken from faster."""
        tenant_of = {tenant.key: tenant for tenant in tenants}
        found = []
        for (queue, key), holds in sorted(self.holds.items()):
            tenant, in_order = tenant_of[key], sorted(holds, key=lambda hold: hold.at)
            most = max([0, *_held_at_takes(in_order)])
            if most > tenant.allowed:
                found.append(f"{queue}, {key!r}: workers held {most}, {tenant.allowed} may be")
            over = self._over_rate(tenant, in_order, self._plain_of(queue))
            if over > 0:
                found.append(f"{queue}, {key!r}: {over:.1f} more than its rate allows")
        return found

    def _over_rate(self, tenant: Tenant, holds: Sequence[Hold], plain: Sequence[Plain]) -> float:
        """How many more were taken than its rate allows, in the time in which that was most. One may be noted
        late."""
        if tenant.rate is None or tenant.burst is None:
            return 0.0
        over, least = 0.0, float("inf")
        since = 0.0
        judged = [hold for hold in holds if hold.is_judged and hold.at < self._calmed_at]
        for number, hold in enumerate(judged):
            # Another time in which it was fair: nothing is known of what was taken in between.
            began = max([0.0, *(each.began for each in plain if each.began <= hold.at)])
            if began != since:
                since, least = began, float("inf")
            ahead = number - tenant.rate * hold.at
            least = min(least, ahead)
            over = max(over, ahead + 1 - least - tenant.burst - LATE * tenant.rate)
        return over

    @property
    def judged(self) -> int:
        return sum(hold.is_judged for holds in self.holds.values() for hold in holds)


def judge(
    tenants: Sequence[Tenant],
    submissions: Sequence[Submission],
    entries: Sequence[Entry],
    damage: Iterable[Damage],
    samples: Mapping[str, Sequence[FairSample]],
    plain: Sequence[Plain],
    pauses: int,
    left: Mapping[str, int],
    partitions: Partitions,
    stock: Collection[str],
    calmed_at: float,
) -> FairVerdict:
    """What a run has shown.

    Arguments:
        samples: those of each queue, or partition.
        plain: when the queues were not fair.
        pauses: how many times keys were paused.
        left: keys that were there when all was done.
        stock: workers of ``redis://``.
        calmed_at: when the harm was over, and from when on rates do not count.
    """
    of_each = {queue: unfair(of_queue) for queue, of_queue in samples.items()}
    ledger = KeyLedger(submissions, entries, damage, plain, partitions, stock, calmed_at, of_each)
    return FairVerdict(
        of_tenants(tenants, submissions, entries, samples, plain),
        plain,
        pauses,
        ledger.judged,
        sum(sample.is_fair for of_queue in samples.values() for sample in of_queue),
        exceeded(samples),
        ledger.exceeded(tenants),
        wrong(samples, plain, calmed_at),
        left,
    )


def _held_at_takes(holds: Sequence[Hold]) -> Iterator[int]:
    """How many were held for sure when each was taken that had to keep to the limit, itself included."""
    held: list[Hold] = []
    for hold in holds:
        held = [each for each in held if each.until > hold.at]
        if hold.until > hold.at:
            held.append(hold)
            if hold.is_judged:
                yield len(held)


def of_tenants(
    tenants: Sequence[Tenant],
    submissions: Sequence[Submission],
    entries: Iterable[Entry],
    samples: Mapping[str, Sequence[FairSample]],
    plain: Sequence[Plain],
) -> list[OfTenant]:
    """What became of the tasks of each."""
    first: dict[str, float] = {}
    taken: Counter[str] = Counter()
    for entry in entries:
        if entry.event == TAKE:
            taken[entry.task] += 1
            first[entry.task] = min(entry.at, first.get(entry.task, entry.at))
    most: Counter[str] = Counter()
    for of_queue in samples.values():
        for sample in of_queue:
            if sample.is_fair:
                for key, number in Counter(sample.held.values()).items():
                    most[key] = max(most[key], number)
    rows = []
    for tenant in tenants:
        own = [s for s in submissions if s.confirmed and (s.key or "") == tenant.key]
        waits = sorted(
            first[s.task] - s.at - s.countdown
            for s in own
            if s.task in first and not any(p.began - LATE <= s.at + s.countdown <= p.ended for p in plain)
        )
        rows.append(
            OfTenant(
                tenant.key,
                len(own),
                sum(taken[s.task] for s in own),
                most[tenant.key],
                waits[int(len(waits) * 0.95)] if waits else float("nan"),
            )
        )
    return rows
