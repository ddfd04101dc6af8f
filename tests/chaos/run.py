"""A run: workers, a producer, harm, and then the wait until nothing is left to do."""

from __future__ import annotations

import contextlib
import importlib
import json
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from celery import Celery

from kombu_redisdelay.broker.keys import Partitions
from tests.chaos.damage import Damage
from tests.chaos.environment import Environment
from tests.chaos.failing import SHARE, FailedVerdict, kept
from tests.chaos.failing import judge as judge_failed
from tests.chaos.fair_watch import FairSample
from tests.chaos.fair_watch import look as look_at_fair
from tests.chaos.fairness import FairVerdict
from tests.chaos.fairness import judge as judge_fairness
from tests.chaos.fleet import Fleet
from tests.chaos.inflict import Inflictor
from tests.chaos.keys import KeyedProducer, KeyLedger, KeysVerdict, judge
from tests.chaos.ledger import START, Entry, Ledger
from tests.chaos.leftovers import left_of_fair_queues, leftovers
from tests.chaos.limits import Limit, Operator
from tests.chaos.producer import Producer, Submission
from tests.chaos.restraint import Restraint, restraint, unseen
from tests.chaos.resumption import Resumption, resumptions
from tests.chaos.schedule import FAILOVERS, Planned
from tests.chaos.site import Site
from tests.chaos.switching import Switcher
from tests.chaos.tenants import Tenant
from tests.chaos.transports import STOCK_TRANSPORT, Transport
from tests.chaos.upheavals import Upheavals
from tests.chaos.verdict import Judge, Verdict
from tests.chaos.watch import Sample, Watch
from tests.chaos.watch import look as look_at_limited
from tests.chaos.worker import KINDS, Kind

#: Between two looks at the workers, and at what became of the tasks.
TICK = 0.02
LOOK = 1.0
#: Seconds until every worker must have found its way back to Redis.
RECOVERY = 30.0


@dataclass(frozen=True)
class Result:
    """What came of a run.

    Attributes:
        resumptions: how consuming went on after the servers had been away.
        died: workers that ended and were not asked to.
        idle: workers that run and got no more to do once the harm was over, while others did.
        left: keys that are left in Redis and should not be, with their sizes.
        seconds: for how long harm was done, and
        drained_after: how long it took from then on until all was done, or was given up.
        restraints: of each queue that was limited, or of each partition of it.
        unseen: messages that workers had got from these and that Redis had not counted.
        pauses: how many times one of these was paused.
        keys: what became of tasks with keys; ``None`` if there were none.
        fair: what became of fair queues; ``None`` if there were none.
        failed: what became of tasks that failed; ``None`` if none were meant to.
        surprises: failovers that nobody planned.
    """

    transport: Transport
    verdict: Verdict
    damage: Sequence[Damage]
    resumptions: Sequence[Resumption]
    died: Sequence[str]
    idle: Sequence[str]
    left: dict[str, int]
    seconds: float
    drained_after: float
    restraints: Sequence[Restraint] = ()
    unseen: int = 0
    pauses: int = 0
    keys: KeysVerdict | None = None
    fair: FairVerdict | None = None
    failed: FailedVerdict | None = None
    surprises: int = 0


class Run:
    """Call it once.

    Arguments:
        rate: tasks that are submitted a second.
        site: the servers, which are not started yet. Every worker consumes from all of its queues.
        keep: new directory for the ledger, the submissions, the harm and the workers' logs; ``None`` for
            none of that.
        limits: of queues, which are also paused now and then.
        with_keys: whether to submit tasks with keys, too.
        kinds: of the workers.
        tenants: who shares the queues, which are fair then, but for short times.
        failing: whether some of the tasks fail.
    """

    def __init__(
        self,
        transport: Transport,
        schedule: Sequence[Planned],
        seed: int,
        rate: float,
        site: Site,
        keep: Path | None,
        limits: Mapping[str, Limit],
        with_keys: bool = False,
        kinds: Sequence[Kind] = KINDS,
        tenants: Sequence[Tenant] = (),
        failing: bool = False,
    ) -> None:
        self._transport = transport
        self._schedule = schedule
        self._seed = seed
        self._rate = rate
        self._site = site
        self._keep = keep
        self._limits = limits
        self._with_keys = with_keys
        self._kinds = kinds
        self._tenants = tenants
        self._failing = failing

    def __call__(self) -> Result:
        if self._keep is not None:
            # Not one that has the ledger of another run in it.
            self._keep.mkdir(parents=True)
        if self._transport.imports:
            importlib.import_module(self._transport.imports)
        with contextlib.ExitStack() as exit_:
            directory = Path(exit_.enter_context(TemporaryDirectory(prefix="redisdelay-")))
            ledger = Ledger(self._keep / "ledger" if self._keep else directory / "ledger")
            executor = ThreadPoolExecutor(1, "upheavals")
            exit_.callback(executor.shutdown, cancel_futures=True)
            exit_.enter_context(self._site)
            app = exit_.enter_context(self._producing_app())
            operator = exit_.enter_context(Operator(app, self._limits))
            switcher = exit_.enter_context(Switcher(app, self._site, self._tenants))
            limited = [*self._partitions(self._limits)]
            watch = exit_.enter_context(Watch(self._site, limited, look_at_limited))
            fair_watch = exit_.enter_context(Watch(self._site, self._shared(), look_at_fair))
            fleet = exit_.enter_context(Fleet(self._kinds, self._environment(ledger), self._keep))
            for worker in fleet.workers:
                worker.wait_ready()
            upheavals = Upheavals(fleet, self._site, executor)
            inflictor = Inflictor(fleet, self._site, upheavals, self._transport.visibility_timeout)

            began = time.monotonic()
            keyed = KeyedProducer(app, self._seed, self._site.queues)
            with (
                Producer(
                    *(app, self._seed, self._rate, self._site.queues, self._tenants),
                    failing=SHARE if self._failing else 0.0,
                ) as producer,
                keyed if self._with_keys else contextlib.nullcontext(),
            ):
                self._do_harm(fleet, inflictor, upheavals)
                inflictor.end_what_is_over(everything=True)
                operator.calm_down()
                switcher.calm_down()
                ended = time.monotonic()
                idle = self._wait_until_all_work(fleet, ledger)
            self._wait_until_drained(fleet, ledger, producer.submissions)
            key_ledger = KeyLedger(ledger.path)
            self._wait_until_keys_are_free(fleet, key_ledger, keyed)
            drained = time.monotonic()
            watch.stop()
            left_fair = self._look_at_what_is_fair(fair_watch)
            left = self._stop_and_look(fleet, operator, switcher)
            entries = ledger.entries()
            failed = kept(app) if self._failing else None
            verdict = self._judge(fleet).judge(producer.submissions, entries)
            resumed = resumptions(fleet.damage, producer.submissions, entries)
            self._write_down(fleet.damage, producer.submissions)
            times = ended - began, drained - ended
            return Result(
                self._transport,
                verdict,
                fleet.damage,
                resumed,
                fleet.died,
                idle,
                left,
                *times,
                restraints=self._restraints(watch),
                unseen=self._unseen(fleet, watch, producer.submissions, entries),
                pauses=operator.pauses,
                keys=self._keys(fleet, key_ledger, keyed) if self._with_keys else None,
                fair=self._fair(fleet, fair_watch, switcher, producer.submissions, entries, left_fair)
                if self._tenants
                else None,
                failed=None
                if failed is None
                else judge_failed(
                    producer.submissions, entries, failed, fleet.damage, self._judge(fleet).dead
                ),
                surprises=self._site.surprises(),
            )

    def _fair(
        self,
        fleet: Fleet,
        watch: Watch[FairSample],
        switcher: Switcher,
        submissions: Sequence[Submission],
        entries: Sequence[Entry],
        left: Mapping[str, int],
    ) -> FairVerdict:
        return judge_fairness(
            self._tenants,
            submissions,
            entries,
            fleet.damage,
            {name: [samples[name] for samples in watch.rounds] for name in self._shared()},
            switcher.plain,
            switcher.pauses,
            left,
            self._all_partitions(),
            fleet.labels_of_stock(),
            switcher.calmed_at,
        )

    def _keys(self, fleet: Fleet, ledger: KeyLedger, keyed: KeyedProducer) -> KeysVerdict:
        stock = fleet.labels_of_stock()
        return judge(keyed.publishes, ledger.steps(), fleet.damage, self._transport.visibility_timeout, stock)

    def _wait_until_keys_are_free(self, fleet: Fleet, ledger: KeyLedger, keyed: KeyedProducer) -> None:
        """Wait until every task with a key has begun that has to."""
        deadline = time.monotonic() + self._transport.patience
        while time.monotonic() < deadline:
            found = self._keys(fleet, ledger, keyed)
            if not (found.never_ran or found.unseen):
                return
            time.sleep(LOOK)
            fleet.look_after()

    def _partitions(self, queues: Collection[str]) -> dict[str, str]:
        """Of *queues*: each partition, and its queue."""
        return {name: queue for queue in queues for name in self._all_partitions().names(queue)}

    def _all_partitions(self) -> Partitions:
        return Partitions(self._site.options.get("partitions", {}))

    def _shared(self) -> list[str]:
        """The partitions of the queues that are fair."""
        return [*self._partitions(self._site.queues)] if self._tenants else []

    def _unseen(
        self,
        fleet: Fleet,
        watch: Watch[Sample],
        submissions: Sequence[Submission],
        entries: Sequence[Entry],
    ) -> int:
        if any(each.harm in FAILOVERS for each in fleet.damage):
            # What the old primary had counted, the new one may not know.
            return 0
        return unseen(self._partitions(self._limits), watch.rounds, submissions, entries)

    def _restraints(self, watch: Watch[Sample]) -> list[Restraint]:
        return [
            restraint(name, self._limits[queue], [samples[name] for samples in watch.rounds])
            for name, queue in self._partitions(self._limits).items()
        ]

    def _environment(self, ledger: Ledger) -> Callable[[Kind, str], Environment]:
        site = self._site

        def environment(kind: Kind, name: str) -> Environment:
            transport = STOCK_TRANSPORT if kind.stock else self._transport
            settings = transport.settings(site.queues, site.options)
            url = site.url(transport.scheme, proxied=kind.proxied)
            return Environment(url, ledger.path, name, transport.imports, settings)

        return environment

    def _producing_app(self) -> Celery:
        """An app that knows the tasks by name only, as a producer in another code base does."""
        transport, site = self._transport, self._site
        app = Celery("producer", broker=site.url(transport.scheme), set_as_current=False)
        app.conf.update(transport.settings(site.queues, {**site.options, **site.publishing}))
        return app

    def _do_harm(self, fleet: Fleet, inflictor: Inflictor, upheavals: Upheavals) -> None:
        began = time.monotonic()

        def go_on() -> None:
            fleet.look_after()
            inflictor.end_what_is_over()
            time.sleep(TICK)

        for planned in self._schedule:
            due = began + planned.at
            while time.monotonic() < due or not inflictor.do(planned):
                go_on()
            # While servers are away, no worker gets ready. If the kills of that time were made up for, each
            # worker would be killed as soon as it is ready, and nothing would be done for minutes.
            began += time.monotonic() - due
        while not upheavals.are_over():
            go_on()

    def _wait_until_all_work(self, fleet: Fleet, ledger: Ledger) -> list[str]:
        """Wait until every worker has begun a task after all harm was over, and name those that do not."""
        began, deadline = time.time(), time.monotonic() + RECOVERY
        while True:
            fleet.look_after()
            working = {e.worker for e in ledger.entries() if e.event == START and e.at > began}
            idle = [label for label in fleet.labels() if label not in working]
            if not idle or time.monotonic() > deadline:
                return idle
            time.sleep(LOOK)

    def _wait_until_drained(self, fleet: Fleet, ledger: Ledger, submissions: Sequence[Submission]) -> None:
        entries, changed_at = ledger.entries(), time.monotonic()
        while self._judge(fleet).unsettled(submissions, entries):
            if time.monotonic() - changed_at > self._transport.patience:
                return
            time.sleep(LOOK)
            fleet.look_after()
            seen, entries = len(entries), ledger.entries()
            if len(entries) > seen:
                changed_at = time.monotonic()

    def _look_at_what_is_fair(self, watch: Watch[FairSample]) -> dict[str, int]:
        """What is left of the keys of fair queues."""
        if not self._tenants:
            return {}
        # Here, too, some of it may have been repeated.
        time.sleep(2 * self._transport.visibility_timeout)
        watch.stop()
        with self._site.client() as client:
            return left_of_fair_queues(client)

    def _stop_and_look(self, fleet: Fleet, operator: Operator, switcher: Switcher) -> dict[str, int]:
        """End the workers, and return what they leave."""
        operator.clear()
        switcher.clear()
        # Nothing is missed any more, but some of it may have been repeated: leave time to give back what
        # the workers held that were killed last, and to forget these.
        time.sleep(2 * self._transport.visibility_timeout)
        fleet.stop()
        with self._site.client() as client:
            left = leftovers(client, self._transport)
        return {key: size for key, size in left.items() if not (self._failing and "}:failed" in key)}

    def _judge(self, fleet: Fleet) -> Judge:
        return Judge(fleet.damage, self._transport.visibility_timeout, fleet.died)

    def _write_down(self, damage: Sequence[Damage], submissions: Sequence[Submission]) -> None:
        if self._keep is not None:
            _write_rows(self._keep / "damage", [asdict(row) for row in damage])
            _write_rows(self._keep / "submissions", [asdict(row) for row in submissions])


def _write_rows(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
