"""The rounds of one topology: for each pool two workers and a producer, and one trouble after the other."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Collection, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path
from tempfile import TemporaryDirectory

from celery import Celery

from tests.chaos.damage import Damage
from tests.chaos.environment import Environment
from tests.chaos.fleet import Fleet
from tests.chaos.ledger import START, Ledger
from tests.chaos.leftovers import leftovers
from tests.chaos.producer import Producer
from tests.chaos.schedule import Harm
from tests.chaos.transports import TRANSPORTS
from tests.chaos.trouble.rounds import Meanwhile, Round
from tests.chaos.trouble.sites import USERS, TroubledSite
from tests.chaos.verdict import Judge, Verdict
from tests.chaos.worker import Kind

TRANSPORT = TRANSPORTS["redisdelay"]
LEASE = TRANSPORT.visibility_timeout
#: Tasks that are submitted a second, and the longest countdown.
RATE = 6.0
LONGEST_COUNTDOWN = 3.0
#: How many tasks a worker of a pool runs at a time.
SLOTS = {"prefork": 2, "solo": 1, "threads": 4, "gevent": 4, "eventlet": 4}
#: Seconds until each worker must have begun a task after a trouble.
RECOVERY = 30.0
TICK = 0.02
#: What must not be in the log of a worker.
_BAD = re.compile(r": CRITICAL/|Unrecoverable error|Error in timer")


@dataclass(frozen=True)
class Passed:
    """A round that is over.

    Attributes:
        label: of what befell the servers, and to whom.
        began: seconds since the epoch.
        lasted: seconds from the beginning of the trouble to its end.
        went_on: seconds from its end until each worker that had lived through it had begun a task, in rising
            order.
        ended: the workers that ended by themselves.
        idle: the workers that got nothing to do afterwards.
    """

    label: str
    pool: str
    meanwhile: str
    began: float
    lasted: float
    went_on: Sequence[float]
    ended: Sequence[str]
    idle: Sequence[str]


@dataclass(frozen=True)
class OfPool:
    """What came of the rounds of a pool.

    Attributes:
        hung: workers that were told to end, and had to be killed.
        endings: how many seconds each worker needed to end that was told to.
        bad: lines in the logs of workers that must not be there, each with the name of the worker.
        left: keys that are left in Redis, and should not be.
    """

    pool: str
    passed: Sequence[Passed]
    verdict: Verdict
    hung: Sequence[str]
    endings: Sequence[float]
    bad: Sequence[str]
    left: dict[str, int]


def run(site: TroubledSite, planned: Sequence[Round], seed: int, keep: Path | None = None) -> list[OfPool]:
    """Start the site, and pass all rounds.

    Arguments:
        keep: a new directory for ledgers and logs; ``None`` for none of that.
    """
    with ExitStack() as stack:
        directory = keep or Path(stack.enter_context(TemporaryDirectory(prefix="redisdelay-")))
        stack.enter_context(site)
        return [
            _OfPool(site, pool, [*of_pool], seed, directory / pool)()
            for pool, of_pool in groupby(planned, lambda each: each.pool)
        ]


class _OfPool:
    """Call it once."""

    def __init__(
        self, site: TroubledSite, pool: str, planned: Sequence[Round], seed: int, directory: Path
    ) -> None:
        directory.mkdir(parents=True)
        self._site = site
        self._pool = pool
        self._planned = planned
        self._seed = seed
        self._directory = directory
        self._ledger = Ledger(directory / "ledger")
        self._user_of: dict[str, str] = {}
        self._fleet = Fleet([Kind(pool, SLOTS[pool])] * 2, self._environment, directory)

    def __call__(self) -> OfPool:
        site, fleet, options = self._site, self._fleet, self._site.options
        app = Celery("producer", broker=site.producing(), set_as_current=False)
        app.conf.update(TRANSPORT.settings(site.queues, options))
        with fleet:
            for worker in fleet.workers:
                worker.wait_ready()
            producer = Producer(app, self._seed, RATE, site.queues, longest_countdown=LONGEST_COUNTDOWN)
            with producer:
                # Who was never served may end when it is refused.
                self._wait_until_all_work(0)
                passed = [self._pass(planned) for planned in self._planned]
            self._wait_until_drained(producer)
            if any(each.harm is Harm.KILL for each in fleet.damage):
                # Leave time to give back what a worker held that was killed last, and to forget it.
                time.sleep(2 * LEASE)
            fleet.stop()
            with site.client() as client:
                left = leftovers(client, TRANSPORT)
                # For the workers of the next pool.
                client.flushall()
        app.close()
        verdict = self._judge().judge(producer.submissions, self._ledger.entries())
        self._write_down("damage", fleet.damage)
        self._write_down("submissions", producer.submissions)
        self._write_down("rounds", passed)
        endings = [each.until - each.at for each in fleet.damage if each.harm is Harm.TERMINATE]
        return OfPool(self._pool, passed, verdict, fleet.hung, endings, self._bad_lines(), left)

    def _pass(self, planned: Round) -> Passed:
        fleet, seconds = self._fleet, planned.leases * LEASE
        self._look_after(planned.steady)
        died = len(fleet.died)
        before = set(fleet.labels())
        refused = self._refused(planned)
        users = [self._user_of[label] for label in refused]
        everyone = len(refused) == len(before)
        began = time.time()
        with planned.row.begin(self._site, USERS if everyone else users):
            fleet.is_held = planned.row.ends_who_starts
            self._look_after(planned.after * seconds)
            self._do(planned.meanwhile, refused)
            self._look_after(seconds - (time.time() - began))
        ended = time.time()
        fleet.is_held = False
        felt = {*before, *fleet.labels()} if everyone else refused
        harm = Harm.REFUSED if everyone else Harm.REFUSED_SOME
        fleet.damage.append(Damage(harm, tuple(sorted(felt)), began, ended))
        idle = self._wait_until_all_work(ended)
        went_on = self._went_on(ended, before & set(fleet.labels()))
        whom = "" if everyone else ", for one worker"
        return Passed(
            f"{planned.row.name}{whom}",
            planned.pool,
            planned.meanwhile.value,
            began,
            ended - began,
            went_on,
            fleet.died[died:],
            idle,
        )

    def _refused(self, planned: Round) -> list[str]:
        """Who is refused, by name."""
        labels = [*self._fleet.labels()]
        return labels[:1] if planned.to_some else labels

    def _do(self, meanwhile: Meanwhile, refused: Collection[str]) -> None:
        # All of them are ready: the round before has waited for that.
        target = next(worker for worker in self._fleet.workers if worker.label in refused)
        if meanwhile is Meanwhile.SIGTERM:
            self._fleet.terminate(target)
        elif meanwhile is Meanwhile.SIGKILL:
            self._fleet.kill(target)

    def _look_after(self, seconds: float) -> None:
        until = time.time() + seconds
        while time.time() < until:
            self._fleet.look_after()
            time.sleep(TICK)

    def _wait_until_all_work(self, since: float) -> list[str]:
        """Wait until each worker that is not to end has begun a task, and name those that do not."""
        deadline = time.time() + RECOVERY
        while True:
            self._fleet.look_after()
            working = {e.worker for e in self._ledger.entries() if e.event == START and e.at > since}
            idle = [label for label in self._fleet.labels() if label not in working]
            if not idle or time.time() > deadline:
                return idle
            time.sleep(5 * TICK)

    def _went_on(self, since: float, labels: Collection[str]) -> list[float]:
        first: dict[str, float] = {}
        for entry in self._ledger.entries():
            if entry.event == START and entry.at > since and entry.worker in labels:
                first.setdefault(entry.worker, entry.at - since)
        return sorted(first.values())

    def _wait_until_drained(self, producer: Producer) -> None:
        seen, changed_at = -1, time.time()
        while self._judge().unsettled(producer.submissions, entries := self._ledger.entries()):
            if len(entries) != seen:
                seen, changed_at = len(entries), time.time()
            if time.time() - changed_at > TRANSPORT.patience:
                return
            self._look_after(0.3)

    def _judge(self) -> Judge:
        return Judge(self._fleet.damage, LEASE, self._fleet.died)

    def _environment(self, kind: Kind, name: str) -> Environment:
        taken = {self._user_of[label] for label in self._fleet.labels()}
        user = self._user_of[name] = next(user for user in USERS if user not in taken)
        settings = TRANSPORT.settings(self._site.queues, self._site.options)
        return Environment(self._site.url_of(user), self._ledger.path, name, settings=settings)

    def _bad_lines(self) -> list[str]:
        return [
            f"{path.stem}: {line[:200]}"
            for path in sorted(self._directory.glob("worker-*.log"))
            for line in path.read_text(errors="replace").splitlines()
            if _BAD.search(line)
        ]

    def _write_down(self, name: str, rows: Sequence[object]) -> None:
        lines = [json.dumps(asdict(row)) + "\n" for row in rows]  # type: ignore[call-overload]
        (self._directory / name).write_text("".join(lines))
