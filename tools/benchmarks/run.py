"""A run: every workload round by round, every case of it in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from signal import SIGKILL
from threading import Timer
from typing import TYPE_CHECKING

from tools.benchmarks.cores import apart
from tools.benchmarks.peers import Peer
from tools.benchmarks.results import Record
from tools.benchmarks.site import Site
from tools.benchmarks.workload import Case, Measured, Sizes, Workload
from tools.harness.rabbitmq_server import RabbitMQServer
from tools.harness.redis_server import RedisServer

if TYPE_CHECKING:
    # In `typing` from Python 3.11 on.
    from typing_extensions import Self

#: Seconds after which a measurement has failed.
TIMEOUT = 300


class MeasurementError(Exception):
    """A measurement that came to nothing; says what it has written before it ended."""


@dataclass(frozen=True)
class Servers:
    """The servers of a run.

    Attributes:
        rabbitmq: the server, or why there is none.
    """

    redis: RedisServer
    rabbitmq: RabbitMQServer | str

    def missing(self, peer: Peer) -> str | None:
        """Why the *peer* cannot be measured; ``None`` if it can."""
        if peer.server == "rabbitmq" and isinstance(self.rabbitmq, str):
            return self.rabbitmq
        return peer.missing()

    def sites(self, peers: Iterable[Peer]) -> list[Site]:
        """Clean places to measure these at the same time."""
        with self.redis.client() as client:
            client.flushall()
            client.config_resetstat()
        return [self._site(peer, database) for database, peer in enumerate(peers)]

    def _site(self, peer: Peer, database: int) -> Site:
        if peer.server == "rabbitmq" and not isinstance(self.rabbitmq, str):
            url = self.rabbitmq.url()
        else:
            url = self.redis.url(peer.scheme, database) if peer.server else f"{peer.scheme}://"
        return Site(peer.name, url, self.redis.port, database, f"benchmark-{uuid.uuid4().hex[:8]}")


@contextmanager
def start_servers(peers: Iterable[Peer]) -> Iterator[Servers]:
    """The servers that *peers* need, private ones."""
    with ExitStack() as exit_:
        redis = exit_.enter_context(RedisServer())
        rabbitmq: RabbitMQServer | str = "it was not asked for"
        if any(peer.server == "rabbitmq" for peer in peers):
            try:
                rabbitmq = exit_.enter_context(RabbitMQServer())
            except (RuntimeError, TimeoutError) as error:
                rabbitmq = str(error)
        yield Servers(redis, rabbitmq)


def run(
    servers: Servers,
    workloads: Sequence[Workload],
    rounds: int,
    *,
    quick: bool,
    on_start: Callable[[Workload, Case, int], None],
    on_failure: Callable[[Workload, Case, MeasurementError], None],
) -> Iterator[Record]:
    """Measure, and return the records one by one. What fails once is left out of the further rounds.

    Arguments:
        servers: that are running.
        quick: with the smaller sizes, and without the workloads that have none.
    """
    failed: set[tuple[str, str]] = set()
    for workload in workloads:
        sizes = workload.quick_sizes if quick else workload.sizes
        if sizes is None:
            continue
        groups = [workload.cases] if workload.in_turns else [[case] for case in workload.cases]
        for round_ in range(min(rounds, workload.rounds or rounds)):
            for group in groups:
                cases = [
                    case
                    for case in group
                    if servers.missing(case.peer) is None and (workload.name, case.name) not in failed
                ]
                for case in cases:
                    on_start(workload, case, round_)
                for case, outcome in measure(servers, workload, cases, sizes):
                    if isinstance(outcome, MeasurementError):
                        failed.add((workload.name, case.name))
                        on_failure(workload, case, outcome)
                    else:
                        yield Record(workload.name, case.name, round_, **asdict(outcome))


def measure(
    servers: Servers, workload: Workload, cases: Sequence[Case], sizes: Sizes
) -> Iterator[tuple[Case, Measured | MeasurementError]]:
    """Measure the *cases* at the same time, each in its turn."""
    sites = servers.sites(case.peer for case in cases)
    with ExitStack() as exit_:
        if workload.apart:
            exit_.enter_context(apart(servers.redis.pid))
        going_on = [
            (case, exit_.enter_context(Runner(workload, site, {**sizes, **case.sizes})))
            for case, site in zip(cases, sites, strict=True)
        ]
        while going_on:
            for each in tuple(going_on):
                case, runner = each
                try:
                    outcome = runner.take_turn()
                except MeasurementError as error:
                    going_on.remove(each)
                    yield case, error
                else:
                    if outcome is not None:
                        going_on.remove(each)
                        yield case, outcome


class Runner:
    """The process of one measurement; killed when the ``with`` block is left."""

    def __init__(self, workload: Workload, site: Site, sizes: Sizes) -> None:
        self._request = {"workload": workload.name, "site": asdict(site), "sizes": dict(sizes)}

    def take_turn(self) -> Measured | None:
        """Let it go on; returns what was measured when it was the last turn.

        Raises:
            MeasurementError: it failed, or takes too long.
        """
        self._write("")
        reply = self._process.stdout.readline() if self._process.stdout else ""
        measured = json.loads(reply) if reply else None
        if reply and measured is None:
            return None
        status = self._process.wait()
        if status == -SIGKILL:
            raise MeasurementError(f"killed; it may take {TIMEOUT} s")
        if status != 0 or measured is None:
            self._errors.seek(0)
            raise MeasurementError(self._errors.read())
        return Measured(**measured)

    def _write(self, line: str) -> None:
        # If the process has ended, there is no reply either, and that is told.
        with suppress(BrokenPipeError):
            print(line, file=self._process.stdin, flush=True)

    def __enter__(self) -> Self:
        self._errors = tempfile.TemporaryFile("w+")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tools.benchmarks.runner"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )
        self._alarm = Timer(TIMEOUT, self._process.kill)
        self._alarm.start()
        self._write(json.dumps(self._request))
        return self

    def __exit__(self, *error: object) -> None:
        self._alarm.cancel()
        self._process.kill()
        # Closes the pipes, too.
        with self._errors, suppress(BrokenPipeError), self._process:
            pass
