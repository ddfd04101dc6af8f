"""Runs the rows of a seed: exit status 1 if one of them is not as it must be."""

from __future__ import annotations

import argparse
import json
import random
import sys
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.combinations.dimensions import DIMENSIONS, EXCLUSIONS
from tests.combinations.interpreters import Interpreters, look_around
from tests.combinations.keeping import keep
from tests.combinations.report import as_json, described, line, paragraph
from tests.combinations.rows import rows
from tests.combinations.scenario import run

#: The oldest release of Celery that counts as one; setup.cfg names it.
OLDEST = (5, 5)
#: How much is said of an error that has the end of a log in it.
LINES = 12


def main() -> int:
    parser = _parser()
    options = parser.parse_args()
    seed = options.seed if options.seed is not None else random.randrange(10**6)
    dimensions = _without(parser, options.without)
    numbered = dict(enumerate(rows(seed, dimensions), 1))
    repeated = "".join(f" --without {name}={value}" for name, value in options.without)
    print(f"seed {seed}: {len(numbered)} rows", flush=True)
    for exclusion in EXCLUSIONS:
        what = " with ".join(f"{name} {'/'.join(values)}" for name, values in exclusion.values.items())
        print(f"not combined: {what}: {exclusion.why}")
    if options.list:
        print("\n".join(f"row {number}: {described(row)}" for number, row in numbered.items()))
        return 0
    interpreters = Interpreters(look_around(options.python), OLDEST)
    print("\n".join(f"found {interpreter}" for interpreter in interpreters.found), flush=True)

    chosen = {number: numbered[number] for number in options.row or numbered}
    wrong, left_out, done = [], [], []
    for number, row in chosen.items():
        interpreter = interpreters.of(row)
        if interpreter is None:
            left_out.append(number)
            continue
        print(f"row {number}: {described(row)}", flush=True)
        try:
            outcome = run(row, f"{seed} {number}", interpreter, alone=options.alone)
        except Exception as error:
            # The harness could not do it, so nothing is known about the row.
            lines = "".join(traceback.format_exception_only(error)).splitlines()
            problems = {"harness": ["\n".join([lines[0], *lines[1:][-LINES:]])]}
        else:
            problems = outcome.problems
            print(line(number, outcome), flush=True)
            done.append(as_json(number, row, outcome))
            if options.keep is not None:
                keep(options.keep / f"row-{number}", outcome.observed)
        if problems:
            wrong.append(paragraph(seed, number, row, problems, repeated))
            print(wrong[-1], flush=True)
    if options.json is not None:
        found = {"seed": seed, "rows": done, "left out": left_out}
        options.json.write_text(json.dumps(found, indent=1) + "\n")
    for number in left_out:
        row = chosen[number]
        print(f"left out: row {number}: no Python with Celery {row['celery']}, {row['hiredis']} hiredis")
    print("\n".join([f"\n{len(wrong)} of {len(chosen) - len(left_out)} rows are wrong.", *wrong]))
    return 1 if wrong else 0


def _without(
    parser: argparse.ArgumentParser, pairs: Sequence[tuple[str, str]]
) -> Mapping[str, Sequence[str]]:
    dimensions = {name: [*values] for name, values in DIMENSIONS.items()}
    for name, value in pairs:
        if value not in dimensions.get(name, ()):
            parser.error(f"no dimension {name} has the value {value}")
        dimensions[name].remove(value)
    return dimensions


def _pair(text: str) -> tuple[str, str]:
    name, _, value = text.partition("=")
    return name, value


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.combinations", description=__doc__)
    add = parser.add_argument
    add("--seed", type=int, help="of the rows, and of what is published in them")
    add("--row", type=int, action="append", help="only this one; may be given several times")
    add("--python", action="append", default=[], help="a Python that has another Celery, or hiredis")
    add("--without", type=_pair, action="append", default=[], metavar="NAME=VALUE", help="leave a value out")
    add("--alone", action="store_true", help="without redis:// beside it, so waits are not compared")
    add("--list", action="store_true", help="say which rows there are, and run none")
    add("--json", type=Path, metavar="FILE", help="also write what was found to FILE")
    add("--keep", type=Path, metavar="DIRECTORY", help="keep the ledgers and the logs there")
    return parser


if __name__ == "__main__":
    sys.exit(main())
