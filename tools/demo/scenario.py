"""What happens in the demo, in the order in which it happens."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from redis import Redis

from tools.demo import ledger
from tools.demo.counts import Counts
from tools.demo.interrupt import Interrupt
from tools.demo.ledger import Ledger
from tools.demo.page import Page
from tools.demo.report import Report
from tools.demo.screen import Screen
from tools.demo.tasks import app, remind
from tools.demo.worker import Worker
from tools.harness.redis_server import RedisServer

TASKS = 400
SPREAD = 10.0
#: Every so many tasks one is slow, so that some are running at any moment: also when a worker is killed.
SLOW_EVERY = 5
SLOW_SECONDS = 0.5
KILL_AFTER = 4.0
#: How long to wait for stragglers. Workers look for dead ones when they start, and every 10 s.
GRACE = 11.0
START_TIMEOUT = 15.0
#: Between two looks at everything.
FRAME = 0.05
#: Over so many seconds the tasks are due that the page shows.
PAGE_SPREAD = 3600.0


@contextmanager
def staged(screen: Screen, interrupt: Interrupt) -> Iterator[Scenario]:
    """Start a server, with a scenario to play on it. However it ends, no process and no file is left."""
    _forget_other_brokers()
    with (
        TemporaryDirectory(prefix="redisdelay-") as directory,
        RedisServer() as server,
        server.client() as client,
        ExitStack() as processes,
        app,
    ):
        notes = Path(directory, "ledger")
        notes.touch()
        # What the workers are started with.
        os.environ["CELERY_BROKER_URL"] = server.url()
        os.environ[ledger.VARIABLE] = str(notes)
        screen.say(f"a private {server.binary} is up")
        yield Scenario(screen, interrupt, client, processes)


def _forget_other_brokers() -> None:
    """Remove the user's own CELERY_BROKER_URL and the like, some of which would take precedence."""
    for name in [name for name in os.environ if name.startswith("CELERY_")]:
        del os.environ[name]


class Scenario:
    """The part of the workers and the tasks, once Redis is up."""

    def __init__(self, screen: Screen, interrupt: Interrupt, client: Redis, processes: ExitStack) -> None:
        self._screen = screen
        self._interrupt = interrupt
        self._client = client
        self._processes = processes
        self._ledger = Ledger.from_environment()
        self._workers: list[Worker] = []
        self._tasks: set[str] = set()
        self._slow: set[str] = set()

    def play(self) -> Report:
        """Schedule tasks, kill a worker, and see what becomes of the tasks."""
        for worker in [self._start_worker(), self._start_worker()]:
            self._wait_for(worker)
        self._screen.say("two Celery workers are up")

        self._schedule(SPREAD)
        published = time.monotonic()
        self._screen.say(f"{TASKS} tasks are scheduled, with countdowns of up to {SPREAD:g} s")
        self._watch_until(lambda: False, published + KILL_AFTER)

        victim = self._kill_a_busy_worker()
        replacement = self._start_worker()
        self._wait_for(replacement)
        self._screen.say(f"{replacement.title} is up in its place")

        self._watch_until(self._is_all_done, published + SPREAD + GRACE)
        return Report.of(self._tasks, self._ledger.runs(), victim.pid)

    def serve_page(self) -> None:
        """Show the queues in a browser until there is a signal. More tasks are scheduled before: all of the
        others have run."""
        self._schedule(PAGE_SPREAD)
        self._screen.say(f"{TASKS} more tasks are scheduled, with countdowns of up to an hour")
        page = self._processes.enter_context(Page())
        self._screen.say(f"the queues are on {page.url} (Ctrl-C ends the demo)", "bold")
        while page.running:
            self._interrupt.check()
            time.sleep(FRAME)
        raise RuntimeError(f"the page has ended\n{page.log()}")

    def _start_worker(self) -> Worker:
        worker = Worker()
        self._processes.push(worker)
        self._workers.append(worker)
        worker.start()
        return worker

    def _wait_for(self, worker: Worker) -> None:
        deadline = time.monotonic() + START_TIMEOUT
        self._watch_until(lambda: worker.state != "starting", deadline)
        worker.wait_ready(0)

    def _schedule(self, spread: float) -> None:
        for number in range(1, TASKS + 1):
            self._interrupt.check()
            countdown = spread * number / TASKS
            is_slow = number % SLOW_EVERY == 0
            arguments = (time.time() + countdown, SLOW_SECONDS if is_slow else 0)
            task = remind.apply_async(arguments, countdown=countdown)
            self._tasks.add(task.id)
            if is_slow:
                self._slow.add(task.id)

    def _kill_a_busy_worker(self) -> Worker:
        # The slow task that started last is still running: the next one follows before it ends.
        last = next(run for run in reversed(self._ledger.runs()) if run.task in self._slow)
        victim = next(worker for worker in self._workers if worker.pid == last.worker)
        victim.kill()
        self._screen.say(f"{victim.title} is killed with SIGKILL, while it runs tasks", "red")
        return victim

    def _watch_until(self, condition: Callable[[], bool], deadline: float) -> None:
        """Keep the screen up to date until the condition holds, or the time has come."""
        while not condition() and time.monotonic() < deadline:
            self._interrupt.check()
            self._screen.show(self._counts(), self._started(), self._workers)
            time.sleep(FRAME)

    def _counts(self) -> Counts:
        return Counts.of(self._client, app.conf.task_default_queue)

    def _started(self) -> int:
        return len({run.task for run in self._ledger.runs()})

    def _is_all_done(self) -> bool:
        return self._started() == TASKS and not any(self._counts())
