"""A row, run: our transport, and kombu's beside it where that can do it."""

from __future__ import annotations

from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from threading import Barrier, BrokenBarrierError, Event

from tests.combinations.checks import Observed, problems
from tests.combinations.dimensions import Row
from tests.combinations.history import History
from tests.combinations.interpreters import Interpreter
from tests.combinations.plan import Plan, plan
from tests.combinations.servers import TOPOLOGIES
from tests.combinations.side import Side

#: For how many seconds is published.
SECONDS = 9.0
#: What ends a worker of kombu's transport; there, it is left out.
FATAL = ("raises", "unreadable")
#: How many times a row is run that was only slow: the machine has other things to do, too.
AT_MOST = 3


@dataclass(frozen=True)
class Outcome:
    """What came of a row.

    Attributes:
        runs: how many times it was run.
        problems: name of a check -> what is wrong.
    """

    observed: Observed
    problems: dict[str, list[str]]
    runs: int = 1


def run(row: Row, seed: str, interpreter: Interpreter, seconds: float = SECONDS, *, alone: bool) -> Outcome:
    """Run a row, and again if it was only slow.

    Arguments:
        alone: leave kombu's transport out, and with it what is compared with it.
    """
    runs = 0
    while True:
        observed = observe(row, seed, interpreter, seconds, alone=alone)
        runs, found = runs + 1, problems(observed)
        if found.keys() != {"slow"} or runs == AT_MOST:
            return Outcome(observed, found, runs)


def observe(row: Row, seed: str, interpreter: Interpreter, seconds: float, *, alone: bool) -> Observed:
    """Run a row once. Both sides do the same at the same time, so that they feel the same noise."""
    published = plan(row, seed, seconds)
    beside = None if alone else stock_topology(row)
    together, enough = Barrier(1 if beside is None else 2), Event()
    with ThreadPoolExecutor(2, "side") as executor:

        def begin(topology: str, published: Plan, *, stock: bool) -> Future[History]:
            # kombu's transport ends at most of what a server in trouble answers.
            troubled = row["trouble"] != "no" and not stock
            servers = TOPOLOGIES[topology](failing=row["middle"] == "failover", troubled=troubled)
            side = Side(row, published, servers, interpreter.path, together, enough, stock=stock)
            return executor.submit(side)

        sides = [begin(row["topology"], published, stock=False)]
        if beside is not None:
            bearable = published.without_wrong() if row["beside"] in FATAL else published
            sides.append(begin(beside, bearable, stock=True))
        try:
            wait(sides, return_when=FIRST_EXCEPTION)
        finally:
            # After Ctrl-C, or if one of them cannot go on.
            enough.set()
    # What stopped one of them stopped the other.
    errors = [error for side in sides if (error := side.exception()) is not None]
    for error in sorted(errors, key=lambda each: isinstance(each, (BrokenBarrierError, InterruptedError))):
        raise error
    ours, stock, *_ = [*(side.result() for side in sides), None]
    assert ours is not None
    return Observed(row, ours, stock)


def stock_topology(row: Row) -> str | None:
    """Where kombu's transport does what the row does. It knows no cluster: one server is as fast, but cannot
    fail over."""
    if row["topology"] != "cluster":
        return row["topology"]
    return None if row["middle"] == "failover" else "single"
