"""Sentinels and a cluster over TLS: the certificate is verified, and nothing goes any other way."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
from kombu.connection import Connection
from redis.exceptions import ConnectionError as RedisConnectionError

from tests.end_to_end.installation import Installation
from tests.faults.workers import LOST_CONNECTION
from tools.harness.cluster import Cluster
from tools.harness.process import wait_until
from tools.harness.sentinel import MASTER, SentinelSite
from tools.harness.server_binary import ServerBinary
from tools.harness.tls import Tls, new_tls, server_with_tls

QUEUE = "emails"


@pytest.fixture(scope="module")
def tls() -> Iterator[tuple[ServerBinary, Tls]]:
    """A server that can speak TLS, and a certificate for it."""
    with ExitStack() as stack:
        try:
            able = server_with_tls(), stack.enter_context(new_tls())
        except LookupError as error:
            pytest.skip(str(error))
        yield able


def check_that_all_goes(site: Installation, scheme: str, moment: str) -> None:
    """One message each: at once, with a countdown, and remote control."""
    producer = site.producer(scheme)
    tasks = [f"at once {moment}", f"later {moment}"]
    for countdown, task in enumerate(tasks):
        producer.send_task("work_late", [task], queue=QUEUE, countdown=countdown)
    site.wait_ended(tasks)

    def answers() -> bool:
        # The first ping after a failover may find that the kept connection leads to the old primary.
        with suppress(RedisConnectionError):
            return bool(producer.control.ping(timeout=1))
        return False

    wait_until(answers, 30, "remote control")
    wait_until(lambda: site.unacked(QUEUE) == 0, 30, "acks")


def test_sentinels(tls: tuple[ServerBinary, Tls], tmp_path: Path) -> None:
    binary, certificate = tls
    settings = {"broker_use_ssl": certificate.client_options}
    scheme = "redisdelays-sentinel"
    with (
        SentinelSite(binary, replicas=1, hasty=True, tls=certificate) as sentinels,
        Installation(
            sentinels, tmp_path, broker_transport_options={"master_name": MASTER}, **settings
        ) as site,
    ):
        worker = site.start_worker(scheme=scheme, pool="threads", queues=[QUEUE], expected=LOST_CONNECTION)
        worker.wait_ready()
        check_that_all_goes(site, scheme, "at first")
        before = sentinels.primary()
        before.kill()
        sentinels.wait_failover(before)
        check_that_all_goes(site, scheme, "after a failover")


def test_a_cluster(tls: tuple[ServerBinary, Tls], tmp_path: Path) -> None:
    binary, certificate = tls
    scheme = "redisdelays-cluster"
    with (
        Cluster(primaries=3, binary=binary, tls=certificate) as cluster,
        Installation(cluster, tmp_path, broker_use_ssl=certificate.client_options) as site,
    ):
        with (
            Connection(cluster.url(scheme)) as stranger,
            pytest.raises(RedisConnectionError, match="certificate verify failed"),
        ):
            stranger.ensure_connection(max_retries=1, interval_start=0, reraise_as_library_errors=False)
        site.worker(scheme=scheme, pool="threads", queues=[QUEUE])
        check_that_all_goes(site, scheme, "at first")
