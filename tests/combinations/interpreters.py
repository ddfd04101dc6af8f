"""The Pythons of this machine that have what a row needs: a release of Celery, and hiredis or not."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.combinations.dimensions import Row

ROOT = Path(__file__).parents[2]
#: Where environments are looked for, from the root of the repository.
PLACES = (".venv*/bin/python", ".tox/py3*/bin/python")

_ASK = """
import importlib.util, json
import celery, eventlet, gevent, kombu, redis, kombu_redisdelay
print(json.dumps([celery.__version__, redis.__version__, importlib.util.find_spec("hiredis") is not None]))
"""


@dataclass(frozen=True)
class Interpreter:
    """A Python that can run a worker of any pool."""

    path: str
    celery: str
    redis: str
    hiredis: bool

    @property
    def release(self) -> tuple[int, int]:
        """The first two numbers of Celery's."""
        major, minor, *_ = self.celery.split(".")
        return int(major), int(minor)

    def __str__(self) -> str:
        hiredis = "with" if self.hiredis else "without"
        return f"{self.path}: Celery {self.celery}, redis-py {self.redis}, {hiredis} hiredis"


class Interpreters:
    """Chooses one for a row.

    Arguments:
        found: the first one that fits is chosen.
        oldest: the release of Celery that counts as the oldest; any other one but the newest does not count.
    """

    def __init__(self, found: Sequence[Interpreter], oldest: tuple[int, int]) -> None:
        self.found = found
        self._oldest = oldest
        self._newest = max((each.release for each in found), default=oldest)

    def of(self, row: Row) -> Interpreter | None:
        """The one for a row; ``None`` if it is missing."""
        release = self._oldest if row["celery"] == "oldest" else self._newest
        fitting = (
            each
            for each in self.found
            if each.release == release and each.hiredis is (row["hiredis"] == "with")
        )
        return next(fitting, None)


def look_around(named: Iterable[str]) -> list[Interpreter]:
    """Those that were named, this one, and those of environments in the repository, which is where ``tox``
    has its own."""
    paths = [*named, sys.executable, *(str(path) for place in PLACES for path in sorted(ROOT.glob(place)))]
    asked = (ask(path) for path in dict.fromkeys(paths))
    return [interpreter for interpreter in asked if interpreter is not None]


def ask(path: str) -> Interpreter | None:
    """What a Python has; ``None`` if it cannot run our workers."""
    try:
        done = subprocess.run([path, "-c", _ASK], capture_output=True, text=True, cwd=ROOT, timeout=120)
    except OSError:
        return None
    return Interpreter(path, *json.loads(done.stdout)) if done.returncode == 0 else None
