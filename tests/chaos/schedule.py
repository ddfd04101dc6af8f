"""When to do which harm: the same for the same seed."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from random import Random

#: Seconds between two kills, and between two harms of other kinds, on average.
KILL_INTERVAL = 1.0
OTHER_INTERVAL = 3.0


class Harm(str, Enum):
    KILL = "SIGKILL"
    TERMINATE = "SIGTERM"
    STOP = "SIGSTOP"
    CLIENT_KILL = "CLIENT KILL"
    RESTART = "Redis restart"
    RESET = "connections reset"
    #: Those that there are, and
    HALF_OPEN = "connections half-open"
    #: for a while those still to come, too.
    SILENCE = "network silent"
    DELAY = "connections slow"


#: One that came late would find nobody left to harm, so workers are killed in even intervals, and the
#: other kinds come round after round: a short run has them all, too.
OTHERS = tuple(harm for harm in Harm if harm is not Harm.KILL)


@dataclass(frozen=True)
class Planned:
    """A harm to be done.

    Attributes:
        at: seconds after the beginning.
        pick: from 0 to 1, which one of those that can be harmed at that time.
    """

    at: float
    harm: Harm
    pick: float


def plan(seed: int, kills: int, *, only_kills: bool) -> list[Planned]:
    """The schedule of a run with so many kills, in the order of time."""
    random = Random(seed)
    planned = [
        Planned((number + random.random()) * KILL_INTERVAL, Harm.KILL, random.random())
        for number in range(kills)
    ]
    if not only_kills:
        round_: list[Harm] = []
        for number in range(int(kills * KILL_INTERVAL / OTHER_INTERVAL)):
            round_ = round_ or random.sample(OTHERS, len(OTHERS))
            at = (number + random.random()) * OTHER_INTERVAL
            planned.append(Planned(at, round_.pop(), random.random()))
    return sorted(planned, key=lambda each: each.at)
