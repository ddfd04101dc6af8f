"""A run: every case of every workload in turn, round by round, each in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass

from benchmarks.peers import Peer
from benchmarks.results import Record
from benchmarks.site import Site
from benchmarks.workload import Case, Sizes, Workload
from harness.rabbitmq_server import RabbitMQServer
from harness.redis_server import RedisServer

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

    def site(self, peer: Peer) -> Site:
        """A clean place for a measurement."""
        with self.redis.client() as client:
            client.flushall()
            client.config_resetstat()
        if peer.server == "rabbitmq" and not isinstance(self.rabbitmq, str):
            url = self.rabbitmq.url()
        else:
            url = self.redis.url(peer.scheme) if peer.server else f"{peer.scheme}://"
        return Site(peer.name, url, self.redis.port, f"benchmark-{uuid.uuid4().hex[:8]}")


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
        for round_ in range(min(rounds, workload.rounds or rounds)):
            for case in workload.cases:
                if servers.missing(case.peer) is not None or (workload.name, case.name) in failed:
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
