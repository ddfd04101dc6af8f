"""Half-open connections and resets: nothing ever comes, or all breaks, on every connection of a worker."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from kombu_redisdelay.transport.channel import Channel
from tests.end_to_end.installation import ALONE, Installation
from tests.faults.application import running
from tests.faults.workers import LOST_CONNECTION
from tests.transport.kit import PATIENCE, Inbox, Site, drain, publish
from tools.harness.process import wait_until
from tools.harness.proxy import Proxy

#: The event loop, and drain_events.
POOLS = ("prefork", "threads", "gevent", "solo")

#: Seconds that the issue gives a worker, and what a busy machine may add.
RECOVERY, SLACK = 10, 5


def test_workers_recover_from_silence(installation: Installation, proxy: Proxy, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    # A lease that ends in the meantime unless the heartbeat recovers, too.
    settings = {"broker_transport_options": {"visibility_timeout": 20}}
    workers = [
        installation.start_worker(
            pool=pool,
            concurrency=1 if pool == "solo" else 2,
            queues=[pool],
            url=proxy.url(),
            settings=settings,
            expected=LOST_CONNECTION,
            # Events are published over connections of their own, which are half-open, too.
            args=(*ALONE, "-E"),
        )
        for pool in POOLS
    ]
    for worker in workers:
        worker.wait_ready()
    producer = installation.producer()
    # A solo worker would do nothing else.
    late = ["late threads", "late gevent", "late prefork"]
    for task in late:
        producer.send_task("work_late", [task], kwargs={"gate": str(gate)}, queue=task.split()[1])
    installation.wait_started(*late)

    proxy.go_silent()
    silent_from = time.monotonic()
    for pool in POOLS:
        producer.send_task("work", [pool], queue=pool)
        producer.send_task("work", [f"{pool} countdown"], queue=pool, countdown=1)
    # Long enough for the connections to go on with what they were sent before.
    time.sleep(1)
    proxy.pass_on()

    afterwards = [task for pool in POOLS for task in (pool, f"{pool} countdown")]
    installation.wait_ended(afterwards, timeout=silent_from + RECOVERY + SLACK - time.monotonic())
    gate.touch()
    installation.wait_ended(late)
    wait_until(lambda: not any(map(installation.unacked, POOLS)), 30, "acks")
    assert installation.ledger.run_twice() == {}
    assert all(worker.running for worker in workers)


def test_workers_recover_from_resets(installation: Installation, proxy: Proxy) -> None:
    workers = [
        installation.start_worker(pool=pool, queues=[pool], url=proxy.url(), expected=LOST_CONNECTION)
        for pool in POOLS
    ]
    for worker in workers:
        worker.wait_ready()
    producer = installation.producer()
    tasks = [f"{pool} {number}" for number in range(12) for pool in POOLS]
    for number, task in enumerate(tasks):
        producer.send_task("work", [task], queue=task.split()[0])
        if number % 12 == 6:
            proxy.reset()

    installation.wait_ended(tasks, timeout=RECOVERY + SLACK)
    wait_until(lambda: not any(map(installation.unacked, POOLS)), 30, "acks")
    assert all(worker.running for worker in workers)


def test_what_is_held_returns_when_the_channel_is_closed_on_half_open_connections(
    site: Site, proxy: Proxy
) -> None:
    connection = site.connect(proxy.url())
    channel = connection.channel()
    publish(site.channel(), "acked", "held", "not delivered")
    inbox = Inbox(channel)
    drain(connection, lambda: len(inbox) == 2)
    assert site.unacked() == 3
    proxy.go_silent()
    proxy.pass_on()

    inbox.messages[0].ack()
    channel.close()
    assert (site.unacked(), site.ready()) == (0, 2)


def test_an_ack_counts_though_the_channel_was_closed_in_silence(site: Site, proxy: Proxy) -> None:
    connection = site.connect(proxy.url(), socket_timeout=0.5)
    channel = connection.channel()
    publish(site.channel(), "acked", "held")
    inbox = Inbox(channel)
    drain(connection, lambda: len(inbox) == 2)
    proxy.go_silent()
    inbox.messages[0].ack()
    channel.close()
    assert site.unacked() == 2
    proxy.pass_on()
    # Long before the lease would end.
    wait_until(lambda: (site.unacked(), site.ready()) == (0, 1), PATIENCE, "the ack, and what was held")


def test_a_slow_network_is_not_taken_for_silence(
    site: Site, proxy: Proxy, caplog: pytest.LogCaptureFixture
) -> None:
    bodies = [str(number) for number in range(3)]
    with running(proxy.url()) as application:
        publish(site.channel(), "before")
        application.wait_received("before")
        proxy.delay(0.1)
        publish(site.channel(), *bodies)
        application.wait_received(*bodies)
        wait_until(lambda: site.unacked() == 0, PATIENCE, "acks")
    assert application.received == ["before", *bodies]
    assert "onnection" not in caplog.text


def test_drain_events_notices_silence(site: Site, proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Channel, "silence_limit", 0.5)
    with running(proxy.url()) as application:
        publish(site.channel(), "before")
        application.wait_received("before")
        proxy.go_silent()
        publish(site.channel(), "meanwhile")
        # Connections that it makes now are silent, too.
        time.sleep(3)
        proxy.pass_on()
        publish(site.channel(), "after")
        application.wait_received("meanwhile", "after")
        wait_until(lambda: site.unacked() == 0, PATIENCE, "acks")
    assert sorted(application.received) == ["after", "before", "meanwhile"]
