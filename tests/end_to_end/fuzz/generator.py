"""Cases for the fuzz: the same seed makes the same ones."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass
from itertools import count, islice
from random import Random
from typing import TYPE_CHECKING, Any

from tests.end_to_end.fuzz.oddities import changes
from tests.end_to_end.fuzz.wellformed import BODY, TASKS, end_of_mark, protocol_1, protocol_2, written

if TYPE_CHECKING:
    from collections.abc import Iterator

#: One message in so many is as it should be.
GOOD_EVERY = 4

#: Of the others, one in so many has several things wrong, and one in so many was damaged on its way.
SEVERAL_EVERY = 3
DAMAGED_EVERY = 20

#: Headers of keys in a fair queue, which are right.
KEYS: tuple[dict[str, Any], ...] = ({}, {"x-key": "a"}, {"x-key": "b", "x-key-weight": 2.5})


@dataclass(frozen=True)
class Case:
    """A message of the fuzz.

    Attributes:
        what: what is wrong with it; "" for a good one.
        entry: as it is put into the queue.
        parts: the names of the parts that are wrong, one of which a reason must name; none if it may say
            anything.
    """

    label: str
    what: str
    entry: bytes
    parts: tuple[str, ...] = ()

    @property
    def is_good(self) -> bool:
        return not self.what


def cases(seed: str, number: int) -> list[Case]:
    """So many cases that are wrong, with good ones in between."""
    random = Random(seed)
    wrong = islice(_wrong(random), number)
    result: list[Case] = []
    for index, case in enumerate(wrong):
        if index % (GOOD_EVERY - 1) == 0:
            label = f"good {index}"
            result.append(Case(label, "", written(label, _whole(label, random)[1])))
        result.append(case)
    return result


def _wrong(random: Random) -> Iterator[Case]:
    singles = {protocol: random.sample(changes(protocol), len(changes(protocol))) for protocol in (1, 2)}
    for number in count():
        label = f"case {number}"
        protocol, tree = _whole(label, random)
        if random.randrange(SEVERAL_EVERY) and singles[protocol]:
            chosen = [singles[protocol].pop()]
        else:
            chosen = random.choices(changes(protocol), k=random.randint(2, 5))
        for change in chosen:
            change.apply(tree)
        if "body" in tree:
            tree.pop(BODY, None)
        what = f"protocol {protocol}; " + "; ".join(map(str, chosen))
        entry = written(label, tree)
        parts = tuple(name for change in chosen for name in change.names)
        if not random.randrange(DAMAGED_EVERY):
            what, entry, parts = f"{what}; damaged", _damaged(entry, end_of_mark(entry), random), ()
        yield Case(label, what, entry, parts)


def _whole(label: str, random: Random) -> tuple[int, dict[str, Any]]:
    """A message with nothing wrong, and the number of its protocol."""
    # Protocol 1 is rare today.
    protocol = random.choice((1, 2, 2))
    task = random.choice(TASKS)
    # Changes are made in the tree.
    tree = deepcopy((protocol_1 if protocol == 1 else protocol_2)(label, task))
    # Where there is a key, the scripts read whatever else is in the headers, too.
    tree["headers"] |= random.choice(KEYS)
    return protocol, tree


def _damaged(entry: bytes, start: int, random: Random) -> bytes:
    """*entry* with a part cut off, taken out, doubled, or overwritten, from *start* on."""
    begin, end = sorted(random.randint(start, len(entry)) for _ in range(2))
    kind = random.randrange(4)
    if kind == 0:
        return entry[:begin]
    if kind == 1:
        return entry[:begin] + entry[end:]
    if kind == 2:
        return entry[:end] + entry[begin:]
    return entry[:begin] + random.randbytes(1) + entry[begin + 1 :]
