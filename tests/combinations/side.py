"""One side of a row: our transport, or kombu's, in the same scenario."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Barrier, Event
from typing import Any

from celery import Celery
from celery.states import SUCCESS

from tests.chaos.damage import Damage
from tests.chaos.environment import Environment
from tests.chaos.ledger import END, START, Ledger
from tests.chaos.producer import Submission
from tests.chaos.schedule import Harm
from tests.chaos.verdict import Judge
from tests.combinations.attempts import first
from tests.combinations.dimensions import Row
from tests.combinations.expected import expected, without_replicas
from tests.combinations.fleet import Fleet
from tests.combinations.history import History
from tests.combinations.interpreters import ROOT
from tests.combinations.operator import Operator
from tests.combinations.orders import GO, ORDERS, READY, STOP, SUBMISSIONS, Orders
from tests.combinations.plan import MIDDLE, TROUBLE, Plan
from tests.combinations.servers import Servers
from tests.combinations.settings import LEASE, operating, settings
from tools.harness.journal import whole_lines
from tools.harness.process import ChildProcess, wait_until

#: Something to do, so many seconds after the beginning.
Action = tuple[float, Callable[[], object]]

TICK = 0.02
LOOK = 0.3
#: Seconds: until the harm is over, until all workers must have got something to do, until all must be done,
#: and until nobody waits any more for what kombu's transport has not done.
CALM = 60.0
WORKING = 30.0
DONE = 60.0
STOCK_DONE = 4.0

#: Until a result is there, when its task has ended.
LATER = 10.0


class ProducerProcess(ChildProcess):
    """Publishes in a Python of its own."""

    def __init__(self, orders: Orders, environment: Environment, python: str) -> None:
        super().__init__()
        orders.write(self.directory / ORDERS)
        self._environment = environment
        self._python = python

    def command(self) -> list[str]:
        return [self._python, "-m", "tests.combinations.producer", str(self.directory)]

    def environment(self) -> dict[str, str]:
        return {**super().environment(), **self._environment.variables()}

    def working_directory(self) -> Path:
        return ROOT

    def is_ready(self) -> bool:
        return READY in self.log()

    def go(self, began: float) -> None:
        # In one step: it is read as soon as it is there.
        draft = self.directory / "draft"
        draft.write_text(str(began))
        draft.rename(self.directory / GO)

    def finish(self) -> None:
        (self.directory / STOP).touch()

    def submissions(self) -> list[Submission]:
        return [Submission(*json.loads(line)) for line in whole_lines(self.directory / SUBMISSIONS)]


class Side:
    """Call it once, from a thread that lives on until it returns.

    Arguments:
        servers: not started yet.
        stock: whether kombu's transport is used. Then nobody waits for what is missing.
        together: where the sides wait for each other, so that they feel the same noise of the machine.
        enough: set when nobody wants to know any more.
    """

    def __init__(
        self,
        row: Row,
        plan: Plan,
        servers: Servers,
        python: str,
        together: Barrier,
        enough: Event,
        *,
        stock: bool,
    ) -> None:
        self._row = row
        self._plan = plan
        self._servers = servers
        self._python = python
        self._together = together
        self._enough = enough
        self._stock = stock
        #: What goes on in the background.
        self._harms: list[Future[None]] = []
        self._unready: list[str] = []

    def __call__(self) -> History:
        try:
            return self._run()
        except BaseException:
            self._together.abort()
            raise

    def _run(self) -> History:
        with ExitStack() as exit_:
            directory = Path(exit_.enter_context(TemporaryDirectory(prefix="redisdelay-")))
            self._ledger = Ledger(directory / "ledger")
            # What it starts ends with its thread.
            helper = exit_.enter_context(ThreadPoolExecutor(2, "harm"))
            exit_.enter_context(self._servers)
            options = operating(self._row, self._servers)
            self._operator = Operator(self._servers, self._plan, options)
            self._producer = exit_.enter_context(self._producer_process())
            self._fleet = exit_.enter_context(Fleet(self._row["pool"], self._environment, self._python))
            self._fleet.wait_ready()
            self._together.wait(120)

            began = time.time()
            self._producer.go(began)
            self._do_all(began, helper)
            idle = [] if self._stock else self._wait_until_all_work(began)
            self._note_the_producer()
            self._producer.finish()
            self._wait_until_done(began)
            ended = time.time()
            return self._look(began, ended, idle)

    # -- what happens ----------------------------------------------------------------------------------------

    def _do_all(self, began: float, helper: ThreadPoolExecutor) -> None:
        seconds = self._plan.seconds
        actions: list[Action] = []
        if not self._stock:
            actions += self._operator.actions(self._row, seconds)
        actions += self._harm(seconds, helper)
        actions.sort(key=lambda each: each[0])
        deadline = began + seconds + CALM
        while actions or time.time() < began + seconds or not self._is_calm():
            if time.time() > deadline:
                self._unready += [f"{worker.label} is not ready" for worker in self._fleet.workers]
                return
            if actions and time.time() >= began + actions[0][0]:
                actions.pop(0)[1]()
            self._fleet.look_after()
            self._sleep(TICK)

    def _harm(
        self, seconds: float, helper: ThreadPoolExecutor
    ) -> Iterable[tuple[float, Callable[[], object]]]:
        middle, at = self._row["middle"], MIDDLE * seconds
        if middle == "SIGKILL":
            yield at, self._fleet.kill_one
        elif middle == "SIGTERM":
            yield at, self._fleet.terminate_one
        elif middle != "nothing":
            harms = {
                "CLIENT KILL": self._kill_clients,
                "silence": self._be_silent,
                "failover": self._fail_over,
            }
            yield at, lambda: self._in_background(helper, harms[middle])
        if self._row["trouble"] != "no" and not self._stock:
            yield TROUBLE * seconds, lambda: self._in_background(helper, self._refuse)

    def _in_background(self, helper: ThreadPoolExecutor, harm: Callable[[], None]) -> None:
        self._harms.append(helper.submit(harm))

    def _is_calm(self) -> bool:
        """Whether the harm is over, and all workers are there."""
        if not all(harm.done() for harm in self._harms):
            return False
        for harm in self._harms:
            harm.result()
        return self._fleet.settled

    def _kill_clients(self) -> None:
        at = time.time()
        self._servers.kill_clients()
        self._fleet.note(Harm.CLIENT_KILL, at)

    def _be_silent(self) -> None:
        at = time.time()
        self._servers.be_silent()
        self._fleet.note(Harm.SILENCE, at)

    def _refuse(self) -> None:
        at, before = time.time(), {worker.label for worker in self._fleet.workers}
        self._servers.refuse(self._row["trouble"])
        everyone = before | {worker.label for worker in self._fleet.workers}
        self._fleet.damage.append(Damage(Harm.REFUSED, tuple(sorted(everyone)), at, time.time()))

    def _fail_over(self) -> None:
        at = time.time()
        labels = tuple(worker.label for worker in self._fleet.workers)
        course = self._servers.fail_over()
        self._fleet.damage.append(Damage(Harm.PRIMARY_KILL, labels, at, time.time(), course=course))

    def _sleep(self, seconds: float) -> None:
        if self._enough.wait(seconds):
            raise InterruptedError

    # -- how it ends -----------------------------------------------------------------------------------------

    def _wait_until_all_work(self, began: float) -> list[str]:
        """The workers that got nothing to do since the harm was over."""
        over = max([each.until for each in self._fleet.damage], default=began)
        deadline = time.monotonic() + WORKING
        while True:
            working = {e.worker for e in self._ledger.entries() if e.event == START and e.at > over}
            idle = [each.label for each in self._fleet.workers if each.label not in working]
            if not idle or time.monotonic() > deadline:
                return idle
            if time.monotonic() > deadline - WORKING / 2:
                # One that looks for foreign messages often may take all that come one by one.
                self._fleet.stop_for_a_moment(working)
            self._fleet.look_after()
            self._sleep(LOOK)

    def _wait_until_done(self, began: float) -> None:
        last = max((send.at + send.countdown for send in self._plan.sends), default=0)
        until = max(time.time(), began + last) + (STOCK_DONE if self._stock else DONE)
        while time.time() < until and not (time.time() > began + last and self._is_done()):
            self._fleet.look_after()
            self._sleep(LOOK)

    def _is_done(self) -> bool:
        submissions, entries = self._submissions(), self._ledger.entries()
        published = [each for each in expected(self._plan, submissions, entries) if each.confirmed]
        if self._stock:
            begun = {entry.task for entry in entries if entry.event == START}
            return all(each.task in begun for each in published)
        judge = Judge(self._fleet.damage, LEASE, self._fleet.died)
        if judge.unsettled(published, entries) or self._operator.unacked():
            return False
        return self._operator.is_settled(self._row["beside"])

    def _look(self, began: float, ended: float, idle: list[str]) -> History:
        shown: dict[str, Any] = {}
        if not self._stock:
            shown |= {"results": self._results()}
            if self._row["fair"] != "no":
                self._operator.end_fairness()
            self._fleet.stop()
            # Not earlier: what goes back while the states are read, one after the other, may be in none.
            shown |= {"wrong": self._operator.fates()}
            self._operator.tidy()
            shown |= {"left": self._operator.left(), "logs": self._fleet.logs, "hung": self._fleet.hung}
        return History(
            self._plan,
            self._submissions(),
            self._ledger.entries(),
            self._fleet.damage,
            began,
            ended,
            paused=self._operator.paused,
            died=self._fleet.died,
            idle=idle,
            unready=self._unready,
            **shown,
        )

    def _results(self) -> dict[str, str]:
        """The state of each healthy task that has ended."""
        if self._row["backend"] == "none":
            return {}
        ended = {first(entry.task) for entry in self._ledger.entries() if entry.event == END}
        app = Celery("results", set_as_current=False)
        app.conf.update(settings(self._row, self._servers, self._plan.queues, stock=False))
        found: dict[str, str] = {}

        def are_there() -> bool:
            missing = [id for id in ended if found.get(id) != SUCCESS]
            found.update({id: app.AsyncResult(id).state for id in missing})
            return all(found[id] == SUCCESS for id in ended)

        # A worker notes the end of a task before the result.
        with suppress(TimeoutError):
            wait_until(are_there, LATER, "the results")
        return found

    def _note_the_producer(self) -> None:
        if not self._producer.running:
            self._unready.append(f"the producer has ended: {self._producer.log()[-500:]}")

    # -- who takes part --------------------------------------------------------------------------------------

    def _submissions(self) -> list[Submission]:
        submissions = self._producer.submissions()
        if self._row["producer"] in ("redis", "lpush"):
            return without_replicas(submissions, self._fleet.damage)
        return submissions

    def _producer_process(self) -> ProducerProcess:
        stock = self._stock or self._row["producer"] == "redis"
        how = self._row["producer"] if self._row["producer"] == "lpush" or not self._stock else "redis"
        orders = Orders(self._plan, how, self._servers.address)
        return ProducerProcess(orders, self._told("producer", stock=stock), self._python)

    def _environment(self, label: str) -> Environment:
        return self._told(label, stock=self._stock)

    def _told(self, name: str, *, stock: bool) -> Environment:
        broker = self._servers.stock() if stock else self._servers.ours()
        said = settings(self._row, self._servers, self._plan.queues, stock=stock)
        return Environment(broker, self._ledger.path, name, settings=said)
