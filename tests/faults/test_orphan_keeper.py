"""What becomes of messages whose connection was lost while their worker lives."""

from __future__ import annotations

import subprocess
import sys
import time
from datetime import datetime, timedelta, timezone
from pathlib import Path
from textwrap import dedent
from threading import Thread

import celery.worker.state
import pytest
from redis.exceptions import TimeoutError

from tests.end_to_end.installation import Installation
from tests.faults.workers import LOST_CONNECTION, kill_connections
from tests.transport.kit import PATIENCE, Inbox, Site, drain, publish
from tools.harness.process import wait_until
from tools.harness.proxy import Proxy

LEASE = 1.5
POOLS = ("threads", "gevent", "prefork")


def consumers(installation: Installation, queue: str) -> list[bytes]:
    names: list[bytes] = installation.redis.execute_command(
        "ZRANGE", f"redisdelay:{{{queue}}}:consumers", 0, -1
    )
    return names


def held_by(installation: Installation, queue: str, names: list[bytes]) -> int:
    key = f"redisdelay:{{{queue}}}:unacked:"
    return sum(installation.redis.execute_command("HLEN", key.encode() + name) for name in names)


def test_a_late_ack_task_longer_than_the_lease_runs_once(installation: Installation, tmp_path: Path) -> None:
    """And what was prefetched behind it, too: threads and gevent keep it in a queue of their own and run it
    from there; prefork has forgotten it, so that it has to come back."""
    gate = tmp_path / "gate"
    settings = {"broker_transport_options": {"visibility_timeout": LEASE}}
    producer = installation.producer()
    long = {pool: f"{pool} long" for pool in POOLS}
    prefetched = {pool: [f"{pool} {number}" for number in range(2)] for pool in POOLS}
    for pool in POOLS:
        for task in (long[pool], *prefetched[pool]):
            producer.send_task("work_late", [task], kwargs={"gate": str(gate)}, queue=pool)
    # After that: with greenlets, a worker whose only place is taken takes no more.
    for pool in POOLS:
        installation.start_worker(
            pool=pool,
            queues=[pool],
            settings=settings,
            prefetch_multiplier=3,
            expected=LOST_CONNECTION,
        )
    installation.wait_started(*long.values())
    held = 3 * len(POOLS)
    wait_until(lambda: sum(map(installation.unacked, POOLS)) == held, 30, "the prefetch of all")

    first = {pool: consumers(installation, pool) for pool in POOLS}

    kill_connections(installation)
    if "prefork" in POOLS:
        wait_until(
            lambda: held_by(installation, "prefork", first["prefork"]) == 1, 30, "the return of the others"
        )
    # It has room for all that comes back.
    installation.worker(
        pool="threads", concurrency=10, queues=POOLS, settings=settings, prefetch_multiplier=1
    )
    time.sleep(2 * LEASE)
    gate.touch()

    installation.wait_ended([*long.values(), *(task for tasks in prefetched.values() for task in tasks)])
    wait_until(lambda: not any(map(installation.unacked, POOLS)), 30, "acks")
    assert not any(map(installation.ready, POOLS))
    assert installation.ledger.run_twice() == {}


def test_a_task_whose_timer_was_set_just_before_the_loss_comes_back(
    installation: Installation, tmp_path: Path
) -> None:
    """Celery 5.7 cancels the timer of a task with an ETA, and has a list of all timers, with the cancelled
    ones, until the next connection is lost."""
    gate = tmp_path / "gate"
    before = datetime.now(timezone.utc) - timedelta(seconds=1)
    producer = installation.producer()
    # The first has the loop of a solo worker take its turn. In the next one, the worker sets the timer, and
    # the last task keeps it until the connection is lost: it is noticed before timers are looked at.
    producer.send_task("work", ["first"], kwargs={"seconds": 0.1})
    producer.send_task("work_late", ["with a timer"], eta=before)
    producer.send_task("work", ["last"], kwargs={"gate": str(gate)})
    installation.start_worker(pool="solo", concurrency=1, prefetch_multiplier=3, expected=LOST_CONNECTION)
    installation.wait_started("last")
    kill_connections(installation)
    gate.touch()
    installation.wait_ended(["with a timer"])


def test_messages_that_the_application_has_stay_its_own_and_others_return(site: Site) -> None:
    # As in every process that has published a Celery task.
    assert celery.worker.state
    connection = site.connect(visibility_timeout=LEASE)
    channel = connection.channel()
    publish(channel, *(str(number) for number in range(6)))
    inbox = Inbox(channel)
    drain(connection, lambda: len(inbox) == 5)
    # One has been taken with the others, and was not delivered yet.
    assert site.unacked() == 6
    kept, inbox.messages[2:] = inbox.messages[:2], []

    connection.collect()
    wait_until(lambda: site.ready() == 4, PATIENCE, "those dropped")
    time.sleep(1.5 * LEASE)
    second = site.connect(visibility_timeout=LEASE)
    other = Inbox(second.channel())
    drain(second, lambda: len(other) == 4)
    assert sorted(other.bodies) == ["2", "3", "4", "5"]
    for message in (*kept, *other):
        message.ack()
    assert (site.ready(), site.unacked()) == (0, 0)


def test_a_message_that_is_dropped_later_returns_then(site: Site) -> None:
    connection = site.connect()
    channel = connection.channel()
    publish(channel, "a")
    inbox = Inbox(channel)
    drain(connection, lambda: len(inbox) == 1)
    connection.collect()
    del connection, channel
    wait_until(lambda: not site.ready(), PATIENCE, "")
    inbox.messages.clear()
    wait_until(lambda: site.ready() == 1, PATIENCE, "the message")
    assert site.unacked() == 0


def test_a_take_that_arrives_when_the_loss_was_long_noticed(site: Site, proxy: Proxy) -> None:
    connection = site.connect(proxy.url())
    channel = connection.channel()
    assert channel.basic_get("q") is None
    proxy.delay(6)
    with pytest.raises(TimeoutError):
        channel.basic_get("q")
    # The take is on its way, but the connections from now on are fast.
    proxy.delay(0)
    connection.collect()
    publish(site.channel(), "a")
    wait_until(lambda: site.unacked() == 1, PATIENCE, "the take")
    wait_until(lambda: site.ready() == 1, PATIENCE, "the return of what it took")
    assert site.unacked() == 0


@pytest.mark.parametrize("settle", ["ack", "requeue"])
def test_an_ack_that_is_on_its_way_when_the_loss_is_noticed_gets_through(
    site: Site, proxy: Proxy, settle: str
) -> None:
    connection = site.connect(proxy.url())
    channel = connection.channel()
    publish(channel, "a")
    inbox = Inbox(channel)
    drain(connection, lambda: len(inbox) == 1)
    message = inbox.messages[0]
    errors: list[Exception] = []

    def work() -> None:
        try:
            getattr(message, settle)()
        except Exception as error:
            errors.append(error)

    proxy.delay(0.3)
    worker = Thread(target=work)
    worker.start()
    time.sleep(0.1)
    connection.collect()
    worker.join()
    assert errors == []
    # Nobody waits for the reply to an ack.
    wait_until(lambda: site.unacked() == 0, PATIENCE, settle)
    assert site.ready() == (settle == "requeue")


def test_what_the_application_still_has_returns_when_the_program_ends(site: Site, tmp_path: Path) -> None:
    """A task that an error has ended in its greenlet stays known to Celery: nobody will ever ack it."""
    program = tmp_path / "program.py"
    program.write_text(
        dedent(
            f"""
            from kombu import Connection

            import kombu_redisdelay

            connection = Connection({site.url!r})
            channel = connection.default_channel
            message = None
            while message is None:
                message = channel.basic_get("q")
            connection.collect()
            print(message.payload)
            """
        )
    )
    publish(site.channel(), "a")
    shown = subprocess.run([sys.executable, program], check=True, capture_output=True, text=True, timeout=60)
    assert shown.stdout.strip() == "a"
    assert (site.ready(), site.unacked()) == (1, 0)
