"""The messages of a channel: from the broker, until they are delivered."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple

from kombu.transport import virtual

from kombu_redisdelay.broker.delivery import Delivery, Request, Taken
from kombu_redisdelay.broker.server.server import SlotUnavailable
from kombu_redisdelay.transport.lane import Lane
from kombu_redisdelay.transport.receive import Received, receive
from kombu_redisdelay.transport.tasks import is_exit, note_end_of_the_loop

if TYPE_CHECKING:
    from kombu_redisdelay.transport.channel import Channel

#: Seconds between two checks that the server has received the acks.
CONFIRM_AFTER = 1.0

#: A message that must be held alone waits until all others are settled, but at most for this many seconds.
ISOLATION_PATIENCE = 2.0


class Waiting(NamedTuple):
    """A message that was taken and waits to be delivered.

    Attributes:
        waits_until: ``None`` for most messages. For a message to isolate: when to stop waiting, and
            to deliver it although others are unacked; seconds of the monotonic clock.
    """

    delivery: Delivery
    message: virtual.Message
    waits_until: float | None


class Intake:
    """Takes messages from the broker for a channel, and delivers them. A lane asks for them: there is one for
    each slot of the queues, so there is one with a single Redis."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._callbacks: dict[str, Callable[[virtual.Message], Any]] = {}
        self._no_ack_queues: set[str] = set()
        self._taken: deque[Waiting] = deque()
        self._confirmed_at = monotonic()
        #: For each slot, the lane of its queues.
        self._lanes: dict[int, Lane] = {}
        #: The lanes that expect a reply with messages.
        self.taking: set[Lane] = set()
        #: The queues that the lanes were made for.
        self._in_lanes: Sequence[str] = ()
        #: Those of them that are consumed from with acks.
        self._with_acks: Sequence[str] = ()
        #: The names of the tasks that the worker knows; ``None`` if it is no worker of Celery, or discards
        #: what it does not know.
        self.known_tasks: Collection[str] | None = None

    def consume(self, queue: str, no_ack: bool, callback: Callable[[virtual.Message], Any]) -> None:
        self._callbacks[queue] = callback
        self._no_ack_queues.discard(queue)
        if no_ack:
            self._no_ack_queues.add(queue)

    def cancel(self, queue: str) -> list[Delivery]:
        """Stop delivering from *queue*. Returns the messages of it that were taken and not delivered."""
        self._callbacks.pop(queue, None)
        self._no_ack_queues.discard(queue)
        return self.forget_queue(queue)

    def forget_queue(self, queue: str) -> list[Delivery]:
        """Drop the messages of *queue* that wait to be delivered, and return them."""
        taken = [waiting.delivery for waiting in self._taken if waiting.delivery.queue == queue]
        self._taken = deque(waiting for waiting in self._taken if waiting.delivery.queue != queue)
        return taken

    def cancel_all(self) -> list[Delivery]:
        """Drop all messages that wait to be delivered, and return them."""
        taken = [waiting.delivery for waiting in self._taken]
        self._taken.clear()
        return taken

    def count(self, queue: str) -> int:
        """The number of messages of *queue* that were taken and not delivered yet."""
        return sum(waiting.delivery.queue == queue for waiting in self._taken)

    # -- taking ----------------------------------------------------------------------------------------

    @property
    def can_deliver(self) -> bool:
        """Whether a message can be delivered now."""
        if not self._taken:
            return False
        waits_until = self._taken[0].waits_until
        return waits_until is None or not self._channel.qos.holds_any or monotonic() >= waits_until

    @property
    def has_one_to_isolate(self) -> bool:
        """Whether a message waits until no other message is held. It can only be the one taken last."""
        return bool(self._taken) and self._taken[-1].waits_until is not None

    @property
    def consumed(self) -> Collection[str]:
        """The queues that are consumed from."""
        return self._callbacks.keys()

    @property
    def lanes(self) -> Collection[Lane]:
        """The lanes of the queues that the channel consumes from."""
        queues = self._channel.active_queues
        if queues is not self._in_lanes:
            self._divide(queues)
        return self._lanes.values()

    @property
    def lanes_in_order(self) -> Collection[Lane]:
        """The same, in the order in which they may ask."""
        lanes = self.lanes
        if len(lanes) <= 1:
            return lanes
        order = self._channel._queue_cycle.consume(len(self._in_lanes))
        in_order = dict.fromkeys(self._lanes[self._channel.store.slot(queue)] for queue in order)
        return [*in_order, *(lane for lane in lanes if lane not in in_order)]

    @property
    def expects_more(self) -> bool:
        """Whether more messages are ready, or it is not known whether there are any."""
        return any(lane.expects_more for lane in self.lanes)

    @property
    def longest_wait(self) -> float:
        """Seconds after which each lane that waits has an answer, even if nothing comes."""
        timeout = self._channel.brpop_timeout
        return max((lane.longest_wait(timeout) for lane in self._lanes.values()), default=0.0)

    def attend(self, seconds: float) -> None:
        """Tell the mover that the lanes move what is due for so many seconds. With 0, they do not."""
        mover = self._channel.mover
        if mover is not None:
            mover.queues = self._with_acks
            mover.leave_it(seconds)

    def next_due(self) -> float | None:
        """Seconds until the next message is due, ``None`` if none is scheduled."""
        each = [due for lane in self._lanes.values() if (due := lane.next_due()) is not None]
        return min(each, default=None)

    def take_due(self) -> float | None:
        """Take messages where some are due, or have come without a token. Returns the same as
        :meth:`next_due`."""
        for lane in self.lanes:
            lane.take_due()
        return self.next_due()

    def finish_taking(self) -> None:
        """Read all replies with messages that are on their way."""
        for lane in self._lanes.values():
            if lane.is_taking:
                lane.answer()

    def close(self) -> None:
        """Close the poll connections. Replies that are still on their way are lost."""
        for lane in self._lanes.values():
            lane.close()

    @property
    def is_told_by_application(self) -> bool:
        """Whether the application has replaced ``can_consume`` of the channel's QoS, to decide before each
        message. Celery does so for ``worker_disable_prefetch``."""
        return "can_consume" in vars(self._channel.qos)

    def credit(self) -> int:
        """The number of messages that may be asked for now."""
        qos, max_batch = self._channel.qos, self._channel.options.max_batch
        if not qos.can_consume():
            return 0
        reserved = sum(lane.reserved for lane in self.taking) if len(self._lanes) > 1 else 0
        if self.is_told_by_application:
            return 0 if reserved else 1
        room: int | None = qos.can_consume_max_estimate()
        if room is None:
            return max_batch
        return max(0, min(max_batch, room - len(self._taken) - reserved))

    def no_ack_queues(self, queues: Collection[str]) -> Collection[str]:
        """Those of *queues* whose messages need no ack."""
        return frozenset(self._no_ack_queues) if self._channel.ack_emulation else queues

    def receive(self, taken: Taken) -> None:
        """Keep the messages that a take has brought, until they are delivered."""
        channel = self._channel
        wanted = [delivery for delivery in taken.deliveries if delivery.queue in self._callbacks]
        for delivery in wanted:
            channel._queue_cycle.rotate(delivery.queue)
        self._taken += map(self._waiting, self._messages(wanted, taken.now_ms))
        # These queues were cancelled while the reply was on its way.
        unwanted = [delivery for delivery in taken.deliveries if delivery.queue not in self._callbacks]
        channel.consumer.put_back(unwanted)

    def get(self, queue: str, no_ack: bool) -> virtual.Message | None:
        """Take one message of *queue*, if there is one."""
        consumer = self._channel.consumer
        self.finish_taking()
        for index, waiting in enumerate(self._taken):
            if waiting.delivery.queue == queue:
                del self._taken[index]
                self._hold(waiting, no_ack)
                return waiting.message
        no_acks = [queue] if self._without_acks(no_ack) else ()
        request = Request([queue], 1, no_ack=no_acks, comes_again=False)
        while True:
            taken = consumer.take(request)
            if not taken.deliveries:
                return None
            # There is more than one if the reply to an earlier, larger take was lost.
            consumer.put_back(taken.deliveries[1:])
            for received in self._messages(taken.deliveries[:1], taken.now_ms):
                self._hold(self._waiting(received), no_ack)
                return received.message

    def deliver_one(self) -> None:
        """Hand the next message that was taken to its callback."""
        waiting = self._taken.popleft()
        delivery = waiting.delivery
        self._hold(waiting, delivery.queue in self._no_ack_queues)
        if self._channel.mover is not None:
            # Until the lanes ask again. In a solo worker, the callback runs the task.
            self._channel.mover.leave_it(0.0)
        try:
            self._callbacks[delivery.queue](waiting.message)
        except BaseException as exc:
            if note_end_of_the_loop(exc):
                raise
            # Every exception counts: also one that kombu takes for a lost connection, or that ends the
            # process.
            if is_exit(exc) or not self._channel.connection.is_workers:
                self._channel.qos.fail(delivery.tag)
                raise
            self._channel.qos.has_failed(waiting.message)

    def settle(self) -> None:
        """Once a second, confirm the acks, and give back what the application has left.

        Raises:
            ConnectionError: the connection failed.
        """
        consumer, now = self._channel._consumer, monotonic()
        if consumer is None or now - self._confirmed_at <= CONFIRM_AFTER:
            return
        self._confirmed_at = now
        # What waits for a slot is done another time.
        with suppress(SlotUnavailable), self._channel.store.server.hurrying():
            consumer.confirm_acks()
            consumer.leave_cancelled()
            # The application has caught the exception of the callback and goes on consuming. It will not ack
            # these messages.
            for tag in consumer.long_failed():
                self._channel.qos.reject(tag, requeue=True)

    def check_silence(self, silence_limit: float) -> None:
        """Check that the servers answer. As :meth:`Lane.check_silence`."""
        for lane in self._lanes.values():
            lane.check_silence(silence_limit)

    def is_disconnected(self, connection: Any) -> None:
        """Note that *connection* was closed. It may be a poll connection."""
        for lane in self._lanes.values():
            lane.is_disconnected(connection)

    def _divide(self, queues: Sequence[str]) -> None:
        """Give each queue its lane."""
        self._in_lanes, no_ack = queues, self.no_ack_queues(queues)
        in_slots: dict[int, list[str]] = {}
        store = self._channel.store
        for queue in queues:
            in_slots.setdefault(store.slot(queue), []).append(queue)
        for slot in in_slots.keys() - self._lanes.keys():
            self._lanes[slot] = Lane(self._channel, self)
        for slot, lane in list(self._lanes.items()):
            some = in_slots.get(slot, ())
            lane.consume_from(queues if len(some) == len(queues) else tuple(some))
            if not some:
                if lane.is_taking:
                    # What it brings goes back.
                    lane.answer()
                lane.close()
                del self._lanes[slot]
        self._with_acks = tuple(queue for queue in queues if queue not in no_ack)

    def _messages(self, deliveries: Sequence[Delivery], now_ms: float) -> list[Received]:
        channel = self._channel
        return receive(deliveries, now_ms, channel.consumer, partial(channel.Message, channel=channel))

    def _without_acks(self, no_ack: bool) -> bool:
        return no_ack or not self._channel.ack_emulation

    def _waiting(self, received: Received) -> Waiting:
        delivery, message, lost = received
        if not lost or not delivery.needs_ack or not 0 < self._channel.options.isolated_after <= lost:
            return Waiting(delivery, message, None)
        self._channel.qos.report_isolated(delivery.queue, message, lost)
        return Waiting(delivery, message, monotonic() + ISOLATION_PATIENCE)

    def _hold(self, waiting: Waiting, no_ack: bool) -> None:
        qos, (delivery, message, waits_until) = self._channel.qos, waiting
        if delivery.needs_ack and no_ack:
            # The message was taken for a consumer that acks, and is now delivered without an ack.
            self._channel.consumer.ack(delivery.queue, delivery.tag)
        elif delivery.needs_ack:
            qos.hold(delivery.tag, delivery.queue, isolated=waits_until is not None)
        if not no_ack:
            qos.append(message, delivery.tag)
