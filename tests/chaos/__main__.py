"""Runs it: exit status 1 if our transport broke its word, and 0 for the others, whose figures are figures."""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.chaos.limits import limits
from tests.chaos.report import as_json, as_text, failures
from tests.chaos.run import Run
from tests.chaos.schedule import KILL_INTERVAL, SERVERS_INTERVAL, plan
from tests.chaos.tenants import TENANTS
from tests.chaos.topologies import TOPOLOGIES
from tests.chaos.transports import TRANSPORTS
from tests.chaos.trouble import report as trouble_report
from tests.chaos.trouble.rounds import POOLS, rounds
from tests.chaos.trouble.rows import ROWS, rows
from tests.chaos.trouble.run import run as run_troubled
from tests.chaos.trouble.sites import SITES
from tests.chaos.worker import KINDS, STOCK

OURS = "redisdelay"


def main() -> int:
    parser = _parser()
    options = parser.parse_args()
    if options.topology != "single" and options.transport != OURS:
        parser.error(f"--topology {options.topology} is for {OURS}")
    for name in ("limit", "unique", "fair", "failing", "trouble"):
        if getattr(options, name) and options.transport != OURS:
            parser.error(f"--{name} is for {OURS}")
    if options.stock and (options.topology != "single" or not options.only_kills):
        parser.error(
            "--stock needs --only-kills, on one Redis: what else is done harms the stock worker, too"
        )
    seed = options.seed if options.seed is not None else random.randrange(10**6)
    if options.trouble:
        return _trouble(options, seed)
    kills = options.kills or max(1, round(options.seconds / KILL_INTERVAL))
    transport, topology = TRANSPORTS[options.transport], TOPOLOGIES[options.topology]
    failovers = 0
    if topology.failovers:
        failovers = options.failovers or max(1, round(kills * KILL_INTERVAL / SERVERS_INTERVAL))
    harm = f"{kills} SIGKILLs, {failovers} failovers, {options.rate:g} tasks a second"
    print(f"{transport.name}, {options.topology}: seed {seed}, {harm}", flush=True)
    schedule = plan(
        seed,
        kills,
        () if options.only_kills else topology.others,
        shared=() if options.only_kills else topology.shared,
        failovers=failovers,
        kinds=topology.failovers,
        changes=topology.changes,
    )
    count = options.queues or max(topology.count, 3 if options.limit else 1)
    queues = [f"chaos-{number}" for number in range(count)]
    limited = limits(queues, options.rate) if options.limit else {}
    site = topology(queues)
    kinds = (*KINDS, STOCK) if options.stock else KINDS
    result = Run(
        transport,
        schedule,
        seed,
        options.rate,
        site,
        options.keep,
        limited,
        options.unique,
        kinds,
        TENANTS if options.fair else (),
        options.failing,
    )()
    print(as_text(result))
    if options.json is not None:
        options.json.write_text(
            json.dumps({"topology": options.topology, "seed": seed, **as_json(result)}, indent=2) + "\n"
        )
    status = _verdict(failures(result))
    return status if transport.name == OURS else 0


def _trouble(options: argparse.Namespace, seed: int) -> int:
    chosen = [row for row in rows(options.topology) if not options.rows or row.name in options.rows]
    planned = rounds(seed, options.rounds, options.pools, chosen)
    print(f"servers in trouble, {options.topology}: seed {seed}, {len(planned)} rounds", flush=True)
    found = run_troubled(SITES[options.topology](), planned, seed, options.keep)
    print(trouble_report.as_text(found))
    if options.json is not None:
        said = {"topology": options.topology, "seed": seed, **trouble_report.as_json(found)}
        options.json.write_text(json.dumps(said, indent=2) + "\n")
    return _verdict(trouble_report.failures(found))


def _verdict(broken: Sequence[str]) -> int:
    print("\n".join(["Not as it must be:", *broken] if broken else ["As it must be."]))
    return 1 if broken else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--transport", choices=TRANSPORTS, default=OURS)
    parser.add_argument("--topology", choices=TOPOLOGIES, default="single", help="of the servers")
    parser.add_argument("--seconds", type=float, default=30, help="for how long to do harm (default: 30)")
    parser.add_argument("--kills", type=int, help="how many SIGKILLs, one a second, instead of --seconds")
    parser.add_argument(
        "--failovers", type=int, help="how many, where there are any (default: one in 15 seconds)"
    )
    parser.add_argument(
        "--only-kills", action="store_true", help="SIGKILL, and no other harm but what happens to the servers"
    )
    parser.add_argument("--rate", type=float, default=40, help="tasks submitted a second (default: 40)")
    parser.add_argument("--queues", type=int, help="that they go to (default: 1, on a cluster 6)")
    parser.add_argument(
        "--limit",
        action="store_true",
        help="limit the queues (default: 3) by rate, by concurrency and by both, and pause them, too",
    )
    parser.add_argument(
        "--unique", action="store_true", help="submit tasks with keys beside the others, in all modes"
    )
    parser.add_argument(
        "--fair",
        action="store_true",
        help="share fair queues between keys, with limits for some, and make the queues plain now and then",
    )
    parser.add_argument(
        "--failing",
        action="store_true",
        help="have some of the tasks fail, and count those that are not kept, or twice",
    )
    parser.add_argument(
        "--stock", action="store_true", help="run a worker of redis:// beside the others, which is not harmed"
    )
    parser.add_argument(
        "--trouble",
        action="store_true",
        help="have servers refuse instead, in rounds: pools and kinds of trouble in turn",
    )
    parser.add_argument("--rounds", type=int, default=20, help="with --trouble, how many (default: 20)")
    parser.add_argument("--pools", nargs="+", choices=POOLS, default=POOLS, help="with --trouble")
    parser.add_argument(
        "--rows",
        nargs="+",
        metavar="ROW",
        choices=[row.name for row in ROWS],
        help=f"with --trouble, which: {', '.join(row.name for row in ROWS)} (default: all)",
    )
    parser.add_argument("--seed", type=int, help="of the schedule of harm and of the tasks")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures to FILE")
    parser.add_argument(
        "--keep", type=Path, metavar="DIRECTORY", help="keep the ledger and the logs in a new one"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
