"""The heartbeat that keeps a lease while its process lives."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from time import monotonic, sleep

import pytest

from kombu_redisdelay.broker.consumer import Consumer
from kombu_redisdelay.broker.keys import redis_keys
from kombu_redisdelay.broker.lease import Lease
from kombu_redisdelay.broker.lease_policy import LeasePolicy
from kombu_redisdelay.broker.mover import Mover
from kombu_redisdelay.broker.options import Options
from kombu_redisdelay.broker.server.scripts import RENEW
from kombu_redisdelay.broker.server.single import Pool, SingleServer
from kombu_redisdelay.broker.store import Store
from tests.broker.database import REAL_SERVERS
from tests.broker.database import database as open_database
from tests.broker.rig import SEPARATOR, STEPS, Rig
from tools.harness.process import wait_until
from tools.harness.proxy import HOST, Proxy

LEASE_MS = 300
QUEUE, ANOTHER = redis_keys("", "q", ":"), redis_keys("", "another", ":")
KEY = QUEUE.consumers

pytestmark = pytest.mark.skipif(not REAL_SERVERS, reason="a heartbeat needs a clock that runs")


@pytest.fixture(scope="module", params=REAL_SERVERS)
def shared_rig(request: pytest.FixtureRequest) -> Iterator[Rig]:
    with open_database(request.param) as database:
        yield Rig(database)


@pytest.fixture
def rig(shared_rig: Rig) -> Rig:
    shared_rig.database.reset()
    return shared_rig


@pytest.fixture
def lease(rig: Rig) -> Iterator[Lease]:
    yield from new_lease(rig, LEASE_MS)


@pytest.fixture
def long_lease(rig: Rig) -> Iterator[Lease]:
    """One that is not renewed again while a test runs, unless there is a reason."""
    yield from new_lease(rig, 600_000)


def new_lease(rig: Rig, lease_ms: int) -> Iterator[Lease]:
    lease = lease_of(server_of(rig), lease_ms)
    yield lease
    lease.stop(server_of(rig))


def lease_of(server: SingleServer, lease_ms: int) -> Lease:
    return Lease(server, "me", LeasePolicy(lease_ms), Mover(Store(server, "", STEPS, SEPARATOR)))


def server_of(rig: Rig) -> SingleServer:
    """With connections of its own."""
    return server_at(rig.client.connection_pool.connection_kwargs["port"])


def server_at(port: int) -> SingleServer:
    return SingleServer(Pool(1, host=HOST, port=port))


def remaining_ms(rig: Rig, key: str = KEY) -> float:
    end = rig.client.zscore(key, "me")
    return 0 if end is None else float(end) - rig.database.now_ms()


def test_begins_at_once_and_lasts(rig: Rig, lease: Lease) -> None:
    lease.cover(QUEUE)
    wait_until(lambda: remaining_ms(rig) > 0, 20, "the lease begins")
    first_end = rig.client.zscore(KEY, "me")
    wait_until(lambda: rig.client.zscore(KEY, "me") >= first_end + 2 * LEASE_MS, 20, "it is renewed")


def test_covers_a_queue_that_is_added(rig: Rig, lease: Lease) -> None:
    lease.cover(QUEUE)
    wait_until(lambda: remaining_ms(rig) > 0, 20, "the lease begins")
    lease.cover(ANOTHER)
    wait_until(lambda: remaining_ms(rig, ANOTHER.consumers) > 0, 20, "it covers the other queue")
    assert remaining_ms(rig) > 0


def test_who_holds_nothing_is_no_consumer_once_stopped(rig: Rig, long_lease: Lease) -> None:
    long_lease.cover(QUEUE)
    wait_until(lambda: remaining_ms(rig) > 0, 20, "the lease begins")
    long_lease.stop(server_of(rig))
    assert not rig.client.exists(KEY)


def test_runs_out_once_stopped(rig: Rig, lease: Lease) -> None:
    rig.client.hset(QUEUE.unacked("me"), "1", "a message that is held")
    lease.cover(QUEUE)
    wait_until(lambda: remaining_ms(rig) > 0, 20, "the lease begins")
    lease.stop(server_of(rig))
    end = rig.client.zscore(KEY, "me")
    wait_until(lambda: remaining_ms(rig) < 0, 20, "the lease runs out")
    assert rig.client.zscore(KEY, "me") == end


def test_a_renewal_keeps_the_time_to_live(rig: Rig) -> None:
    """That of a queue with x-expires. The process may be killed before it sends that anew."""
    consumers = rig.store.keys("q").consumers
    for _ in range(2):
        RENEW(rig.store.server, (consumers,), ("me", 1000))
        assert rig.client.pttl(consumers) == -1
    rig.client.pexpire(consumers, 60_000)
    RENEW(rig.store.server, (consumers,), ("me", 1000))
    assert 50_000 < rig.client.pttl(consumers) <= 60_000


def test_stop_without_start(rig: Rig, lease: Lease) -> None:
    lease.stop(server_of(rig))


def test_who_holds_nothing_is_no_consumer_although_the_heartbeat_hangs(rig: Rig) -> None:
    """A failover leaves it with a server that does not answer any more, for as long as a reply may take."""
    with Proxy(rig.client.connection_pool.connection_kwargs["port"]) as proxy:
        lease = lease_of(server_at(proxy.port), LEASE_MS)
        lease.cover(QUEUE)
        wait_until(lambda: remaining_ms(rig) > 0, 20, "the lease begins")
        proxy.go_silent()
        wait_until(lambda: remaining_ms(rig) < 0, 20, "no renewal comes through")
        lease.stop(server_of(rig))
        assert not rig.client.exists(KEY)


@pytest.mark.parametrize("harm", ["refused", "silent"])
def test_knows_since_when_it_is_served(rig: Rig, harm: str) -> None:
    """While the server refuses or is silent, no time counts in which others renew nothing."""
    with Proxy(rig.client.connection_pool.connection_kwargs["port"]) as proxy:
        server = SingleServer(Pool(1, host=HOST, port=proxy.port, socket_timeout=1))
        lease = lease_of(server, LEASE_MS)
        lease.cover(QUEUE)
        wait_until(lambda: remaining_ms(rig) > 0, 20, "the lease begins")
        assert lease.served_since == float("-inf")
        if harm == "refused":
            proxy.refuse("MISCONF as we say")
        else:
            proxy.go_silent()
        wait_until(lambda: lease.served_since == float("inf"), 20, "it is not served")
        before = monotonic()
        proxy.serve()
        proxy.pass_on()
        proxy.reset()
        wait_until(lambda: lease.served_since != float("inf"), 20, "it is served again")
        assert lease.served_since >= before
        lease.stop(server_of(rig))


def test_goes_on_after_an_error_and_says_both_once(
    rig: Rig, lease: Lease, caplog: pytest.LogCaptureFixture
) -> None:
    rig.client.set(KEY, "of the wrong type")
    lease.cover(QUEUE)

    def told() -> int:
        lease.tell()
        return len(caplog.records)

    wait_until(told, 20, "the error is told")
    lease.cover(ANOTHER)
    rig.client.delete(KEY)
    wait_until(lambda: remaining_ms(rig) > 0, 20, "the lease is renewed again")
    wait_until(lambda: told() > 1, 20, "that is told")
    end = rig.client.zscore(KEY, "me")
    wait_until(lambda: rig.client.zscore(KEY, "me") > end, 20, "it is renewed once more")
    lease.tell()
    assert [record.levelno for record in caplog.records] == [logging.WARNING] * 2
    assert caplog.messages[0].startswith("Could not renew the lease of this consumer")
    assert caplog.messages[1] == "The lease of this consumer is renewed again."


def test_what_is_told_late_says_when_it_was(rig: Rig, lease: Lease, caplog: pytest.LogCaptureFixture) -> None:
    """The caller was busy meanwhile, and by now something else may be wrong."""
    rig.client.set(KEY, "of the wrong type")
    lease.cover(QUEUE)
    wait_until(lambda: lease.served_since == float("inf"), 20, "it is not renewed")
    rig.client.delete(KEY)
    wait_until(lambda: lease.served_since != float("inf"), 20, "it is renewed again")
    lease.tell()
    lease.tell()
    [told] = caplog.messages
    assert re.match(
        r"Could not renew the lease of this consumer for [\d.]+ s, until [\d.]+ s ago: .*WRONGTYPE", told
    )


def test_a_lease_whose_key_has_vanished_has_not_ended(rig: Rig, long_lease: Lease) -> None:
    """So nobody was given what its consumer held."""
    long_lease.cover(QUEUE)
    wait_until(lambda: not long_lease.may_have_ended(QUEUE, rig.store.now_ms()), 20, "it is renewed")
    rig.client.flushall()
    long_lease.cover(ANOTHER)
    wait_until(lambda: remaining_ms(rig) > 0, 20, "it is renewed again")
    assert not long_lease.may_have_ended(QUEUE, rig.store.now_ms())
    assert long_lease.may_have_ended(QUEUE, rig.store.now_ms() + 600_000)


def test_a_lease_that_had_ended_is_known_until_somebody_asks(rig: Rig, lease: Lease) -> None:
    lease.cover(QUEUE)
    wait_until(lambda: remaining_ms(rig) > 0, 20, "the lease begins")
    rig.client.delete(KEY)
    rig.client.set(KEY, "of the wrong type")
    end = rig.store.now_ms() + LEASE_MS
    wait_until(lambda: rig.store.now_ms() > end, 20, "the lease has ended")
    rig.client.delete(KEY)
    wait_until(lambda: remaining_ms(rig) > 0, 20, "it is renewed again")
    assert lease.may_have_ended(QUEUE, rig.store.now_ms())
    wait_until(lambda: not lease.may_have_ended(QUEUE, rig.store.now_ms()), 20, "that was told")


def test_who_only_gives_back_tells_it_as_it_happens(
    rig: Rig, lease: Lease, caplog: pytest.LogCaptureFixture
) -> None:
    """A caretaker takes nothing any more, and would tell it a minute later."""
    consumer = Consumer(rig.store, "me", lease, Options(), lambda *lost: None)
    rig.client.set(KEY, "of the wrong type")
    lease.cover(QUEUE)

    def told() -> int:
        consumer.give_back_all()
        return len(caplog.records)

    wait_until(told, 20, "the error is told")


def test_an_error_that_nobody_asked_for_is_told_at_the_end(
    rig: Rig, lease: Lease, caplog: pytest.LogCaptureFixture
) -> None:
    lease.cover(QUEUE)
    wait_until(lambda: remaining_ms(rig) > 0, 20, "the lease begins")
    before = rig.client.info("stats")["total_error_replies"]
    rig.client.set(KEY, "of the wrong type")
    wait_until(lambda: rig.client.info("stats")["total_error_replies"] > before, 20, "an error")
    lease.stop(server_of(rig))
    [record] = caplog.records
    assert KEY in record.getMessage()


def test_survives_the_loss_of_its_connection(rig: Rig, lease: Lease) -> None:
    lease.cover(QUEUE)
    wait_until(lambda: remaining_ms(rig) > 0, 20, "the lease begins")
    rig.client.client_kill_filter(skipme=True, _type="normal")
    end = rig.client.zscore(KEY, "me")
    wait_until(lambda: rig.client.zscore(KEY, "me") > end, 20, "the lease is renewed again")


class SlowMover(Mover):
    """Always needed, and its looks hang for a while."""

    is_needed = True

    def step(self) -> float:
        sleep(0.2)
        return 0.0


def test_a_look_that_hangs_does_not_make_a_renewal_late(rig: Rig) -> None:
    """A third of the lease may pass between two renewals, and a look may hang for as long."""
    lease_ms = 12_000
    server = server_of(rig)
    lease = Lease(server, "me", LeasePolicy(lease_ms), SlowMover(Store(server, "", STEPS, SEPARATOR)))
    lease.cover(QUEUE)
    wait_until(lambda: remaining_ms(rig) > 0, 20, "the lease begins")
    try:
        wait_until(lambda: remaining_ms(rig) < lease_ms - 1000, 20, "it gets older")
        least = lease_ms * 1.0

        def renewed() -> bool:
            nonlocal least
            now = remaining_ms(rig)
            least = min(least, now)
            return now > least + 1000

        wait_until(renewed, 20, "it is renewed")
        assert least > lease_ms * 2 / 3 + 1000
    finally:
        lease.stop(server_of(rig))


def test_moves_what_is_due_between_renewals(rig: Rig) -> None:
    server = server_of(rig)
    mover = Mover(Store(server, "", STEPS, SEPARATOR))
    lease = Lease(server, "me", LeasePolicy(600_000), mover)
    lease.cover(QUEUE)
    rig.schedule("q", "due", 100)
    mover.queues = ("q",)
    wait_until(lambda: rig.ready("q") == ["due"], 20, "it is moved")
    lease.stop(server_of(rig))


class TestQueueThatExpires:
    TTL = 400

    def test_lives_as_long_as_the_lease(self, rig: Rig, lease: Lease) -> None:
        rig.client.lpush("q", "m")
        rig.client.pexpire("q", self.TTL)
        rig.client.hset(QUEUE.unacked("me"), "tag", "m")
        expires_at = rig.database.now_ms() + 3 * self.TTL
        lease.keep_alive(QUEUE, ["q"], self.TTL)
        wait_until(lambda: rig.database.now_ms() > expires_at, 20, "three times the time")
        assert rig.client.exists("q", QUEUE.unacked("me")) == 2
        lease.let_expire(QUEUE)
        wait_until(lambda: not rig.client.exists("q"), 20, "it expires")
        assert rig.client.exists(QUEUE.unacked("me")), "longer, so that others can give it back"
        wait_until(lambda: not rig.client.exists(QUEUE.unacked("me")), 20, "it expires, too")

    def test_is_kept_alive_as_soon_as_it_is_added(self, rig: Rig, long_lease: Lease) -> None:
        long_lease.cover(ANOTHER)
        wait_until(lambda: remaining_ms(rig, ANOTHER.consumers) > 0, 20, "the heartbeat waits")
        rig.client.lpush("q", "m")
        long_lease.keep_alive(QUEUE, ["q"], 60_000)
        wait_until(lambda: rig.client.pttl("q") > 0, 20, "it has a time to live")


def test_a_queue_that_is_added_is_covered_at_once(rig: Rig, long_lease: Lease) -> None:
    long_lease.cover(QUEUE)
    wait_until(lambda: remaining_ms(rig) > 0, 20, "the heartbeat waits")
    long_lease.cover(ANOTHER)
    wait_until(lambda: remaining_ms(rig, ANOTHER.consumers) > 0, 20, "it covers the other queue")
