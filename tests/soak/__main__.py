"""Runs a part of it: exit status 1 if something grows that must not."""

from __future__ import annotations

import argparse
import sys

from kombu_redisdelay.broker.unique import MODES
from tests.soak import deploy, prefetch, unique
from tests.soak.memory import POOLS, measure
from tests.soak.queues import make_and_leave


def main() -> int:
    options = _parser().parse_args()
    if options.part == "queues":
        return 0 if make_and_leave(options.number) else 1
    if options.part == "prefetch":
        return 0 if prefetch.watch(options.pools, options.seconds, options.scheme, options.reduction) else 1
    if options.part == "deploy":
        how = (options.pools, options.number, options.kills, options.early, options.cluster, options.python)
        return 0 if deploy.deploy_all(*how) else 1
    if options.part == "unique":
        crowd = unique.Crowd(options.producers, options.number, options.keys, options.consumers)
        return 0 if unique.race(crowd, options.modes) else 1
    return 0 if measure(options.pools, options.number, options.scheme) else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parts = parser.add_subparsers(dest="part", required=True)
    queues = parts.add_parser("queues", help="make and leave very many queues")
    queues.add_argument("--number", type=int, default=20_000, help="of queues (default: 20000)")
    memory = parts.add_parser("memory", help="run very many tasks in one worker")
    memory.add_argument("--number", type=int, default=1_000_000, help="of tasks (default: 1000000)")
    memory.add_argument("--pools", nargs="+", choices=POOLS, default=list(POOLS), metavar="POOL")
    memory.add_argument("--scheme", default="redisdelay", help="redis, to compare with kombu's own")
    counts = parts.add_parser("prefetch", help="kill the connections of a busy worker again and again")
    pools = list(prefetch.POOLS)
    counts.add_argument("--seconds", type=float, default=600, help="of each pool (default: 600)")
    counts.add_argument("--pools", nargs="+", choices=pools, default=pools, metavar="POOL")
    counts.add_argument("--scheme", default="redisdelay", help="redis, to compare with kombu's own")
    counts.add_argument("--reduction", action="store_true", help="leave Celery's reduction of the count on")
    rolling = parts.add_parser("deploy", help="replace workers by others that know more tasks")
    rolling.add_argument("--number", type=int, default=10_000, help="of tasks (default: 10000)")
    rolling.add_argument(
        "--pools", nargs="+", choices=list(deploy.POOLS), default=list(deploy.POOLS), metavar="POOL"
    )
    rolling.add_argument("--kills", type=int, default=0, help="of workers meanwhile (default: 0)")
    rolling.add_argument("--early", action="store_true", help="ack early instead of late")
    rolling.add_argument("--cluster", action="store_true", help="on three servers of a cluster")
    rolling.add_argument("--python", default="", help="of another environment, which has another Celery")
    keys = parts.add_parser("unique", help="publish messages of a few keys from many processes at once")
    keys.add_argument("--producers", type=int, default=8, help="(default: 8)")
    keys.add_argument("--number", type=int, default=10_000, help="of messages of each (default: 10000)")
    keys.add_argument("--keys", type=int, default=100, help="(default: 100)")
    keys.add_argument("--consumers", type=int, default=3, help="(default: 3)")
    keys.add_argument("--modes", nargs="+", choices=MODES, default=MODES, metavar="MODE")
    return parser


if __name__ == "__main__":
    sys.exit(main())
