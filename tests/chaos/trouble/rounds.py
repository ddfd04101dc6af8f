"""Which trouble comes when, and what is done to workers meanwhile: the same for the same seed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from random import Random
from typing import TypeVar

from tests.chaos.trouble.rows import Row

_Each = TypeVar("_Each")

POOLS = ("prefork", "threads", "solo", "gevent")
#: Of ten troubles one lasts so many leases. Of twenty, one in which a worker is told to end lasts for longer
#: than a worker is patient with its acks. The others end before a lease does, or let another worker start in
#: the place of one that is gone.
LONG, STUBBORN = 2.0, 4.0
SHORT, WITH_A_START = (0.3, 0.9), (1.0, 1.7)
EVERY_LONG, EVERY_STUBBORN = 10, 20


class Meanwhile(Enum):
    """What is done to a worker while it is refused."""

    NOTHING = "nothing"
    SIGTERM = "SIGTERM"
    SIGKILL = "SIGKILL"


_OF_FIVE = (*[Meanwhile.NOTHING] * 3, Meanwhile.SIGTERM, Meanwhile.SIGKILL)


@dataclass(frozen=True)
class Round:
    """
    Attributes:
        leases: how long it lasts.
        to_some: whether not all workers are refused.
        steady: seconds before it begins.
        after: when something is done to a worker, as a share of the time that it lasts.
    """

    row: Row
    pool: str
    leases: float
    to_some: bool
    meanwhile: Meanwhile
    steady: float
    after: float


def rounds(seed: int, number: int, pools: Sequence[str], rows: Sequence[Row]) -> list[Round]:
    """So many, pool by pool. The rows and what is done meanwhile come in turn."""
    random = Random(seed)
    in_turn, done = _in_turn(random, rows), _in_turn(random, _OF_FIVE)
    planned = []
    for each in range(number):
        row, meanwhile = next(in_turn), next(done)
        usual = SHORT if meanwhile is Meanwhile.NOTHING else WITH_A_START
        leases = LONG if each % EVERY_LONG == EVERY_LONG - 1 else random.uniform(*usual)
        if each % EVERY_STUBBORN == EVERY_STUBBORN // 2:
            leases, meanwhile = STUBBORN, Meanwhile.SIGTERM
        to_some = row.is_for_some and random.random() < 0.5
        steady, after = random.uniform(0.2, 0.8), random.uniform(0.1, 0.5)
        pool = pools[each * len(pools) // number]
        planned.append(Round(row, pool, leases, to_some, meanwhile, steady, after))
    return planned


def _in_turn(random: Random, all_: Sequence[_Each]) -> Iterator[_Each]:
    """Each once, in any order, and so on for ever."""
    while True:
        yield from random.sample(all_, len(all_))
