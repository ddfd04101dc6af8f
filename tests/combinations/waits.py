"""How long healthy tasks waited."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tests.chaos.ledger import START
from tests.chaos.schedule import Harm
from tests.combinations.dimensions import Row
from tests.combinations.expected import expected
from tests.combinations.history import History, Window
from tests.combinations.operator import KEY_CONCURRENCY, KEY_RATE, LIMITS
from tests.combinations.plan import BULK, BULK_AT, BURST, BURST_AT, HEALTHY, TENANTS, WORK
from tests.combinations.settings import LEASE

#: Seconds: at the beginning they do not count; what was published so shortly before a pause or a limit may be
#: caught by it; and in which a queue catches up after it.
WARM_UP = 1.0
SHORTLY = 0.3
#: What a task takes beside its work, seconds, when no more than a few may be held.
OVERHEAD = 0.02
CATCHING_UP = 0.5
#: Celery tries at once, after 2 and after 4 more seconds, and then a worker looks for neighbours for one.
CONNECTED_AGAIN = 7.0
#: After a server has refused: the longest pause of a worker, and a second in which one that has connected
#: again looks for neighbours.
SERVED_AGAIN = 2.0


@dataclass(frozen=True)
class Waits:
    """Seconds, in rising order, one for each try of a healthy task."""

    seconds: Sequence[float]

    def quantile(self, part: float) -> float:
        if not self.seconds:
            return 0.0
        return self.seconds[min(len(self.seconds) - 1, int(part * len(self.seconds)))]

    def __str__(self) -> str:
        median, p95, worst = (self.quantile(part) for part in (0.5, 0.95, 1.0))
        return f"p50 {median:.3f} p95 {p95:.3f} worst {worst:.3f} s of {len(self.seconds)}"


def waits(row: Row, history: History, *, of_begun: bool = False) -> Waits:
    """From when a task could begin until it began.

    Arguments:
        of_begun: leave out what has not begun. Otherwise it waited until the end.
    """
    begun: dict[str, float] = {}
    for entry in history.entries:
        if entry.event == START:
            begun[entry.task] = min(entry.at, begun.get(entry.task, entry.at))
    found = []
    for each in expected(history.plan, history.submissions, history.entries):
        if not each.task.startswith(HEALTHY) or not each.confirmed or each.at < history.began + WARM_UP:
            continue
        if of_begun and each.task not in begun:
            continue
        since = each.at + each.countdown
        for window in windows(row, history):
            if window.concerns(each) and window.began - SHORTLY <= since <= window.over + CATCHING_UP:
                since = window.over + CATCHING_UP
        found.append(max(0.0, begun.get(each.task, history.ended) - since))
    return Waits(sorted(found))


def stock_waits(row: Row, history: History) -> Waits:
    """With kombu's transport, what a worker held that was killed begins after an hour: that is not compared
    with."""
    return waits(row, history, of_begun=True)


def windows(row: Row, history: History) -> list[Window]:
    """When a pause or a limit explains that a task waited."""
    found = [*history.paused]
    if row["control"] in BULK:
        number, work = BULK[row["control"]]
        plan = history.plan
        # What runs for longer takes the slots away from other queues, too.
        queues = plan.queues if work else [plan.controlled]
        bulk = _bound(row, number, work)
        burst = _bound(row, BURST, WORK + OVERHEAD)
        for part, lasts in ((BULK_AT, bulk), (BURST_AT, burst)):
            at = history.began + part * plan.seconds
            found += [Window(queue, at, at + lasts, at + lasts) for queue in queues]
    if row["fair"] == "limited":
        found += _limited(history)
    return found + _refused(row, history) + _after_a_failover(row, history)


def _limited(history: History) -> list[Window]:
    """When limits of keys bind: at the burst, and until what a worker held is given back that was killed, or
    has lost its connection to a server that refused."""
    plan, each = history.plan, BURST / len(TENANTS)
    at = history.began + BURST_AT * plan.seconds
    lasts = max(each / KEY_RATE["rate"], each * (WORK + OVERHEAD) / KEY_CONCURRENCY)
    killed = [(damage.at, damage.at) for damage in history.damage if damage.harm is Harm.KILL]
    refused = [(damage.at, damage.until) for damage in history.damage if damage.harm is Harm.REFUSED]
    times = [(at, at + lasts), *((when, until + LEASE) for when, until in killed + refused)]
    return [Window(queue, begins, ends, ends) for queue in plan.queues for begins, ends in times]


def _refused(row: Row, history: History) -> list[Window]:
    """When a server refused, and until workers have heard that it does not any more. Afterwards all comes at
    once, so that a limit binds, which ``redis://`` does not have; nor was that refused."""
    times = [(each.at, each.until) for each in history.damage if each.harm is Harm.REFUSED]
    is_limited = row["control"] in BULK
    return [
        Window(queue, at, until, history.ended if is_limited else until + SERVED_AGAIN)
        for queue in history.plan.queues
        for at, until in times
    ]


def _after_a_failover(row: Row, history: History) -> list[Window]:
    """Nothing is compared that could begin before Celery has connected again: a worker of ``redis://`` runs
    the countdown tasks that it holds in memory, and its producer stands still for longer than ours.
    Afterwards all comes at once, so that a limit binds, which ``redis://`` does not have."""
    is_limited = row["control"] in BULK
    found = []
    for at in (each.at for each in history.damage if each.course is not None):
        until = history.ended if is_limited else at + CONNECTED_AGAIN
        found += [Window(queue, at, until, until) for queue in history.plan.queues]
    return found


def _bound(row: Row, number: int, work: float) -> float:
    """For how many seconds the limit binds, when so many tasks come together."""
    limit = LIMITS[row["control"]]
    return float(number / limit["rate"] if "rate" in limit else number * work / limit["concurrency"])
