"""Failovers under load, and what they lose: ``python -m tests.sentinel --confirm 1 --failovers 20``.

The numbers in docs/scaling.rst come from it.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from tests.end_to_end.installation import Installation
from tests.sentinel.load import Load
from tests.sentinel.test_workers import EXPECTED, HARMS, POOLS, SCHEME
from tools.harness.process import wait_until
from tools.harness.sentinel import MASTER, SentinelSite

#: The harms, and a failover that an operator asks for.
KINDS = (*HARMS, "planned")

#: Seconds of load before each failover.
BEFORE = 2.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--failovers", type=int, default=20)
    parser.add_argument("--confirm", type=int, default=0, help="confirm_replicas")
    parser.add_argument("--replicas", type=int, default=2)
    parser.add_argument("--min-replicas-to-write", type=int, default=0)
    parser.add_argument("--kinds", default=",".join(KINDS), help="of failovers, in turn")
    arguments = parser.parse_args()
    kinds = arguments.kinds.split(",")
    options = {"master_name": MASTER, "confirm_replicas": arguments.confirm}
    args = ("--min-replicas-to-write", str(arguments.min_replicas_to_write))
    with (
        tempfile.TemporaryDirectory() as directory,
        SentinelSite(replicas=arguments.replicas, args=args) as sentinels,
        Installation(sentinels, Path(directory), broker_transport_options=options) as site,
    ):
        workers = [
            site.start_worker(scheme=SCHEME, pool=pool, queues=[pool], expected=EXPECTED) for pool in POOLS
        ]
        for worker in workers:
            worker.wait_ready()
        rows, marks = [], [0]
        with Load(site.producer(SCHEME), POOLS) as load:
            for number in range(arguments.failovers):
                kind = kinds[number % len(kinds)]
                time.sleep(BEFORE)
                rows.append((kind, *_fail_over(sentinels, kind, load)))
                marks.append(len(load.accepted))
                _, took, later = rows[-1]
                print(f"{number + 1}. {kind}: failover {took:.1f} s, publishing {later:.1f} s later")
            time.sleep(BEFORE)
        with suppress(TimeoutError):
            site.wait_ended(load.accepted, timeout=30)
        _tell(site, load, kinds, [row[0] for row in rows], marks)


def _fail_over(sentinels: SentinelSite, kind: str, load: Load) -> tuple[float, float]:
    """Returns how many seconds the failover took, and how many later a publish was confirmed."""
    before, began = sentinels.primary(), time.monotonic()
    if kind == "planned":
        sentinels.fail_over()
    else:
        HARMS[kind][0](before)
        sentinels.wait_failover(before)
    over, count = time.monotonic(), len(load.accepted)
    wait_until(lambda: len(load.accepted) > count, 30, "nothing is published")
    again = time.monotonic()
    if kind != "planned":
        HARMS[kind][1](before)
    sentinels.wait_whole()
    return over - began, again - over


def _tell(site: Installation, load: Load, kinds: list[str], done: list[str], marks: list[int]) -> None:
    ended = set(site.ledger.ended())
    print(f"published {len(load.accepted)}, refused {dict(load.refused)}")
    for kind in kinds:
        lost = sum(
            task not in ended
            for number, name in enumerate(done)
            if name == kind
            for task in load.accepted[marks[number] : marks[number + 1]]
        )
        print(f"{kind}: {done.count(kind)} failovers, lost {lost}")
    lost = sum(task not in ended for task in load.accepted)
    twice, early = len(site.ledger.run_twice()), len(site.ledger.early())
    print(f"together: lost {lost}, ran twice {twice}, early {early}")


if __name__ == "__main__":
    main()
