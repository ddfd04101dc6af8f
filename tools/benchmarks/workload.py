"""What a workload is."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field

from tools.benchmarks.peers import Peer
from tools.benchmarks.site import Site

#: How much is done, by name; each workload has its own names.
Sizes = Mapping[str, int]


@dataclass(frozen=True)
class Measured:
    """What one measurement has shown.

    Attributes:
        figures: by name.
        samples: what the figures were computed from, where a picture shows it.
    """

    figures: dict[str, float]
    samples: list[float] = field(default_factory=list)


#: A measurement that is made bit by bit.
Turns = Generator[None, None, Measured]


@dataclass(frozen=True)
class Case:
    """One of the things that a workload compares: a peer, and what is particular to this case."""

    name: str
    peer: Peer
    sizes: Sizes = field(default_factory=dict)


def cases(*peers: Peer) -> tuple[Case, ...]:
    """Each peer as it is."""
    return tuple(Case(peer.name, peer) for peer in peers)


@dataclass(frozen=True)
class Workload:
    """Something to measure.

    Attributes:
        about: what is done, in one line.
        units: of each figure.
        measure: does it once, in a process of its own; if *in_turns* a generator function.
        sizes: how much of it.
        quick_sizes: how much with ``--quick``; ``None`` for what takes too long for that.
        rounds: how often, at most; ``None`` for as often as asked.
        in_turns: whether the cases of a round are measured side by side: each goes on until it yields, then
            the next one does. What slows the machine down for a second slows all of them down.
        apart: whether Redis and the measuring process have cores of their own meanwhile.
    """

    name: str
    about: str
    cases: Sequence[Case]
    units: Mapping[str, str]
    measure: Callable[[Site, Sizes], Measured | Turns]
    sizes: Sizes
    quick_sizes: Sizes | None
    rounds: int | None = None
    in_turns: bool = False
    apart: bool = False
