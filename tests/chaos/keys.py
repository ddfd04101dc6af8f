"""Tasks of which one is enough for each key, beside the others of a run, and what became of them."""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations, count
from pathlib import Path
from typing import Any

from celery import Celery
from kombu.exceptions import OperationalError
from redis.exceptions import RedisError

from kombu_redisdelay import Unique
from tests.chaos.damage import Damage
from tests.chaos.ledger import START
from tests.chaos.producer import DURATIONS, Submitter
from tools.harness.journal import add_line, whole_lines

MODES = ("waiting", "done", "latest")

#: Keys of each mode in each queue.
KEYS = 3

#: Tasks with keys that are submitted a second.
RATE = 20.0

#: The longest countdown, seconds.
LONGEST_COUNTDOWN = 2.0

#: A worker that was harmed so many seconds before or after may have run a task beside another one.
AROUND = 1.0


@dataclass(frozen=True)
class Publish:
    """A task that was submitted, and confirmed.

    Attributes:
        id: what ``apply_async`` has returned: of the task that holds the key.
        version: the number of this publish among those of the key.
        at: just before, seconds since the epoch.
        was_dropped: whether the task with this *id* was there instead of it.
    """

    key: str
    mode: str
    id: str
    version: int
    at: float
    was_dropped: bool = False


@dataclass(frozen=True)
class Step:
    """A task with a key has started, or has ended."""

    event: str
    id: str
    key: str
    version: int
    at: float
    worker: str
    pid: int


class KeyLedger:
    """As :class:`~tests.chaos.ledger.Ledger`, beside it."""

    def __init__(self, ledger: Path) -> None:
        self._path = ledger.with_name(f"{ledger.name}-keys")

    def write(self, step: Step) -> None:
        add_line(self._path, json.dumps(asdict(step)))

    def steps(self) -> list[Step]:
        return [Step(**json.loads(line)) for line in whole_lines(self._path)] if self._path.exists() else []


class KeyedProducer(Submitter):
    """Submits tasks with keys."""

    def __init__(self, app: Celery, seed: int, queues: Sequence[str]) -> None:
        super().__init__(seed, RATE, queues)
        self._tasks = {mode: _task(app, mode) for mode in MODES}
        self._versions: defaultdict[str, Iterator[int]] = defaultdict(count)
        self.publishes: list[Publish] = []

    def _submit(self) -> bool:
        mode, queue = self._random.choice(MODES), self._random.choice(self._queues)
        key = f"{mode}-{queue}-{self._random.randrange(KEYS)}"
        countdown = self._random.uniform(0, LONGEST_COUNTDOWN) if self._random.random() < 0.3 else None
        version, at = next(self._versions[key]), time.time()
        arguments = (key, version, self._random.choice(DURATIONS), self._random.random() < 0.1)
        try:
            result = self._tasks[mode].apply_async(arguments, queue=queue, countdown=countdown, retry=False)
        except (OperationalError, RedisError, OSError):
            return False
        self.publishes.append(Publish(key, mode, result.id, version, at, result.dropped))
        return True


def task_options(mode: str) -> dict[str, Any]:
    """The options of the task with keys of this *mode*, where it is submitted and where it runs."""
    return {
        "name": f"keyed_{mode}",
        "base": Unique,
        "unique": "{key}",
        "unique_while": mode,
        "acks_late": True,
        "ignore_result": True,
    }


def _task(app: Celery, mode: str) -> Any:
    """The task as a producer knows it."""

    @app.task(shared=False, **task_options(mode))
    def keyed(key: str, version: int, seconds: float, fails: bool) -> None:
        pass

    return keyed


@dataclass(frozen=True)
class KeysVerdict:
    """What became of tasks with keys.

    Attributes:
        publishes: how many were confirmed.
        runs: how many began.
        never_ran: ids that ``apply_async`` has returned, and that never began.
        unseen: keys after whose last publish nothing began that had to see it.
        together: keys with ``done`` and ``latest`` of which two ran at a time, though no harm to their
            workers explains it.
        too_late: ids of tasks for which others were dropped when these were gone.
    """

    publishes: int
    runs: int
    never_ran: Sequence[str]
    unseen: Sequence[str]
    together: Sequence[str]
    too_late: Sequence[str]


def judge(
    publishes: Sequence[Publish],
    steps: Sequence[Step],
    damage: Iterable[Damage],
    lease: float,
    stock: Collection[str] = (),
) -> KeysVerdict:
    """What became of them.

    Arguments:
        lease: seconds for which a silent worker keeps its messages.
        stock: the workers of ``redis://``, which know no keys: what they run is not counted as together with
            others, and others are dropped for it until its key has healed.
    """
    starts = [step for step in steps if step.event == START]
    began = {step.id for step in starts}
    last = {publish.key: publish for publish in publishes}
    ours = [step for step in steps if step.worker not in stock]
    of_stock = {step.id for step in steps if step.worker in stock}
    return KeysVerdict(
        len(publishes),
        len(starts),
        sorted({publish.id for publish in publishes} - began),
        sorted(key for key, publish in last.items() if not _is_seen(publish, starts)),
        sorted({key for key, *_ in _together(ours, [*damage])}),
        sorted(_too_late(publishes, steps, lease) - of_stock),
    )


def _too_late(publishes: Sequence[Publish], steps: Sequence[Step], lease: float) -> set[str]:
    """With "waiting", a task that others are dropped for begins after that. With "done", it ends after that,
    or shortly before: an ack may be under way, or come to nothing, and then the lease has to end."""
    until: dict[str, float] = {}
    for step in steps:
        counts_until = step.at if step.event == START else step.at + lease + AROUND
        if step.event == START or step.key.startswith("done"):
            until[step.id] = max(counts_until, until.get(step.id, 0))
    return {each.id for each in publishes if each.was_dropped and until.get(each.id, each.at) < each.at}


def _is_seen(publish: Publish, starts: Sequence[Step]) -> bool:
    own = [step for step in starts if step.key == publish.key]
    if publish.mode == "latest":
        return any(step.version >= publish.version for step in own)
    # With "done" it may have been dropped for one that ran.
    return publish.mode == "done" or any(step.at >= publish.at for step in own)


def _together(steps: Sequence[Step], damage: Sequence[Damage]) -> Iterator[tuple[str, Step, Step]]:
    """Pairs of runs of one key at a time, with the key: of workers that nobody has harmed about then. What
    was killed has no end, and counts as over."""
    open_: dict[tuple[str, str, int], Step] = {}
    runs: defaultdict[str, list[tuple[Step, Step]]] = defaultdict(list)
    for step in steps:
        if step.event == START:
            open_[step.id, step.worker, step.pid] = step
        elif (start := open_.pop((step.id, step.worker, step.pid), None)) is not None:
            runs[step.key].append((start, step))
    for key, of_key in runs.items():
        for (start, end), (other_start, other_end) in combinations(of_key, 2):
            is_together = start.at < other_end.at and other_start.at < end.at
            if not is_together or key.startswith("waiting"):
                continue
            first, until = min(start.at, other_start.at), max(end.at, other_end.at)
            if not _harmed({start.worker, other_start.worker}, first - AROUND, until + AROUND, damage):
                yield key, start, other_start


def _harmed(workers: set[str], since: float, until: float, damage: Sequence[Damage]) -> bool:
    return any(
        workers.intersection(each.workers) and each.at <= until and each.until >= since for each in damage
    )
