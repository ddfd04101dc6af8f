"""Celery's acks and rejects are done where they are called: the seam, and what must not be lost there."""

from __future__ import annotations

import subprocess
import sys
from threading import Thread
from types import SimpleNamespace
from typing import Any

import pytest
from vine import promise

from kombu_redisdelay.transport import orphan_keeper, settling
from tests.transport.kit import Inbox, Site, drain, publish


class Interrupted(BaseException):
    """What a time limit of gevent raises wherever the greenlet waits."""


class Loop:
    """The part of Celery's consumer that we use.

    Attributes:
        later: what was left to it.
    """

    def __init__(self, hub: object = None) -> None:
        self.hub = hub
        self.later: list[Any] = []

    def call_soon(self, call: Any, *args: Any) -> None:
        self.later.append((call, args))

    def perform(self) -> None:
        for call, args in self.later:
            call(*args)


@pytest.fixture
def held(site: Site) -> Any:
    """A message that Celery has received."""
    channel = site.channel()
    publish(channel, "a")
    inbox = Inbox(channel, prefetch=1)
    drain(channel.connection.client, lambda: len(inbox) == 1)
    return inbox.messages[0]


def received(consumer: Loop, message: Any) -> SimpleNamespace:
    """The request that Celery makes of it."""
    request = SimpleNamespace(
        on_ack=promise(consumer.call_soon, (message.ack_log_error,)),
        on_reject=promise(consumer.call_soon, (message.reject_log_error,)),
    )
    settling.settle_where_called(request, message, consumer)
    return request


def in_a_thread(do: Any, *args: Any) -> None:
    thread = Thread(target=do, args=args)
    thread.start()
    thread.join()


def test_an_ack_is_written_when_it_returns(held: Any, site: Site) -> None:
    for run in (in_a_thread, lambda do, *args: do(*args)):
        consumer = Loop()
        run(received(consumer, held).on_ack, None, ())
        assert held.acknowledged
        assert (consumer.later, site.unacked()) == ([], 0)


def test_a_task_does_not_wait_for_a_connection(held: Any, site: Site) -> None:
    consumer = Loop()
    held.channel.consumer.disconnect()
    request = received(consumer, held)
    in_a_thread(request.on_ack, None, ())
    assert (len(consumer.later), held.acknowledged) == (1, False)
    # The loop comes to it at once.
    held.channel.connection.client.drain_events(timeout=30)
    consumer.perform()
    assert held.acknowledged
    assert site.unacked() == 0
    # A second one, after a time limit, does no harm.
    consumer.perform()


@pytest.mark.parametrize(("hub", "at_once"), [(None, False), (object(), True)])
def test_a_greenlet_leaves_a_reject_to_the_loop(held: Any, site: Site, hub: object, at_once: bool) -> None:
    consumer = Loop(hub)
    in_a_thread(received(consumer, held).on_reject, None, (), True)
    assert held.acknowledged is at_once
    consumer.perform()
    assert held.acknowledged
    assert (site.unacked(), site.ready() + site.scheduled()) == (0, 1)


def test_what_a_time_limit_interrupts_is_left_to_the_loop(
    held: Any, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(tag: str) -> bool:
        raise Interrupted

    consumer = Loop()
    request = received(consumer, held)
    caught: list[bool] = []

    def task() -> None:
        try:
            request.on_ack(None, ())
        except Interrupted:
            caught.append(True)

    with monkeypatch.context() as patch:
        patch.setattr(held.channel.qos, "can_ack_at_once", interrupt)
        in_a_thread(task)
    assert caught == [True]
    consumer.perform()
    assert site.unacked() == 0


def test_an_ack_that_is_interrupted_is_sent_again(
    held: Any, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And nothing follows what was written of it over the same connection."""
    held.channel.consumer.confirm_acks()
    server = held.channel.store.server
    line = server.server_of(site.keys().unacked(held.channel.consumer.name)).line
    connection = line.connection
    whole = connection.send_packed_command

    def half(command: Any, **options: Any) -> None:
        packed = b"".join([command] if isinstance(command, bytes) else command)
        whole([packed[: len(packed) // 2]], **options)
        raise Interrupted

    with monkeypatch.context() as patch:
        patch.setattr(connection, "send_packed_command", half)
        with pytest.raises(Interrupted):
            held.ack()
    assert held.channel.qos.can_consume()
    assert site.unacked() == 0


def test_an_error_is_told(held: Any, caplog: pytest.LogCaptureFixture, monkeypatch: Any) -> None:
    def fail(*args: Any) -> None:
        raise RuntimeError("no such luck")

    request = received(Loop(), held)
    monkeypatch.setattr(held.channel.qos, "ack", fail)
    request.on_ack(None, ())
    assert "Could not settle message" in caplog.text
    assert "no such luck" in caplog.text


def test_another_shape_is_left_alone(held: Any) -> None:
    request = SimpleNamespace(on_ack=held.ack_log_error, on_reject=promise(print, ("x",)))
    settling.settle_where_called(request, held, None)
    assert request.on_ack == held.ack_log_error
    assert request.on_reject.fun is print


SEAM = """
import sys
from threading import Event
from celery import Celery, signals
from celery.contrib.testing.worker import start_worker
from kombu_redisdelay.transport import settling

app = Celery("settling", broker=sys.argv[1])
app.conf.task_ignore_result = True
@app.task(name="nothing")
def nothing():
    pass
seen, has_ended = [], Event()
signals.task_received.connect(lambda request, **kwargs: seen.append(request), weak=False)
signals.task_success.connect(lambda **kwargs: has_ended.set(), weak=False)
with start_worker(app, perform_ping_check=False):
    nothing.delay()
    assert has_ended.wait(30)
[request] = seen
assert request.on_ack.fun.func is settling._ack, request.on_ack
assert request.on_reject.fun.func is settling._reject, request.on_reject
"""


@pytest.mark.one_server
def test_celery_has_the_seam(site: Site) -> None:
    """A test that fails here tells that Celery has moved it: then acks are late again."""
    result = subprocess.run(
        [sys.executable, "-c", SEAM, site.url], capture_output=True, text=True, timeout=120, check=False
    )
    assert result.returncode == 0, result.stderr


def test_what_waits_for_the_loop_is_kept_while_the_connection_is_lost(site: Site) -> None:
    """The task has ended, and nobody has the message but what the loop is to do. If it came back, the task
    would run again."""
    channel = site.channel()
    publish(channel, "a")
    inbox = Inbox(channel, prefetch=1)
    drain(channel.connection.client, lambda: len(inbox) == 1)
    consumer = Loop()
    channel.consumer.disconnect()
    in_a_thread(received(consumer, inbox.messages.pop()).on_ack, None, ())
    assert consumer.later
    messages = channel.qos.release()
    assert orphan_keeper._in_use(messages) == set(messages) != set()
    consumer.perform()
    assert (len(messages), site.unacked()) == (0, 0)
