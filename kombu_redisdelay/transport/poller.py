"""Waits for messages of all channels of a connection, on kombu's event loop or without one.

Consumers block on the wake zsets of their queues. A script cannot block, and a blocking pop of messages
loses them. The poller itself keeps track of due times: with a timer of the event loop, or by limiting
the poll in drain_events. The server is not precise enough: its blocked clients time out up to 100 ms late.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from queue import Empty
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any

from kombu.transport import redis
from kombu.utils.eventio import READ

from kombu_redisdelay.transport.slot_fetcher import PAUSE, SlotFetcher
from kombu_redisdelay.transport.waker import Waker, stop_waking_on_signals

if TYPE_CHECKING:
    from kombu_redisdelay.transport.channel import Channel


#: Seconds that a poll may take too long: epoll counts in milliseconds and rounds up.
POLL_SLACK = 0.001

#: Seconds between two looks of the event loop at the servers and the queues, at least: whether the ones still
#: answer, and whether the others are to be maintained.
CHECK_EVERY = 0.01

#: Seconds that a wait may take too long. Redis answers up to 100 ms late, and machines are busy.
WAIT_SLACK = 0.2

#: The largest number of takes in one turn of the event loop, when one alarm follows the other.
TAKES_PER_TURN = 5

#: Seconds between two looks at a channel that may get room without an ack.
ROOM_UNNOTICED = 0.02

#: Seconds of deliveries after which the event loop has its turn.
LONGEST_TURN = 0.01

#: The longest poll of drain_events, in seconds. After it, drain_events checks everything again.
LONGEST_POLL = 1.0


@dataclass(slots=True)
class Alarm:
    """The time at which a channel has to take messages, even if no token wakes it.

    Attributes:
        at: seconds of the monotonic clock.
        timer: the timer of the event loop, ``None`` without an event loop.
    """

    at: float
    timer: Any = None

    def cancel(self) -> None:
        if self.timer is not None:
            self.timer.cancel()


class Poller(redis.MultiChannelPoller):
    """kombu's poller. It waits for wake-up tokens instead of messages, and has alarms for due times."""

    def __init__(self) -> None:
        super().__init__()
        self._pid = os.getpid()
        #: The event loop, ``None`` until the transport is registered with one.
        self.hub: Any = None
        #: The callbacks that the event loop calls for this poller in each round.
        self.on_tick: set[Any] = set()
        self._alarms: dict[Channel, Alarm] = {}
        self._had_alarm = False
        #: Whether a timer is running that ends a pause, and whether a fetcher waits for that.
        self._is_pausing = self._is_patient = False
        #: Channels that are not done with maintaining their queues. A timer of the event loop continues it.
        self._looking_after: set[Channel] = set()
        self._is_busy = False
        self._checked_at = float("-inf")
        self._turns: list[Channel] = []
        self._waker: Waker | None = None
        #: What polls the waker: the event loop, or `poller`.
        self._polls_waker: Any = None
        #: The thread or greenlet that polls.
        self._user = 0
        #: Whether a channel has no room for messages, so that a message that is settled makes some.
        self._is_short_of_room = False
        #: Whether there may be room without any message being settled.
        self._may_miss_room = False
        self._is_looking_again = False
        self._is_interrupted = False
        self._is_over = False

    @property
    def is_mine(self) -> bool:
        """Whether the thread or greenlet that calls this is the one that polls."""
        return self._user == threading.get_ident()

    def room_was_made(self) -> None:
        """A message was settled. If another thread polls because there was no room, its poll ends."""
        if self._is_short_of_room and not self.is_mine:
            self._is_short_of_room = False
            self._wake()

    def interrupt(self) -> None:
        """Let the thread that polls do something else: ``drain_events`` returns. Any thread may call this."""
        self._is_interrupted = True
        self._wake()

    def deliver_nothing_more(self) -> None:
        """The worker that polls is told to stop: ``drain_events`` returns at once from now on. A signal
        handler may call this."""
        self._is_over = True
        self.interrupt()

    def _wake(self) -> None:
        # Read once: another thread may be closing it.
        waker = self._waker
        if waker is not None:
            waker.wake()

    def _be_wakeable(self) -> None:
        # A forked child shares the waker with its parent, and must not read what is for the parent.
        if self._pid != os.getpid():
            return
        self._user = threading.get_ident()
        if self._waker is None:
            self._waker = Waker()
        polls = self.poller if self.hub is None else self.hub
        if self._polls_waker is not polls:
            self._polls_waker = polls
            if self.hub is None:
                self.poller.register(self._waker.fd, READ)
            else:
                self.hub.add_reader(self._waker.fd, self._waker.clear)
        self._waker.clear()

    def _close_waker(self) -> None:
        waker, self._waker = self._waker, None
        if waker is None:
            return
        # select does not forget a socket that is closed. A forked child shares epoll with its parent.
        if self._pid == os.getpid():
            with suppress(OSError, KeyError, ValueError):
                forget = self.poller.unregister if self.hub is None else self.hub.remove
                forget(waker.fd)
        waker.close()

    def add(self, channel: Channel) -> None:
        super().add(channel)
        self._turns.append(channel)

    def discard(self, channel: Channel) -> None:
        super().discard(channel)
        if channel in self._turns:
            self._turns.remove(channel)
        self._looking_after.discard(channel)
        self._cancel_alarm(channel)

    def close(self) -> None:
        for channel in list(self._alarms):
            self._cancel_alarm(channel)
        self._turns.clear()
        self._close_waker()
        if self.hub is not None:
            self.hub.on_tick -= self.on_tick
            stop_waking_on_signals(self.hub, self)
        if self._pid == os.getpid():
            super().close()

    def _on_connection_disconnect(self, connection: Any) -> None:
        """Stop polling the socket that *connection* had. Its next socket is polled from the next wait on."""
        # A forked child shares epoll with its parent, and the parent still polls.
        if self._pid != os.getpid():
            return
        super()._on_connection_disconnect(connection)
        for key in [key for key in self._chan_to_sock if key[1].connection is connection]:
            del self._chan_to_sock[key]
            channel, _, kind = key
            for fd in [fd for fd, served in self._fd_to_chan.items() if served == (channel, kind)]:
                del self._fd_to_chan[fd]
                # epoll forgets a socket that is closed. select does not, and eventlet has nothing else: with
                # a socket in it that is closed, eventlet confuses the others.
                with suppress(OSError):
                    self.poller.unregister(fd)
                if self.hub is not None:
                    self.hub.remove(fd)

    def on_poll_start(self) -> None:
        """Make sure that every channel that may consume has asked for messages."""
        self._had_alarm = False
        self._is_busy = False
        self._be_wakeable()
        # Before looking for room: what makes room after that ends the poll.
        self._is_short_of_room = True
        is_short = self._may_miss_room = self._is_patient = False
        now = monotonic()
        is_time_to_check = now - self._checked_at >= CHECK_EVERY
        if is_time_to_check:
            self._checked_at = now
        for channel in list(self._channels):
            if is_time_to_check:
                channel.check()
            if channel.active_queues:
                if (is_time_to_check or self._in_protected_read) and channel not in self._looking_after:
                    self._look_after_queues(channel)
                if self._in_protected_read:
                    self._ask(channel)
                else:
                    self._deliver(channel)
                    if not channel.intake.has_asked:
                        self._ask(channel)
                if not channel.qos.can_consume():
                    is_short = True
                    self._may_miss_room |= channel.intake.is_told_by_application
            if channel.active_fanout_queues:
                self._register_LISTEN(channel)
        self._is_short_of_room = is_short
        if self._may_miss_room and self.hub is not None and not self._is_looking_again:
            # Another turn of the event loop looks again. This timer causes it.
            self._is_looking_again = True
            self.hub.call_later(ROOM_UNNOTICED, self._look_again)

    def _look_again(self) -> None:
        self._is_looking_again = False

    def _look_after_queues(self, channel: Channel) -> None:
        """Maintain the queues of *channel*. Each turn makes only one round trip, so that messages do not
        wait for it."""
        self._looking_after.discard(channel)
        if channel not in self._channels or not channel.look_after_queues():
            return
        if self.hub is None or self._in_protected_read:
            self._is_busy = True
        else:
            self._looking_after.add(channel)
            self.hub.call_later(PAUSE, self._look_after_queues, channel)

    def on_readable(self, fileno: int) -> None:
        """Read what the server sent to a channel. On the event loop, also deliver it."""
        channel, kind = self._fd_to_chan.get(fileno, (None, None))
        if channel is None:
            # The waker, or a connection that was closed.
            return
        if kind == "LISTEN":
            super().on_readable(fileno)
        elif kind.is_waiting:
            # Also without credit: the take passes the wake-up on to a consumer that has credit.
            self._received(channel, channel.intake.answer(kind))
        else:
            # No reply was expected, so the server has closed the connection. The next wait opens it again.
            kind.client.connection.disconnect()

    def get(self, callback: Callable[..., Any], timeout: float | None = None) -> None:
        """Deliver one message, for ``drain_events``.

        Raises:
            Empty: no message came within *timeout* seconds, or another event ended the wait early.
        """
        if self._is_over:
            return
        self._in_protected_read = True
        try:
            if self._deliver_one():
                return
            self._maintain()
            self.on_poll_start()
            heard_fanout = False
            # Poll even if there is a message to deliver: otherwise, a busy channel makes the others wait.
            for fileno, event in self.poller.poll(self._poll_timeout(timeout)) or ():
                heard_fanout |= self._fd_to_chan.get(fileno, (None, None))[1] == "LISTEN"
                self.handle_event(fileno, event)
            for channel in [c for c, alarm in self._alarms.items() if alarm.at - POLL_SLACK <= monotonic()]:
                self._on_alarm(channel)
            if not self._deliver_one() and not heard_fanout and not self._is_interrupted:
                raise Empty
            self._is_interrupted = False
        finally:
            self._in_protected_read = False
            while self.after_read:
                self.after_read.pop()()

    def set_alarm(self, channel: Channel, next_due: float | None) -> None:
        """Let *channel* take messages in *next_due* seconds, unless its next wait ends before that anyway."""
        if next_due is None or next_due > channel.brpop_timeout + 1:
            return
        at = monotonic() + next_due
        alarm = self._alarms.get(channel)
        if alarm is not None and alarm.at <= at:
            return
        self._cancel_alarm(channel)
        timer = self.hub and self.hub.call_later(max(0.0, next_due - POLL_SLACK), self._on_alarm, channel)
        self._alarms[channel] = Alarm(at, timer)

    def _cancel_alarm(self, channel: Channel) -> None:
        alarm = self._alarms.pop(channel, None)
        if alarm is not None:
            alarm.cancel()

    def _on_alarm(self, channel: Channel) -> None:
        if self._had_alarm and self.hub is not None:
            # kombu's hub fires up to ten timers in a turn. After ten, it polls for a second, even if another
            # timer is due before that. So there is one alarm in a turn; the others are put off.
            self._cancel_alarm(channel)
            self.set_alarm(channel, 2 * POLL_SLACK)
            return
        self._had_alarm = True
        for _ in range(TAKES_PER_TURN):
            alarm = self._alarms.get(channel)
            if alarm is None or alarm.at - monotonic() > POLL_SLACK:
                break
            # The timer may be up to a millisecond early. Sleep for the rest.
            sleep(max(0.0, alarm.at - monotonic()))
            self._cancel_alarm(channel)
            if channel in self._channels and channel.active_queues:
                # Also without credit: the take moves due messages and wakes a consumer that has credit.
                self._received(channel, channel.intake.take_due())

    def _ask(self, channel: Channel) -> None:
        attends = True
        for fetcher in channel.intake.fetchers_in_order:
            fetcher.see_that_poll_is_open()
            if not channel.qos.can_consume():
                # A fetcher that waits learns of new messages by its reply.
                if not fetcher.is_waiting:
                    fetcher.expects_more = True
                    attends = False
            elif fetcher.queues and not fetcher.is_resting:
                self._ask_for_messages(channel, fetcher)
        # The event loop turns when the answers come.
        longest = LONGEST_POLL if self._in_protected_read else channel.intake.longest_wait
        channel.intake.attend(longest + WAIT_SLACK if attends else 0.0)

    def _ask_for_messages(self, channel: Channel, fetcher: SlotFetcher) -> None:
        intake = channel.intake
        if not self._in_protected_read:
            # Only wait for more room while a timer is running that ends the wait. Nothing else may wake us.
            if not fetcher.is_waiting and self._is_pausing and intake.is_patient(fetcher):
                self._is_patient = True
            elif fetcher.is_waiting or not intake.has_no_room(fetcher):
                self._poll(channel, fetcher)
        else:
            # drain_events may block, so a take can wait for its reply. Messages are likely to be there.
            if fetcher.expects_more and not intake.can_deliver:
                self._received(channel, intake.take(fetcher))
            if not intake.can_deliver and not fetcher.is_resting:
                self._poll(channel, fetcher)

    def _poll(self, channel: Channel, fetcher: SlotFetcher) -> None:
        """Poll the connection of *fetcher*, and ask over it, unless a reply is expected."""
        client = channel.intake.client_of(fetcher)
        if not self._client_registered(channel, client, fetcher):
            self._register(channel, client, fetcher)
        if not fetcher.is_waiting:
            channel.intake.ask(fetcher)

    def _received(self, channel: Channel, next_due: float | None) -> None:
        self.set_alarm(channel, next_due)
        if not self._in_protected_read:
            self._deliver(channel)
            if channel.intake.expects_more and not self._is_pausing:
                self._pause()

    def _deliver(self, channel: Channel) -> None:
        """Deliver the messages that were taken, on the event loop.

        In a solo worker, a delivery runs the task. Before the next one, Celery must see that it is to end.
        """
        intake = channel.intake
        if not intake.can_deliver:
            return
        intake.attend_nothing()
        until = monotonic() + LONGEST_TURN
        while intake.can_deliver and not self._is_over:
            intake.deliver_one()
            if monotonic() > until:
                # The next turn delivers the rest, at once.
                self._wake()
                return

    def _after_pause(self) -> None:
        self._is_pausing = False
        if self._is_patient:
            self._pause()

    def _pause(self) -> None:
        """See to another turn of the event loop, which asks for more messages."""
        self._is_pausing = True
        self.hub.call_later(PAUSE, self._after_pause)

    def _deliver_one(self) -> bool:
        """Deliver one message that was taken, of the channel whose last turn was the longest ago."""
        for channel in self._turns:
            if channel.intake.can_deliver:
                if len(self._turns) > 1:
                    self._turns.remove(channel)
                    self._turns.append(channel)
                channel.intake.attend_nothing()
                channel.intake.deliver_one()
                return True
        return False

    def _poll_timeout(self, timeout: float | None) -> float:
        """Seconds to poll: *timeout*, but not past the next alarm and not longer than
        :data:`LONGEST_POLL`."""
        if (
            self._is_busy
            or self._is_interrupted
            or any(channel.intake.can_deliver for channel in self._turns)
        ):
            return 0.0
        now = monotonic()
        limits = [LONGEST_POLL, *(alarm.at - POLL_SLACK - now for alarm in self._alarms.values())]
        if self._may_miss_room:
            limits.append(ROOM_UNNOTICED)
        if timeout is not None:
            limits.append(timeout)
        return max(0.0, min(limits))

    def _maintain(self) -> None:
        """Do what kombu does from timers of the event loop: drain_events has no event loop."""
        for check in ("maybe_refresh_binding_expiry", "maybe_check_brpop_health", "maybe_reauth"):
            if hasattr(self, check):  # kombu 5.7
                getattr(self, check)()
