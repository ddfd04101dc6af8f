"""When to do which harm: the same for the same seed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import islice
from random import Random

#: Seconds between two kills, between two harms of other kinds, between two that all workers feel, and between
#: two that happen to the servers, on average. After the latter two, all workers have to find their way again:
#: with kills every second and less time than that, hardly anything would get done.
KILL_INTERVAL = 1.0
OTHER_INTERVAL = 3.0
SHARED_INTERVAL = 12.0
SERVERS_INTERVAL = 15.0
#: After so many failovers comes another change of the servers.
FAILOVERS_PER_CHANGE = 2


class Harm(str, Enum):
    KILL = "SIGKILL"
    TERMINATE = "SIGTERM"
    STOP = "SIGSTOP"
    CLIENT_KILL = "CLIENT KILL"
    RESTART = "Redis restart"
    RESET = "connections reset"
    #: Those that there are now, and
    HALF_OPEN = "connections half-open"
    #: for a while those still to come, too.
    SILENCE = "network silent"
    DELAY = "connections slow"
    PRIMARY_KILL = "primary killed"
    #: With SIGSTOP, until another one has taken its place, which it does not know then.
    PRIMARY_STOP = "primary stopped"
    #: From replicas and sentinels or other nodes, not from the clients.
    PRIMARY_CUT = "primary cut off"
    #: From everybody.
    PRIMARY_PARTITION = "primary partitioned"
    MOVE = "slots moved"
    GROW = "nodes added"
    DOWN = "cluster down"
    #: A server in trouble: it answers, and refuses. All workers, and
    REFUSED = "refused"
    #: some of them.
    REFUSED_SOME = "some refused"


#: What has another server become the primary.
FAILOVERS = (Harm.PRIMARY_KILL, Harm.PRIMARY_STOP, Harm.PRIMARY_CUT, Harm.PRIMARY_PARTITION)
#: What happens to the network between clients and a server that serves them.
OF_CONNECTIONS = (Harm.RESET, Harm.HALF_OPEN, Harm.SILENCE, Harm.DELAY)


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


def plan(
    seed: int,
    kills: int,
    others: Sequence[Harm] = (),
    *,
    shared: Sequence[Harm] = (),
    failovers: int = 0,
    kinds: Sequence[Harm] = (),
    changes: Sequence[Harm] = (),
) -> list[Planned]:
    """The schedule of a run, in the order of time.

    One that came late would find nobody left to harm, so workers are killed in even intervals, and the
    other kinds come round after round: a short run has them all, too.

    Arguments:
        kills: of workers, how many.
        others: the kinds of harm that come beside them.
        shared: those that all workers feel.
        failovers: how many, of these *kinds*.
        changes: the kinds of what else happens to the servers.
    """
    of_servers = list(_of_servers(Random(f"{seed} servers"), failovers, kinds, changes))
    duration = max(kills * KILL_INTERVAL, len(of_servers) * SERVERS_INTERVAL)
    random = Random(seed)
    killed = _spread(random, [Harm.KILL] * kills, duration / kills)
    other = _spread(random, islice(_rounds(random, others), int(duration / OTHER_INTERVAL)), OTHER_INTERVAL)
    servers = _spread(random, of_servers, SERVERS_INTERVAL)
    all_ = _spread(random, islice(_rounds(random, shared), int(duration / SHARED_INTERVAL)), SHARED_INTERVAL)
    return sorted([*killed, *other, *servers, *all_], key=lambda each: each.at)


def _of_servers(
    random: Random, failovers: int, kinds: Sequence[Harm], changes: Sequence[Harm]
) -> Iterator[Harm]:
    change = _rounds(random, changes)
    for number, failover in enumerate(islice(_rounds(random, kinds), failovers), 1):
        yield failover
        if number % FAILOVERS_PER_CHANGE == 0:
            yield from islice(change, 1)


def _rounds(random: Random, kinds: Sequence[Harm]) -> Iterator[Harm]:
    """Each kind once, in any order, and so on for ever; nothing if there are none."""
    while kinds:
        yield from random.sample(kinds, len(kinds))


def _spread(random: Random, harms: Iterable[Harm], interval: float) -> list[Planned]:
    """Each somewhere in an interval of its own, of so many seconds."""
    return [
        Planned((number + random.random()) * interval, harm, random.random())
        for number, harm in enumerate(harms)
    ]
