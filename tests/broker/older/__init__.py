"""What a worker of the release before does with failed tasks: its scripts, as they were in 6152a5c9, before
some of these tasks were listed as having returned."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kombu_redisdelay.broker import keeping as module
from kombu_redisdelay.broker.archive import Archived
from kombu_redisdelay.broker.failure import Failure
from kombu_redisdelay.broker.options import KeepFailed
from kombu_redisdelay.broker.paging import REQUEUE
from tests.broker.rig import Rig

_HERE = Path(__file__).parent
_NOW = Path(module.__file__).parents[1] / "lua"


def _script(name: str) -> str:
    """A script. Includes that have not changed are those of now."""

    def include(match: re.Match[str]) -> str:
        path = Path("include") / f"{match[1]}.lua"
        return next(each / path for each in (_HERE, _NOW) if (each / path).exists()).read_text()

    return re.sub(r"^ *-- include: (\w+)$", include, (_HERE / f"{name}.lua").read_text(), flags=re.MULTILINE)


FAIL, TRIM, TAKE_OUT = map(_script, ("fail", "trim_failed", "remove_failed"))


class OlderWorker:
    """Keeps, trims, removes and requeues the failed tasks of a queue, and knows of none that has returned."""

    def __init__(self, rig: Rig, queue: str) -> None:
        self._rig = rig
        self._keys = rig.store.keys(queue)

    def fail(self, failure: Failure, text: str, keep: KeepFailed) -> None:
        keys = self._keys.unacked("older"), self._keys.wake
        limits = keep.count, keep.age_ms, keep.bytes, 100
        self._run(
            *(FAIL, keys, "tag", failure.id, failure.group, failure.details, f"0:{text}", 0),
            *limits,
        )

    def trim(self, keep: KeepFailed) -> None:
        done = 100
        while done == 100:
            done, _ = self._run(TRIM, (self._keys.failed,), keep.count, keep.age_ms, keep.bytes, 100, 10, 600)

    def take_out(self, how: str, tasks: Sequence[Archived]) -> int:
        keys = self._keys.failed, self._keys.ready, self._keys.wake
        each = [
            argument
            for task in tasks
            for argument in (task.name, task.head, task.stored if how == REQUEUE else b"")
        ]
        return sum(self._run(TAKE_OUT, keys, how, self._keys.separator, *each))

    def _run(self, text: str, keys: Sequence[str], *args: Any) -> Any:
        return self._rig.client.eval(text, len(keys), *keys, *args)
