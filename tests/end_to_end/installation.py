"""A server with the producers and workers of one test, and the ledger that their tasks write to."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from celery import Celery

from kombu_redisdelay.broker.keys import redis_keys
from tests.dead import dead_letters
from tests.end_to_end.environment import Environment
from tests.end_to_end.ledger import Ledger
from tools.harness.celery_worker import CeleryWorker
from tools.harness.cluster import Cluster
from tools.harness.process import wait_until
from tools.harness.redis_server import RedisServer
from tools.harness.sentinel import SentinelSite

if TYPE_CHECKING:
    # In `typing` from Python 3.11 on.
    from typing_extensions import Self

QUEUE = "celery"
ROOT = Path(__file__).parents[2]

_SUSPICIOUS = re.compile(
    r"Traceback|Error|: (ERROR|CRITICAL)/|The lease of this consumer was lost"
    "|Keys have vanished|Redis had lost"
)

#: Seconds that a worker which has crashed has to end.
CRASH_PATIENCE = 3.0

#: Worker options that do without a second of waiting for the replies of other workers.
ALONE = ("--without-mingle", "--without-gossip")


class Installation:
    """Give it up with the ``with`` block: what was started ends, and every worker's log is checked.

    Arguments:
        directory: where the ledger is kept.
        settings: Celery's, for all workers and producers, unless they are given others.
    """

    def __init__(
        self, server: RedisServer | SentinelSite | Cluster, directory: Path, **settings: Any
    ) -> None:
        self.server = server
        self.redis = server.client()
        self.directory = directory
        self.ledger = Ledger(directory / "ledger")
        self._settings = settings
        self._workers: list[tuple[CeleryWorker, str | None]] = []
        self._exit = ExitStack()
        self._exit.callback(self.redis.close)

    # -- producers and workers -------------------------------------------------------------------

    def producer(self, scheme: str = "redisdelay", **settings: Any) -> Celery:
        """An app that knows the tasks by name only, as a producer in another code base does."""
        app = Celery("producer", broker=self.server.url(scheme), set_as_current=False)
        app.conf.update({**self._settings, **settings})
        self._exit.callback(app.close)
        return app

    def worker(self, **options: Any) -> CeleryWorker:
        """As `start_worker`, but ready."""
        worker = self.start_worker(**options)
        worker.wait_ready()
        return worker

    def start_worker(
        self,
        kind: type[CeleryWorker] = CeleryWorker,
        *,
        scheme: str = "redisdelay",
        url: str | None = None,
        settings: dict[str, Any] | None = None,
        expected: str | None = None,
        pool: str = "solo",
        concurrency: int = 1,
        queues: Sequence[str] = (),
        prefetch_multiplier: int | None = None,
        args: Sequence[str] = ALONE,
        app: str = "tests.end_to_end.app",
        python: str = sys.executable,
        preloaded: bool = True,
    ) -> CeleryWorker:
        """Start a worker without waiting for it.

        Arguments:
            scheme: of the broker URL.
            url: instead of the server's.
            expected: regular expression for lines in the log that look like an error and are none.
            python: of another environment, which has another Celery.
            preloaded: as :class:`~tools.harness.celery_worker.CeleryWorker` has it.
        """
        environment = Environment(
            url or self.server.url(scheme),
            self.ledger.path,
            {**self._settings, **(settings or {})},
        )
        worker = kind(
            app,
            pool=pool,
            concurrency=concurrency,
            queues=queues,
            prefetch_multiplier=prefetch_multiplier,
            args=args,
            env=environment.variables(),
            cwd=ROOT,
            python=python,
            preloaded=preloaded,
        )
        self._exit.push(worker)
        self._workers.append((worker, expected))
        worker.start()
        return worker

    def supervise(
        self, until: Callable[[], object], timeout: float, what: str, **options: Any
    ) -> list[CeleryWorker]:
        """Keep a worker running, as a supervisor does that starts it again, *until* a condition holds.

        A worker that has crashed and does not end is killed, as by a liveness probe: the parent process of
        a prefork pool and its children may wait for each other for ever, with any broker.

        Arguments:
            options: of :meth:`start_worker`.

        Returns:
            The workers that there were; the last one is still running.
        """
        workers = [self.start_worker(**options)]

        crashed_at = 0.0

        def is_over() -> object:
            nonlocal crashed_at
            worker = workers[-1]
            if not worker.running:
                crashed_at = 0.0
                workers.append(self.start_worker(**options))
            elif not crashed_at and "Unrecoverable error" in worker.log():
                crashed_at = time.monotonic()
            elif crashed_at and time.monotonic() - crashed_at > CRASH_PATIENCE:
                worker.kill()
            return until()

        try:
            wait_until(is_over, timeout, what)
        except TimeoutError as error:
            raise TimeoutError(f"{error} ({len(workers)} workers)") from None
        return workers

    # -- the tasks -------------------------------------------------------------------------------

    def wait_ended(self, tasks: Sequence[str], timeout: float = 30) -> None:
        """Wait until every one of *tasks* has ended at least once."""
        wanted = set(tasks)
        try:
            wait_until(lambda: wanted <= set(self.ledger.ended()), timeout, "not all ended")
        except TimeoutError as error:
            missing = wanted - set(self.ledger.ended())
            raise TimeoutError(f"{error}: {len(missing)} of {len(wanted)}: {missing}") from None

    def wait_started(self, *tasks: str, timeout: float = 30) -> None:
        """Wait until every one of *tasks* has started at least once."""
        wait_until(lambda: set(tasks) <= set(self.ledger.started()), timeout, f"start of {tasks}")

    # -- the queues ------------------------------------------------------------------------------

    def ready(self, queue: str = QUEUE) -> int:
        """How many messages are in the ready lists of all priorities."""
        lists = [queue, *(f"{queue}\x06\x16{step}" for step in (3, 6, 9))]
        return sum(int(self.redis.execute_command("LLEN", key)) for key in lists)

    def scheduled(self, queue: str = QUEUE) -> int:
        return int(self.redis.execute_command("ZCARD", f"redisdelay:{{{queue}}}:schedule"))

    def dead(self, queue: str = QUEUE) -> list[bytes]:
        """Dead letters, the oldest first (:func:`tests.dead.dead_letters`)."""
        return dead_letters(self.redis, redis_keys("", queue, "\x06\x16"))

    def unacked(self, queue: str = QUEUE) -> int:
        """How many messages the consumers hold together."""
        keys = self.redis.execute_command("KEYS", f"redisdelay:{{{queue}}}:unacked:*")
        return sum(int(self.redis.execute_command("HLEN", key)) for key in keys)

    def at_one_instant(self, *commands: Sequence[str | bytes]) -> list[Any]:
        """The replies to commands between which no other client's came."""
        with self.redis.pipeline(transaction=True) as pipe:
            for command in commands:
                pipe.execute_command(*command)
            replies: list[Any] = pipe.execute()
        return replies

    # -- the end ---------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        with self._exit:
            logs = [(worker.name, worker.log(), expected) for worker, expected in self._workers]
        for name, log, _ in logs:
            # pytest shows it if the test failed.
            print(f"--- log of {name}\n{log}")
        if error is None:
            suspicious = [
                f"{name}: {line}" for name, log, expected in logs for line in suspicious_lines(log, expected)
            ]
            assert not suspicious, "errors in the logs of workers:\n" + "\n".join(suspicious)


def suspicious_lines(log: str, expected: str | None = None) -> list[str]:
    """The lines of *log* that tell of something that went wrong, but for the *expected*."""
    return [
        line
        for line in log.splitlines()
        if _SUSPICIOUS.search(line) and not (expected and re.search(expected, line))
    ]
