"""The forwarder, in a thread of the test."""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator
from threading import Thread

import pytest

from kombu_redisdelay.broker.portions import MESSAGES_PER_CALL
from kombu_redisdelay.operations.access import Access
from kombu_redisdelay.operations.forwarder import LONGEST_WAIT, Forwarded, Forwarder
from tests.cli.site import QUEUE, Site, sort_by_key
from tools.harness.process import wait_until
from tools.harness.redis_server import RedisServer


@pytest.fixture
def start(server: RedisServer, site: Site) -> Iterator[Callable[[], list[Forwarded]]]:
    """Starts a forwarder with a connection of its own; returns what it will have forwarded."""
    running: list[tuple[Forwarder, Thread, Access]] = []

    def start() -> list[Forwarded]:
        access = Access(site.app)
        forwarded: list[Forwarded] = []
        forwarder = Forwarder(access.store, lambda: [QUEUE, "other"], forwarded.append)
        thread = Thread(target=forwarder.run)
        thread.start()
        running.append((forwarder, thread, access))
        return forwarded

    yield start
    # All of them first: each still waits for its BZPOPMIN.
    for forwarder, _, _ in running:
        forwarder.stop()
    for _, thread, access in running:
        thread.join(10)
        assert not thread.is_alive()
        access.close()


def _ready(site: Site, queue: str = QUEUE) -> int:
    return int(site.redis.llen(queue))


def _blocked(site: Site) -> int:
    return int(site.redis.info("clients")["blocked_clients"])


def test_what_is_due_becomes_ready_in_the_order_in_which_it_is_due(
    site: Site, start: Callable[[], object]
) -> None:
    ids = [site.send(countdown=3600) for _ in range(3)]
    for task_id, in_ms in zip(ids, (-10_000, -30_000, -20_000), strict=True):
        site.make_due(task_id, in_ms)
    later = site.send(countdown=3600)
    start()
    wait_until(lambda: _ready(site) == 3, 30, "that all are ready")
    taken = [site.redis.rpop(QUEUE) for _ in range(3)]
    assert [next(task_id for task_id in ids if task_id in message) for message in taken] == [
        ids[1],
        ids[2],
        ids[0],
    ]
    assert site.redis.zrange(site.store.keys(QUEUE).schedule, 0, -1) == [later]
    assert site.redis.hkeys(site.store.keys(QUEUE).messages) == [later]


def test_what_no_key_lists_any_more_is_listed_again(site: Site, start: Callable[[], object]) -> None:
    site.add_consumer("lost", 0, holds=1)
    site.send(countdown=3600, queue="forgotten")
    site.redis.delete(site.store.keys(QUEUE).consumers, "redisdelay:known-queues")
    start()
    wait_until(lambda: site.redis.zscore(site.store.keys(QUEUE).consumers, "lost") is not None, 30, "it")
    wait_until(lambda: "forgotten" in site.store.queues(), 30, "the queue")


def test_what_was_sorted_in_by_key_goes_back_without_a_worker(
    site: Site, start: Callable[[], object]
) -> None:
    site.text("fair", "-Q", QUEUE)
    sort_by_key(site, *"ab" * (MESSAGES_PER_CALL // 2 + 1))
    start()
    site.text("fair", "-Q", QUEUE, "--off")
    wait_until(lambda: _ready(site) == MESSAGES_PER_CALL + 2, 30, "that all are back")
    wait_until(lambda: "fair" not in site.text("stats"), 30, "that the queue is plain")


def test_a_message_goes_to_the_list_of_its_priority(site: Site, start: Callable[[], object]) -> None:
    site.make_due(site.send(countdown=3600, priority=6), -10)
    start()
    wait_until(lambda: site.redis.llen(site.store.keys(QUEUE).ready_at(6)) == 1, 30, "that it is ready")


def test_a_backlog_is_moved_in_bounded_steps(site: Site, start: Callable[[], list[Forwarded]]) -> None:
    count = 2 * MESSAGES_PER_CALL + 1
    keys = site.store.keys(QUEUE)
    site.redis.zadd(keys.schedule, {str(n): 1 for n in range(count)})
    site.redis.hset(keys.messages, mapping={str(n): "0:{}" for n in range(count)})
    forwarded = start()
    wait_until(lambda: _ready(site) == count, 30, "that all are ready")
    wait_until(lambda: sum(f.messages for f in forwarded) == count, 30, "that all are told")
    assert max(f.messages for f in forwarded) == MESSAGES_PER_CALL


def test_a_message_that_is_due_before_the_one_waited_for_is_in_time(
    site: Site, start: Callable[[], list[Forwarded]]
) -> None:
    site.send(countdown=3600)
    forwarded = start()
    wait_until(lambda: _blocked(site) == 1, 30, "that it waits for a token")
    for _ in range(5):
        before = len(forwarded)
        site.send(countdown=0.05)
        wait_until(lambda: len(forwarded) > before, 30, "that it is forwarded")  # noqa: B023
    # Whoever only looked now and then would do so at the end of LONGEST_WAIT each time.
    assert min(f.lateness for f in forwarded) < LONGEST_WAIT / 2


def test_any_number_may_run(site: Site, start: Callable[[], list[Forwarded]]) -> None:
    told = [start() for _ in range(3)]
    for _ in range(50):
        site.send(countdown=0.2)
    wait_until(lambda: _ready(site) == 50, 30, "that all are ready")
    wait_until(lambda: sum(f.messages for some in told for f in some) == 50, 30, "that all are told")
    assert site.redis.zcard(site.store.keys(QUEUE).schedule) == 0


def test_the_tokens_of_consumers_are_left_to_them(site: Site, start: Callable[[], object]) -> None:
    site.add_consumer("alive", 60_000)
    site.add_consumer("alive", 60_000, queue="other")
    start()
    site.make_due(site.send(countdown=3600), -10)
    wait_until(lambda: _ready(site) == 1, 30, "that it is forwarded")
    # Nobody of us blocks on it, so it stays for the consumer.
    assert site.redis.zrange(site.store.keys(QUEUE).wake, 0, -1) == ["1"]
    assert _blocked(site) == 0


def test_a_token_taken_while_a_consumer_came_is_passed_on(site: Site, start: Callable[[], object]) -> None:
    start()
    wait_until(lambda: _blocked(site) == 1, 30, "that it waits for a token")
    site.add_consumer("alive", 60_000)
    site.send()
    wait_until(lambda: site.redis.zcard(site.store.keys(QUEUE).wake) == 1, 30, "that the token is back")


def test_without_a_consumer_no_token_is_left_that_wakes_forwarders_for_ever(
    site: Site, start: Callable[[], object]
) -> None:
    start()
    site.send()
    site.send(countdown=0.05)
    wait_until(lambda: _ready(site) == 2, 30, "that both are ready")
    wait_until(lambda: _blocked(site) == 1, 30, "that it waits for a token")
    assert site.redis.exists(site.store.keys(QUEUE).wake) == 0


def test_an_id_without_a_message_is_skipped_and_said(
    site: Site, start: Callable[[], object], caplog: pytest.LogCaptureFixture
) -> None:
    site.redis.zadd(site.store.keys(QUEUE).schedule, {"nothing": 1})
    start()
    wait_until(lambda: site.redis.zcard(site.store.keys(QUEUE).schedule) == 0, 30, "that it is gone")
    wait_until(lambda: "Skipped 1 scheduled id(s)" in caplog.text, 30, "that it is said")


def test_ready_lists_of_a_queue_that_expires_expire(site: Site, start: Callable[[], object]) -> None:
    site.make_due(site.send(countdown=3600), -10)
    keys = site.store.keys(QUEUE)
    site.redis.pexpire(keys.schedule, 600_000)
    start()
    wait_until(lambda: _ready(site) == 1, 30, "that it is ready")
    assert 0 < site.redis.pttl(keys.ready) <= 600_000


def test_redis_may_go_and_come_back(site: Site, start: Callable[[], object]) -> None:
    start()
    wait_until(lambda: _blocked(site) == 1, 30, "that it waits for a token")
    for kind in ("normal", "pubsub"):
        site.redis.execute_command("CLIENT", "KILL", "TYPE", kind, "SKIPME", "yes")
    site.make_due(site.send(countdown=3600), -10)
    wait_until(lambda: _ready(site) == 1, 30, "that it is forwarded")


def test_a_queue_that_is_broken_does_not_stop_the_others(
    site: Site, start: Callable[[], object], caplog: pytest.LogCaptureFixture
) -> None:
    broken, whole = site.send(countdown=3600), site.send(countdown=3600, queue="other")
    site.redis.set(QUEUE, "")
    site.make_due(broken, -10)
    start()
    wait_until(lambda: "Cannot forward queue" in caplog.text, 30, "that it is said")
    site.make_due(whole, -10, "other")
    wait_until(lambda: _ready(site, "other") == 1, 30, "that the other queue is forwarded")
    assert site.redis.zrange(site.store.keys(QUEUE).schedule, 0, -1) == [broken]
    site.redis.delete(QUEUE)
    wait_until(lambda: _ready(site) == 1, 30, "that it is forwarded once that is mended")
    assert caplog.text.count("Cannot forward queue") == 1


def test_a_round_in_which_all_queues_fail_does_not_succeed(site: Site) -> None:
    site.make_due(site.send(countdown=3600), -10)
    site.redis.set(QUEUE, "")
    access = Access(site.app)
    forwarder = Forwarder(access.store, lambda: [QUEUE], lambda forwarded: None)
    thread = Thread(target=forwarder.run)
    thread.start()
    try:
        wait_until(lambda: forwarder.failing_for > 2 * LONGEST_WAIT, 30, "that it fails for a while")
        site.redis.delete(QUEUE)
        wait_until(lambda: forwarder.failing_for < LONGEST_WAIT, 30, "that it succeeds")
    finally:
        forwarder.stop()
        thread.join(10)
        access.close()


def test_a_queue_that_fails_beside_others_is_no_failure(site: Site) -> None:
    site.make_due(site.send(countdown=3600), -10)
    site.redis.set(QUEUE, "")
    access = Access(site.app)
    forwarder = Forwarder(access.store, lambda: [QUEUE, "other"], lambda forwarded: None)
    thread = Thread(target=forwarder.run)
    thread.start()
    try:
        with pytest.raises(TimeoutError):
            wait_until(lambda: forwarder.failing_for > 2 * LONGEST_WAIT, 30, "that it fails for a while")
    finally:
        forwarder.stop()
        thread.join(10)
        access.close()


@pytest.mark.parametrize("odd", [["another key", "1", 1.0], [b"\xff", b"1", b"1"]], ids=["text", "bytes"])
def test_it_goes_on_waiting_for_tokens_after_an_odd_reply(
    site: Site, odd: list[object], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    access = Access(site.app)
    replies = [odd]
    call_apart = access.store.server.call_apart
    monkeypatch.setattr(
        access.store.server,
        "call_apart",
        lambda *command: replies.pop() if replies else call_apart(*command),
    )
    forwarder = Forwarder(access.store, lambda: [QUEUE], lambda forwarded: None)
    thread = Thread(target=forwarder.run)
    thread.start()
    try:
        site.send(countdown=3600)
        wait_until(lambda: not replies and _blocked(site) == 1, 30, "that it waits for a token")
    finally:
        forwarder.stop()
        thread.join(10)
        access.close()
    assert [each.message for each in caplog.records if each.levelno == logging.ERROR] == [
        "Cannot wait for tokens of queues without a worker, trying on"
    ]


def test_it_stops_without_an_error_while_redis_hangs(site: Site, server: RedisServer) -> None:
    errors: list[object] = []
    access = Access(site.app)
    forwarder = Forwarder(access.store, lambda: [QUEUE], lambda forwarded: None)
    thread = Thread(target=forwarder.run)
    before = threading.excepthook
    threading.excepthook = errors.append
    try:
        site.send(countdown=3600)
        thread.start()
        wait_until(lambda: _blocked(site) == 1, 30, "that it waits for a token")
        os.kill(server.pid, signal.SIGSTOP)
        forwarder.stop()
        thread.join(10)
        access.close()
        for taker in threading.enumerate():
            if taker.name == "redisdelay-forwarder-tokens":
                taker.join(20)
        assert errors == []
    finally:
        os.kill(server.pid, signal.SIGCONT)
        threading.excepthook = before
