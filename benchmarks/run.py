"""A run: every case of every workload in turn, round by round, each in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from types import TracebackType
from typing import TYPE_CHECKING

from benchmarks.peers import Peer
from benchmarks.results import Record
from benchmarks.site import Site
from benchmarks.workload import Case, Sizes, Workload
from harness.rabbitmq_server import RabbitMQServer
from harness.redis_server import RedisServer

if TYPE_CHECKING:
    # In `typing` from Python 3.11 on.
    from typing_extensions import Self

#: Seconds after which a measurement has failed.
TIMEOUT = 300


class MeasurementError(Exception):
    """A measurement that came to nothing; says what it has written before it ended."""


class Servers:
    """The servers that *peers* need, private ones, for the length of a ``with`` block."""

    def __init__(self, peers: Iterable[Peer]) -> None:
        self._exit = ExitStack()
        self.redis = RedisServer()
        wanted = any(peer.server == "rabbitmq" and peer.missing() is None for peer in peers)
        self.rabbitmq = RabbitMQServer() if wanted else None

    def site(self, peer: Peer) -> Site:
        """A clean place for a measurement."""
        with self.redis.client() as client:
            client.flushall()
            client.config_resetstat()
        if peer.server == "rabbitmq" and self.rabbitmq is not None:
            url = self.rabbitmq.url()
        else:
            url = self.redis.url(peer.scheme) if peer.server else f"{peer.scheme}://"
        return Site(peer.name, url, self.redis.port, f"benchmark-{uuid.uuid4().hex[:8]}")

    def __enter__(self) -> Self:
        with ExitStack() as exit_:
            exit_.enter_context(self.redis)
            if self.rabbitmq is not None:
                exit_.enter_context(self.rabbitmq)
            self._exit = exit_.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._exit.close()


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
        for round_ in range(min(rounds, workload.rounds or rounds)):
            for case in workload.cases:
                if case.peer.missing() is not None or (workload.name, case.name) in failed:
                    continue
                on_start(workload, case, round_)
                try:
                    yield measure(workload, case, sizes, servers.site(case.peer), round_)
                except MeasurementError as error:
                    failed.add((workload.name, case.name))
                    on_failure(workload, case, error)


def measure(workload: Workload, case: Case, sizes: Sizes, site: Site, round_: int) -> Record:
    """One measurement.

    Raises:
        MeasurementError: it failed, or takes too long.
    """
    request = {"workload": workload.name, "site": asdict(site), "sizes": {**sizes, **case.sizes}}
    try:
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.runner"],
            input=json.dumps(request),
            capture_output=True,
            text=True,
            timeout=TIMEOUT,
        )
    except subprocess.TimeoutExpired:
        raise MeasurementError(f"not done after {TIMEOUT} s") from None
    if done.returncode != 0:
        raise MeasurementError(done.stderr)
    return Record(workload.name, case.name, round_, **json.loads(done.stdout))
