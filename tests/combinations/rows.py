"""Rows in which all pairs of values meet that can: a covering array."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import combinations, product
from random import Random

from allpairspy import AllPairs

from tests.combinations.dimensions import DIMENSIONS, EXCLUSIONS, Row, excluded

#: Two dimensions, each with a value.
Pair = tuple[tuple[str, str], tuple[str, str]]
#: Of so many rows with a pair that is missing, the one is taken that covers most of what is missing.
_TRIES = 50


def rows(seed: int, dimensions: Mapping[str, Sequence[str]] = DIMENSIONS) -> list[Row]:
    """The same for the same seed and dimensions: any other seed covers the pairs by other rows."""
    random = Random(seed)
    # With a value that fits nothing, allpairspy would try all there is.
    dimensions = {
        name: [value for value in values if _completed({name: value}, dimensions, Random(0)) is not None]
        for name, values in dimensions.items()
    }
    names = sorted(random.sample(list(dimensions), len(dimensions)), key=lambda name: -len(dimensions[name]))
    values = [random.sample(dimensions[name], len(dimensions[name])) for name in names]

    def is_possible(part: Sequence[str]) -> bool:
        return excluded(dict(zip(names, part, strict=False))) is None

    found: list[Row] = [dict(zip(names, row, strict=True)) for row in AllPairs(values, is_possible)]
    # allpairspy ends with pairs that it did not see how to cover.
    left = missing(found, dimensions)
    while left:
        pair = random.choice(sorted(left))
        tries = (_completed(dict(pair), dimensions, random) for _ in range(_TRIES))
        best = max(
            (row for row in tries if row is not None), key=lambda row: len(left.intersection(pairs(row)))
        )
        found.append(best)
        left.difference_update(pairs(best))
    return [{name: row[name] for name in dimensions} for row in found]


def missing(rows: Iterable[Row], dimensions: Mapping[str, Sequence[str]] = DIMENSIONS) -> set[Pair]:
    """The pairs that are in no row, though they can be."""
    return possible_pairs(dimensions) - {pair for row in rows for pair in pairs(row)}


def pairs(row: Row) -> Iterator[Pair]:
    """All pairs that meet in a row."""
    return combinations(sorted(row.items()), 2)


def possible_pairs(dimensions: Mapping[str, Sequence[str]] = DIMENSIONS) -> set[Pair]:
    """All pairs that can meet, in at least one row that can be."""
    return {
        ((one, value), (other, second))
        for one, other in combinations(sorted(dimensions), 2)
        for value, second in product(dimensions[one], dimensions[other])
        if _completed({one: value, other: second}, dimensions, Random(0)) is not None
    }


def _completed(part: Row, dimensions: Mapping[str, Sequence[str]], random: Random) -> Row | None:
    """A row with this part; ``None`` if there is none that can be."""
    if excluded(part) is not None:
        return None
    name = next((name for name in _delicate_first(dimensions) if name not in part), None)
    if name is None:
        return part
    candidates = random.sample(dimensions[name], len(dimensions[name]))
    tries = (_completed({**part, name: value}, dimensions, random) for value in candidates)
    return next((row for row in tries if row is not None), None)


def _delicate_first(dimensions: Mapping[str, Sequence[str]]) -> list[str]:
    """What may be excluded is chosen first. What is left then can be anything, so nothing is taken back."""
    delicate = [name for exclusion in EXCLUSIONS for name in exclusion.values]
    return [name for name in dict.fromkeys([*delicate, *dimensions]) if name in dimensions]
