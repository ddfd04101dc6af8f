"""Redis is up, and not as it should be: read-only, stopped for a while, without scripts, with a key of
another type."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from redis.exceptions import ResponseError

from kombu_redisdelay.broker.server.wire import NotThePrimary
from tests.end_to_end.installation import Installation
from tests.faults.workers import LOST_CONNECTION, start_a_worker_for_each
from tests.transport.kit import Inbox, Site, drain, publish
from tools.harness.process import wait_until
from tools.harness.redis_server import HOST, RedisServer
from tools.harness.server_binary import servers

POOLS = ("threads", "gevent")
OURS = ("schedule", "messages", "consumers")


@pytest.fixture
def primary() -> Iterator[RedisServer]:
    """A server that another one is to be a replica of."""
    with RedisServer() as primary:
        yield primary


class TestReadOnlyReplica:
    def test_says_so(self, site: Site, primary: RedisServer) -> None:
        channel = site.channel()
        publish(channel, "before")
        publish(channel, "before", headers={"x-delay": 3_600_000})
        inbox = Inbox(channel)
        site.redis.replicaof(HOST, primary.port)
        try:
            with pytest.raises(NotThePrimary):
                publish(channel, "a")
            with pytest.raises(NotThePrimary):
                publish(channel, "a", headers={"x-delay": 60_000}, queue="new")
            with pytest.raises(NotThePrimary):
                drain(channel.connection.client, lambda: len(inbox) == 1)
        finally:
            site.redis.replicaof("NO", "ONE")
        # Its copy of the primary has nothing in it.
        publish(channel, "after")
        drain(channel.connection.client, lambda: len(inbox) == 1)
        inbox.messages[0].ack()

    def test_workers_survive_that_their_server_is_one_for_a_while(
        self, installation: Installation, primary: RedisServer
    ) -> None:
        workers = [
            installation.start_worker(
                pool=pool,
                queues=[pool],
                expected=f"{LOST_CONNECTION}|NotThePrimary|Frequent restarts",
            )
            for pool in POOLS
        ]
        for worker in workers:
            worker.wait_ready()
        installation.redis.replicaof(HOST, primary.port)
        try:
            # When they connect again, too.
            lost = re.compile("Connection to broker lost.*NotThePrimary")
            wait_until(lambda: all(len(lost.findall(worker.log())) > 1 for worker in workers), 30, "errors")
        finally:
            installation.redis.replicaof("NO", "ONE")
        producer = installation.producer()
        for pool in POOLS:
            producer.send_task("work", [f"{pool} after"], queue=pool)
        installation.wait_ended([f"{pool} after" for pool in POOLS], timeout=30)
        assert all(worker.running for worker in workers)


def test_sleep_longer_than_the_lease(tmp_path: Path) -> None:
    lease, asleep = 2, 4
    [binary, *_] = servers()
    # The option came with the ban.
    allowed = ("--enable-debug-command", "yes") if int(binary.version.split(".")[0]) >= 7 else ()
    settings = {"broker_transport_options": {"visibility_timeout": lease}}
    gate = tmp_path / "gate"
    with (
        RedisServer(binary, args=allowed) as server,
        Installation(server, tmp_path, **settings) as installation,
    ):
        workers = start_a_worker_for_each(installation, *POOLS)
        producer = installation.producer()
        late = [f"{pool} late" for pool in POOLS]
        waiting = [f"{pool} waiting" for pool in POOLS]
        for pool in POOLS:
            producer.send_task("work_late", [f"{pool} late"], kwargs={"gate": str(gate)}, queue=pool)
            producer.send_task("work", [f"{pool} waiting"], queue=pool, countdown=2)
        installation.wait_started(*late)

        installation.redis.execute_command("DEBUG", "SLEEP", asleep)
        for pool in POOLS:
            producer.send_task("work", [f"{pool} after"], queue=pool)
        installation.wait_ended([*waiting, *(f"{pool} after" for pool in POOLS)])
        gate.touch()
        installation.wait_ended(late)
        wait_until(lambda: not any(map(installation.unacked, POOLS)), 30, "acks")
        # Nobody else was there who could have taken what was held when the lease had ended.
        assert installation.ledger.run_twice() == {}
        assert installation.ledger.early() == []
        assert all(worker.running for worker in workers)


def test_script_flush_while_workers_run(installation: Installation) -> None:
    for pool in POOLS:
        installation.start_worker(pool=pool, queues=[pool])
    producer = installation.producer()
    tasks = [f"{pool} {number}" for number in range(30) for pool in POOLS]
    for number, task in enumerate(tasks):
        producer.send_task("work_late", [task], queue=task.split()[0], countdown=number % 3)
        installation.redis.script_flush()
    installation.wait_ended(tasks)
    wait_until(lambda: not any(map(installation.unacked, POOLS)), 30, "acks")
    assert installation.ledger.run_twice() == {}


class TestWrongType:
    @pytest.mark.parametrize("kind", ["schedule", "messages"])
    def test_publish_names_the_key(self, site: Site, kind: str) -> None:
        key = f"redisdelay:{{q}}:{kind}"
        channel = site.channel()
        site.redis.set(key, "of somebody else")
        with pytest.raises(ResponseError, match="WRONGTYPE") as caught:
            publish(channel, "a", headers={"x-delay": 60_000})
        assert key in str(caught.value)

    @pytest.mark.parametrize("key", ["q", *(f"redisdelay:{{q}}:{kind}" for kind in OURS)])
    def test_consuming_names_the_key_and_goes_on_without_it(self, site: Site, key: str) -> None:
        channel = site.channel()
        inbox = Inbox(channel)
        publish(channel, "soon", headers={"x-delay": 300})
        saved = site.redis.dump(key)
        site.redis.set(key, "of somebody else")
        with pytest.raises(ResponseError, match="WRONGTYPE") as caught:
            drain(channel.connection.client, lambda: len(inbox) == 1, timeout=3)
        assert key in str(caught.value)

        site.redis.delete(key)
        if saved is not None:
            site.redis.restore(key, 0, saved)
        drain(channel.connection.client, lambda: len(inbox) == 1)
        assert inbox.bodies == ["soon"]

    def test_of_the_wake_key_repairs_itself(self, site: Site) -> None:
        channel = site.channel()
        inbox = Inbox(channel)
        site.redis.set("redisdelay:{q}:wake", "of somebody else")
        publish(channel, "a")
        drain(channel.connection.client, lambda: len(inbox) == 1)
        publish(channel, "b")
        drain(channel.connection.client, lambda: len(inbox) == 2)
