"""What must hold in every row. Each check looks at what has happened, and says what is wrong with it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass

from celery.states import SUCCESS

from tests.chaos.ledger import END, START, TAKE, Entry
from tests.chaos.producer import Submission
from tests.chaos.schedule import Harm
from tests.chaos.verdict import Cause, Judge, Rerun, Verdict
from tests.combinations.attempts import UNPUBLISHED, first
from tests.combinations.dimensions import Row
from tests.combinations.expected import expected
from tests.combinations.history import History, Window
from tests.combinations.operator import KEY_CONCURRENCY, LIMITS, wanted
from tests.combinations.plan import TENANTS, WRONG_ONE
from tests.combinations.settings import LEASE, PARTITIONS
from tests.combinations.tracebacks import unexplained
from tests.combinations.waits import stock_waits, waits

#: How much longer than with kombu's transport healthy tasks may wait: a factor, and seconds.
FACTOR = 2.0
ALLOWANCE = 0.3
#: What the rate may be passed by, because a task is noted some time after it was taken.
JITTER = 8
#: For how long a pause may go unnoticed: what was taken before it is run.
NOTICED = 0.5


@dataclass(frozen=True)
class Observed:
    """What there is to check.

    Attributes:
        stock: the same with kombu's transport; ``None`` where it cannot do that.
    """

    row: Row
    ours: History
    stock: History | None

    def verdict(self) -> Verdict:
        ours = self.ours
        judge = Judge(ours.damage, LEASE, ours.died)
        entries = [entry for entry in ours.entries if not entry.task.startswith(WRONG_ONE)]
        return judge.judge(expected(ours.plan, ours.submissions, ours.entries), entries)


def lost(observed: Observed) -> Iterable[str]:
    """Every task that was published runs, or is where it belongs."""
    tasks = observed.verdict().lost
    if tasks:
        yield f"{len(tasks)} tasks did not run: {_some(tasks)}"


def refused(observed: Observed) -> Iterable[str]:
    """What a full queue has refused does not run. The producer has not written it down."""
    if observed.row["bound"] == "no":
        return
    published = {each.task for each in observed.ours.submissions}
    ran = {first(entry.task) for entry in observed.ours.entries if entry.event == START}
    unknown = sorted(ran - published)
    if unknown:
        yield f"{len(unknown)} tasks ran that were refused: {_some(unknown)}"


def misplaced(observed: Observed) -> Iterable[str]:
    """What is wrong ends where it belongs, and what must not run does not."""
    places = wanted(observed.row)
    confirmed = {each.task for each in observed.ours.submissions if each.confirmed}
    for id, (state, _) in observed.ours.wrong.items():
        if state not in places and id in confirmed:
            yield f"{id} is {state} in the end, and not {' or '.join(places)}"
    ran = {e.task for e in observed.ours.entries if e.event == START and e.task.startswith(WRONG_ONE)}
    for id in sorted(ran):
        yield f"{id} ran"


def early(observed: Observed) -> Iterable[str]:
    """Nothing begins before it is due."""
    tasks = observed.verdict().early
    if tasks:
        yield f"{len(tasks)} tasks began before they were due: {_some(tasks)}"


def twice(observed: Observed) -> Iterable[str]:
    """Nothing runs twice, unless what was done explains it."""
    reruns = observed.verdict().reruns
    unpublished: dict[str, float] = {}
    for entry in observed.ours.entries:
        if entry.event == UNPUBLISHED:
            # Each time that it comes back, it may happen again.
            unpublished.setdefault(entry.task, entry.at)

    def is_explained(rerun: Rerun) -> bool:
        # One that was not told that its retry was published comes back, and publishes it again.
        return rerun.cause is not Cause.UNEXPLAINED or unpublished.get(rerun.task, rerun.at) < rerun.at

    explained = {rerun.task for rerun in reruns if is_explained(rerun)}
    # A task that ran twice may have published its retry twice.
    tasks = [
        rerun.task for rerun in reruns if not is_explained(rerun) and not _is_retry_of(rerun.task, explained)
    ]
    if tasks:
        yield f"{len(tasks)} tasks ran again, and nothing explains it: {_some(tasks)}"


def slow(observed: Observed) -> Iterable[str]:
    """Healthy tasks wait about as long as with kombu's transport."""
    if observed.stock is None:
        return
    ours, stock = waits(observed.row, observed.ours), stock_waits(observed.row, observed.stock)
    if ours.quantile(0.95) > FACTOR * stock.quantile(0.95) + ALLOWANCE:
        yield f"healthy tasks waited for {ours}; with redis:// {stock}"


def logged(observed: Observed) -> Iterable[str]:
    """No traceback passes through our code without a reason."""
    found = Counter(
        text
        for log in observed.ours.logs.values()
        for text in unexplained(log, observed.ours.damage, observed.row["beside"])
    )
    for text, count in found.items():
        yield f"{count} times in the logs: {text}"


def ended(observed: Observed) -> Iterable[str]:
    """No worker ends by itself, hangs, or gets nothing to do."""
    for what, workers in (
        ("ended by themselves", observed.ours.died),
        ("did not end when they were told to", observed.ours.hung),
        ("got nothing to do in the end", observed.ours.idle),
    ):
        if workers:
            yield f"{len(workers)} workers {what}: {_some(workers)}"
    yield from observed.ours.unready


def left(observed: Observed) -> Iterable[str]:
    """Redis is left clean."""
    if observed.ours.left:
        yield f"left in Redis: {_some(observed.ours.left)}"


def unpaused(observed: Observed) -> Iterable[str]:
    """Nothing is taken from a queue that is paused, and nothing of a key that is."""
    ours = observed.ours
    for window in ours.paused:
        taken = [
            entry.task
            for entry in _of(ours, TAKE, window.concerns)
            if window.began + NOTICED < entry.at < window.ended
        ]
        if taken:
            what = "queue" if window.key is None else "key"
            yield f"{len(taken)} tasks were taken while the {what} was paused: {_some(taken)}"


def unlimited(observed: Observed) -> Iterable[str]:
    """The limit of a queue holds for all workers together."""
    ours, control = observed.ours, observed.row["control"]
    if control == "rate":
        limit = LIMITS[control]
        taken = _of(ours, TAKE, lambda each: each.queue == ours.plan.controlled)
        times = sorted(entry.at for entry in taken)
        for begin, at in enumerate(times):
            within = sum(at <= other < at + 1 for other in times[begin:])
            if within > limit["rate"] + limit["burst"] + JITTER:
                yield f"{within} tasks were taken within a second, and {limit['rate']} may be"
                return
    # With early acks nothing is held while it runs, and a failover may forget what is held.
    if control == "concurrency" and observed.row["acks"] == "late" and observed.row["middle"] != "failover":
        running = _together(ours, lambda each: each.queue == ours.plan.controlled)
        if running > LIMITS[control]["concurrency"]:
            yield f"{running} tasks ran at the same time, and {LIMITS[control]['concurrency']} may"


def unfair(observed: Observed) -> Iterable[str]:
    """The concurrency of keys holds for all workers together."""
    ours, row = observed.ours, observed.row
    if row["fair"] != "limited" or row["acks"] != "late" or row["middle"] == "failover":
        return
    for queue in ours.plan.queues:
        is_spread = row["partitions"] == "yes" and queue == ours.plan.controlled
        allowed = KEY_CONCURRENCY * (PARTITIONS if is_spread else 1)
        for key in TENANTS:
            running = _together(ours, Window(queue, 0, 0, 0, key).concerns)
            if running > allowed:
                yield f"{running} tasks of the key {key!r} ran at the same time, and {allowed} may"


def forgotten(observed: Observed) -> Iterable[str]:
    """The result of each task that has ended is there."""
    # A failover may lose results, and so does a worker that is killed before it has written them.
    if observed.row["middle"] == "failover":
        return
    gone = {worker for each in observed.ours.damage if each.harm is Harm.KILL for worker in each.workers}
    gone.update(observed.ours.died)
    excused = {first(entry.task) for entry in observed.ours.entries if entry.worker in gone}
    missing = [id for id, state in observed.ours.results.items() if state != SUCCESS and id not in excused]
    if missing:
        yield f"{len(missing)} tasks have no result: {_some(missing)}"


CHECKS: Sequence[Callable[[Observed], Iterable[str]]] = (
    lost,
    refused,
    misplaced,
    early,
    twice,
    slow,
    logged,
    ended,
    left,
    unpaused,
    unlimited,
    unfair,
    forgotten,
)


def problems(observed: Observed) -> dict[str, list[str]]:
    """Name of a check -> what it has found; only of those that have found something."""
    found = {check.__name__: list(check(observed)) for check in CHECKS}
    return {name: texts for name, texts in found.items() if texts}


def _of(history: History, event: str, is_meant: Callable[[Submission], bool]) -> list[Entry]:
    tasks = {each.task for each in history.submissions if is_meant(each)}
    return [entry for entry in history.entries if entry.event == event and first(entry.task) in tasks]


def _together(history: History, is_meant: Callable[[Submission], bool]) -> int:
    """How many of some tasks ran at the same time at most."""
    steps: list[tuple[float, int]] = []
    begun: dict[tuple[str, str], float] = {}
    of_these = [entry for event in (START, END) for entry in _of(history, event, is_meant)]
    for entry in sorted(of_these, key=lambda entry: entry.at):
        name = entry.worker, entry.task
        if entry.event == START:
            begun[name] = entry.at
        elif name in begun:
            steps += [(begun.pop(name), 1), (entry.at, -1)]
    running = most = 0
    for _, step in sorted(steps):
        running += step
        most = max(most, running)
    return most


def _is_retry_of(task: str, others: Collection[str]) -> bool:
    return first(task) != task and first(task) in others


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:4]) + (", ..." if len(names) > 4 else "")
