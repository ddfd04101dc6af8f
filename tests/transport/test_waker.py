"""Who makes room from another thread ends the poll, once for many messages."""

from __future__ import annotations

from collections.abc import Callable
from threading import Thread
from typing import Any

import pytest
from kombu.asynchronous import Hub

from kombu_redisdelay.transport import poller
from kombu_redisdelay.transport.waker import Waker
from tests.transport.kit import LONG_POLL, PATIENCE, Inbox, Site, drain, publish


@pytest.fixture
def long_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    """A poll that nothing ends outlasts the test."""
    monkeypatch.setattr(poller, "LONGEST_POLL", LONG_POLL)


def during_a_poll(channel: Any, do: Callable[[], object]) -> Thread:
    """Have another thread *do* something when the next poll begins that waits."""
    thread = Thread(target=do)
    polled = channel.connection.cycle.poller
    poll = polled.poll

    def polls(timeout: float) -> Any:
        if timeout and thread.ident is None:
            thread.start()
        return poll(timeout)

    polled.poll = polls
    return thread


@pytest.mark.usefixtures("long_polls")
@pytest.mark.parametrize("how", ["ack", "reject"])
def test_room_ends_a_poll(site: Site, how: str) -> None:
    channel = site.channel()
    connection = channel.connection.client
    publish(channel, "a", "b")
    inbox = Inbox(channel, prefetch=1)
    drain(connection, lambda: len(inbox) == 1)
    thread = during_a_poll(channel, getattr(inbox.messages[0], how))
    drain(connection, lambda: len(inbox) == 2, each=PATIENCE)
    thread.join()


@pytest.mark.usefixtures("long_polls")
def test_an_interrupt_lets_drain_events_return(site: Site) -> None:
    channel = site.channel()
    Inbox(channel)
    cycle = channel.connection.cycle
    thread = during_a_poll(channel, cycle.interrupt)
    channel.connection.client.drain_events(timeout=PATIENCE)
    thread.join()
    # Also one that came before the poll, and only once.
    cycle.interrupt()
    channel.connection.client.drain_events(timeout=PATIENCE)
    with pytest.raises(TimeoutError):
        channel.connection.client.drain_events(timeout=0.01)


@pytest.mark.usefixtures("long_polls")
def test_room_that_no_ack_makes_is_noticed(site: Site) -> None:
    """As with ``worker_disable_prefetch``: room is where no task runs, acked or not."""
    channel = site.channel()
    publish(channel, "a")
    inbox = Inbox(channel)
    room: list[bool] = []
    channel.qos.can_consume = lambda: bool(room)
    thread = during_a_poll(channel, lambda: room.append(True))
    drain(channel.connection.client, lambda: len(inbox) == 1, each=PATIENCE)
    thread.join()


def test_many_messages_wake_once(site: Site) -> None:
    channel = site.channel()
    publish(channel, *"abcd")
    inbox = Inbox(channel, prefetch=4)
    drain(channel.connection.client, lambda: len(inbox) == 4)
    cycle = channel.connection.cycle
    cycle.on_poll_start()
    assert cycle._is_short_of_room

    def ack_all() -> None:
        for message in inbox.messages:
            message.ack()

    thread = Thread(target=ack_all)
    thread.start()
    thread.join()
    assert cycle._waker._reader.recv(64) == b"\0"


def test_the_event_loop_is_woken(site: Site) -> None:
    connection = site.connect()
    channel = connection.channel()
    hub = Hub()
    connection.register_with_event_loop(hub)
    publish(channel, "a")
    Inbox(channel, prefetch=1)
    cycle = channel.connection.cycle
    cycle.on_poll_start()
    fd = cycle._waker.fd
    assert fd in hub.readers
    thread = Thread(target=cycle.interrupt)
    thread.start()
    thread.join()
    assert fd in [ready for ready, _ in hub.poller.poll(PATIENCE)]
    connection.release()
    assert fd not in hub.readers


def test_a_waker_is_set_until_it_is_cleared() -> None:
    waker = Waker()
    for _ in range(2):
        waker.wake()
        waker.wake()
        assert waker._reader.recv(64, 2) == b"\0"  # MSG_PEEK
        waker.clear()
        with pytest.raises(BlockingIOError):
            waker._reader.recv(64)
    waker.close()
    waker.wake()
    waker.clear()


def test_a_poll_may_be_interrupted_while_it_is_closed() -> None:
    """A task's thread interrupts it, to have its ack sent. If that was an error, the task did not begin, and
    its message stayed held."""

    class Closing(poller.Poller):
        """Is closed by another thread between any two looks at the waker."""

        waker: Waker | None = None

        @property
        def _waker(self) -> Waker | None:
            waker, self.waker = self.waker, None
            return waker

        @_waker.setter
        def _waker(self, waker: Waker | None) -> None:
            self.waker = waker

    polled = Closing()
    polled.waker = waker = Waker()
    polled.interrupt()
    waker.close()
    polled.close()
